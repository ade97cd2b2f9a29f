#!/usr/bin/env bash
# release.sh: checks, builds and collects the files of a release in target/release-VERSION: source
# archives, Debian packages, what RPM packages are built from, notes, and checksums. Does not push or
# tag anything. Packages are built and tested for the releases of Debian below, for amd64 and arm64, as
# root with debootstrap and qemu-user-static. release.sh --trial continues if something is missing,
# reports it, and collects in target/release-VERSION-trial; its packages may be for the PostgreSQLs of
# this system, untested.
#
# Prerequisites, all of them committed: the version in Cargo.toml and META.json, a date in
# CHANGELOG.md, the update script from the previous version in sql/, scripts/released.sh freeze, and
# the results of make test-all with these sources in bench/results/tested.md.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

trial=
case ${1:-} in
'') ;;
--trial) trial=-trial ;;
*) die "release.sh [--trial]" ;;
esac
version=$(version)
out=$TARGET/release-$version$trial
# As named in CHANGELOG.md.
suites=(bookworm trixie)
# PostgreSQLs that PGDG packages as RPMs.
rpms=(15 16 17 18)
unready=()
unchecked=()

# need WHAT COMMAND...: a requirement of a release; a trial only reports that it is missing.
need() {
    local what=$1
    shift
    if "$@" >/dev/null 2>&1; then return; fi
    [ -n "$trial" ] || die "not ready: $what" "make release TRIAL=1 goes past that."
    unready+=("$what")
}
is_clean() { [ -z "$(git status --porcelain)" ]; }
is_new() { ! git rev-parse --verify --quiet "refs/tags/v$version"; }
is_dated() { grep -qE "^## $version \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$" CHANGELOG.md; }
is_frozen() { [ -f "sql/released/leaf_id--$version.sql" ]; }
is_tested() { "$ROOT/scripts/matrix.sh" check; }
is_stable() { grep -qF '"release_status": "stable"' META.json; }
is_stated() { ! tr '\n' ' ' <README.md | grep -q 'not yet released'; }
is_locked() { cargo fetch --locked; }
builds_debs() { is_root && command -v debootstrap && command -v qemu-aarch64-static; }
checks_specs() { command -v rpm && command -v rpmlint; }

# State of the sources to be released. A trial may have uncommitted changes.
state() {
    git rev-parse HEAD
    git status --porcelain
    git diff HEAD
}
# A run takes an hour or two, during which this checkout may be worked in.
is_unchanged() { [ "$(state)" = "$begun_with" ] || die "the sources have changed since this began"; }

# Section of CHANGELOG.md about this version. Beside a release, relative links lead nowhere.
notes() {
    awk -v version="$version" '/^## /{ on = $2 == version } on' CHANGELOG.md |
        sed -E "s|\]\(([A-Za-z/_-]+[.#)])|]($(homepage)/blob/v$version/\1|g"
}

commit=$(git rev-parse HEAD)
begun_with=$(state)
need_rust
say "Is version $version ready?"
need 'everything is committed' is_clean
need "there is no tag v$version" is_new
need "CHANGELOG.md has a date for $version" is_dated
need 'README.md does not say that nothing is released' is_stated
need 'META.json has the release status "stable", which PGXN installs' is_stable
need "the script of $version is frozen: scripts/released.sh freeze" is_frozen
need 'Cargo.lock is what Cargo.toml asks for' is_locked
need "packages can be built for ${suites[*]}: as root, with debootstrap and qemu-user-static" builds_debs
need 'rpm and rpmlint are installed' checks_specs
need 'each version was tested with these sources (scripts/matrix.sh check)' is_tested
case $(maintainer)$(homepage)$(repository) in
*example.org*) unchecked+=('Cargo.toml NAMES NO REAL MAINTAINER AND ADDRESS yet: what is published has them') ;;
esac
for what in "${unchecked[@]}"; do note "!!! $what"; done
[ -n "$(notes)" ] || die "CHANGELOG.md does not have version $version"
command -v cargo-deny >/dev/null || die "cargo-deny is missing" "cargo install cargo-deny --locked"

# Includes the version in META.json, released scripts, licenses and sources.
"$ROOT/scripts/lint.sh"
# The database is fetched from GitHub.
if cargo deny fetch db >/dev/null 2>&1; then
    need 'there is no advisory about what is compiled in' cargo deny --workspace check --disable-fetch advisories
else
    unchecked+=('advisories about what is compiled in were NOT CHECKED: their database is not available here')
