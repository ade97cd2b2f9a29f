#!/usr/bin/env bash
# third-party.sh LIBRARY: prints the notices to distribute with that leaf_id.so, which contains
# third-party code: each crate linked into it, and Rust's standard library, with its license and
# license text. Uses the sources fetched by cargo; compiles nothing.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_rust
library=${1:?the library}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Assigned first, so that set -e is effective.
host=$(rustc -vV | sed -n 's/^host: //p')
cargo metadata --locked --format-version 1 --filter-platform "$host" >"$scratch/metadata"
grep -oE '"manifest_path":"[^"]*"' "$scratch/metadata" | sed 's/^.*:"//; s/"$//' >"$scratch/manifests"
# Without the packages of this workspace, which have a path.
# pgrx-sql-entity-graph writes SQL while something is compiled: the linker leaves it out, with what only
# it uses.
linked() { cargo tree --locked --package leaf_id --edges normal,no-proc-macro --prefix none --no-dedupe --format '{p}|{l}' "$@"; }
linked --prune pgrx-sql-entity-graph |
    sed '/ (\//d; s/ v/|/' | sort -u >"$scratch/crates"
[ -s "$scratch/crates" ] || die "cargo tree shows no crates"
rlibs=$(rustc --print target-libdir)
# dpkg-buildpackage says for which processor.
"${DEB_HOST_GNU_TYPE:+$DEB_HOST_GNU_TYPE-}nm" --demangle "$library" | cut -d' ' -f3- >"$scratch/symbols"
grep -q 'leaf_id_core::' "$scratch/symbols" || die "$library has no symbols to look at"
linked | sed '/ (\//d; s/ v.*//; s/-/_/g' | sort -u | while IFS= read -r name; do
    # The standard library has some of its own.
    ! grep -q "^$name|" <(tr - _ <"$scratch/crates") && ! compgen -G "$rlibs/lib$name-*.rlib" >/dev/null || continue
    ! grep -qE "(^|[^A-Za-z0-9_:])$name::" "$scratch/symbols" || die "the library has symbols of $name, which is not listed"
done

# source_of NAME VERSION: directory of its sources, in the registry or vendored.
source_of() {
    local manifest
    grep -F -e "/$1-$2/Cargo.toml" -e "/$1/Cargo.toml" "$scratch/manifests" | while IFS= read -r manifest; do
        if grep -qxF "version = \"$2\"" "$manifest"; then dirname "$manifest"; fi
    done | head -n 1 | grep .
}

# texts_of DIRECTORY LICENSE: files of that license; MIT's if there is a choice.
texts_of() {
    local all mit
    all=$(cd "$1" && find . -maxdepth 2 -type f \( -ipath './licen[cs]e*' -o -ipath './unlicense*' \
        -o -ipath './copying*' -o -ipath './notice*' \) | sort)
    mit=$(grep -i 'mit[^/]*$' <<<"$all" || true)
    case $2 in
    *AND*) ;;
    *MIT*) all=${mit:-$all} ;;
    esac
    [ -z "$all" ] || sed "s|^\.|$1|" <<<"$all"
}

declare -A crates_of
sums=()
# add CRATE FILE: identical texts are merged.
add() {
    local sum
    sum=$(sha256sum <"$2" | cut -d' ' -f1)
    if [ ! -f "$scratch/$sum" ]; then
        cp "$2" "$scratch/$sum"
        sums+=("$sum")
    fi
    crates_of[$sum]+="${crates_of[$sum]:+, }$1"
}

# For a crate without a license file: the text without a name, which many crates have. The list
# contains the names.
mit=$(source_of serde "$(sed -n 's/^serde|\(.*\)|.*/\1/p' "$scratch/crates")")/LICENSE-MIT
if grep -qi 'copyright (c)' "$mit"; then die "serde's text of MIT names a holder"; fi

cat <<END
leaf_id.so is licensed as LICENSE says, and contains the following, by the authors in
parentheses, as far as the sources name them. The texts of the licenses are below.

END
while IFS='|' read -r name version license; do
    source=$(source_of "$name" "$version") || die "the sources of $name $version are not there" "cargo fetch --locked"
    authors=$(authors_of "$source" || true)
    echo "$name $version: $license${authors:+ ($authors)}"
    texts=$(texts_of "$source" "$license")
    if [ -z "$texts" ]; then
        [[ $license = *MIT* ]] || die "$name $version has no text of its license, $license"
        texts=$mit
    fi
    while IFS= read -r text; do add "$name $version" "$text"; done <<<"$texts"
done <"$scratch/crates"

standard="Rust's standard library $(rustc --version | cut -d' ' -f2)"
echo "$standard: MIT OR Apache-2.0 (The Rust Project Developers)"
add "$standard" "$mit"
# Debian's packages have the notices of the crates in the library as a file; rustup's toolchains as
# HTML, in which nearly all texts are the same.
notices=$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html
if [ -f "$notices" ]; then
    awk '
        /<pre>/ { inside = 1; text = ""; sub(/.*<pre>/, "") }
        /<\/pre>/ { inside = 0; if (text in seen) print "(as above)"; else { seen[text] = 1; print text } next }
        inside { text = text $0 "\n"; next }
        { print }' "$notices" |
        sed -E '/^<body>/,$!d; s/<[^>]*>//g; s/&#60;|&lt;/</g; s/&#62;|&gt;/>/g; s/&#34;|&quot;/"/g; s/&#39;|&#x27;/'\''/g
            s/&#38;|&amp;/\&/g; s/^ +$//' | cat -s >"$scratch/notices"
else
    cat /usr/share/doc/libstd-rust*-dev/copyright >"$scratch/notices" 2>/dev/null ||
        die "this toolchain has no notices of the crates in Rust's standard library"
fi
add "$standard, for each part" "$scratch/notices"

for sum in "${sums[@]}"; do
    printf '\n%s\n' '--------------------------------------------------------------------------------'
    printf '%s\n\n' "${crates_of[$sum]}" | fold -s -w 80
    # Some have carriage returns.
    tr -d '\r' <"$scratch/$sum"
done