fi
is_unchanged
say "Collecting version $version"
rm -rf "$out"
mkdir -p "$out"
# From the commit, without uncommitted changes. Reproducible: a zip has local times, and a tar the
# umask of the user's configuration.
export TZ=UTC
git -c tar.umask=0022 archive --prefix="leaf_id-$version/" --format=tar "$commit" | gzip --no-name --best >"$out/leaf_id-$version.tar.gz"
# In the format required by PGXN.
git archive --prefix="leaf_id-$version/" --format=zip --output="$out/leaf_id-$version.zip" "$commit"
notes >"$out/notes.md"
# What the RPM packages are built from, beside the archive.
crates=$(mktemp -d)
cargo vendor --locked "$crates/vendor" 2>"$crates/log" | sed "s|$crates/||" >"$crates/vendor.toml" ||
    die "cargo vendor fails" "$(tail -n 5 "$crates/log")"
tar -C "$crates" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(changed_at)" -c vendor vendor.toml |
    gzip --no-name --best >"$out/leaf_id-$version-vendor.tar.gz"
rm -r "$crates"
if checks_specs >/dev/null; then
    for major in "${rpms[@]}"; do
        PG_CONFIG='' PG_MAJOR=$major "$ROOT/scripts/rpm-spec.sh"
        cp "$TARGET/rpm/leaf_id_$major.spec" "$out/"
    done
fi
# What is compiled, as CycloneDX. THIRD-PARTY in each package says what of it is in the library.
if cargo cyclonedx --version >/dev/null 2>&1; then
    bill=leaf_id-$version.cdx
    # It writes a file beside each Cargo.toml, also if it is cut off.
    sources=$(mktemp -d)
    git archive "$commit" | tar -x -C "$sources"
    (cd "$sources" && cargo cyclonedx --quiet --format json --no-build-deps --target x86_64-unknown-linux-gnu --override-filename "$bill")
    mv "$sources/$bill.json" "$out/"
    rm -r "$sources"
else
    unchecked+=('there is NO BILL OF MATERIALS: cargo install cargo-cyclonedx --locked')
fi
built=0
# package PG_CONFIG [SUITE]: builds a package, and sets deb.
package() {
    deb=$("$ROOT/scripts/deb.sh" "$@" | sed -n -e 'w /dev/stderr' -e 's/^==> The package is //p')
    cp "$deb" "$out/"
    built=$((built + 1))
}
# Not with the settings of a test.
[ -n "$trial" ] || unset "${!CARGO_PROFILE_RELEASE_@}"
if builds_debs >/dev/null; then
    # Those of earlier sources.
    rm -f "$TARGET"/deb/leaf-id_*
    for suite in "${suites[@]}"; do
        for architecture in amd64 arm64; do
            package pg_config "$suite" "$architecture"
            "$ROOT/scripts/test-deb.sh" "$suite" "$deb"
        done
    done
    cp "$TARGET/deb/leaf-id_${version/-/\~}"*.{dsc,tar.xz} "$out/"
else
    for pg_config in /usr/lib/postgresql/*/bin/pg_config; do
        [ -f "$("$pg_config" --includedir-server)/postgres.h" ] || continue
        package "$pg_config"
    done
    unchecked+=("there are NO PACKAGES FOR ${suites[*]}, and those for this system were NOT INSTALLED")
fi
is_unchanged
if [ $built -eq 0 ]; then need 'a Debian package was built' false; fi
# Each package must contain the scripts of the sources.
for package in "$out"/*.deb; do
    [ -f "$package" ] || continue
    contents=$(dpkg-deb --contents "$package")
    for script in "leaf_id--$version.sql" sql/leaf_id--*--*.sql; do
        [[ $script = *'*'* ]] || grep -q "/extension/${script##*/}$" <<<"$contents" ||
            die "$(basename "$package") does not have ${script##*/}"
    done
done
(cd "$out" && sha256sum -- * >SHA256SUMS && sha256sum --check --quiet SHA256SUMS)

say "Version $version is in $out, in $(duration $SECONDS)"
(cd "$out" && sed 's/^/    /' SHA256SUMS)
for what in "${unchecked[@]}"; do note "!!! $what"; done
if [ ${#unready[@]} -gt 0 ]; then
    say "THIS IS A TRIAL. A release needs more:"
    for what in "${unready[@]}"; do note "$what"; done
    exit
fi
# By default, git takes headings for comments.
note "Next: git tag -a --cleanup=whitespace -F $out/notes.md v$version $commit"
