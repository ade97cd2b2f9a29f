#!/usr/bin/env bash
# postgresql.sh VERSION: builds a PostgreSQL from the sources of Debian's releases and Ubuntu's, in its
# own prefix, with its regression tests in regress/, and prints the path of its pg_config. VERSION is
# 15, 16, 17 or 18; "18-assert" has assertions enabled, and "18-memcheck" tells valgrind of its memory,
# too. Takes about three minutes, once. Exits with UNAVAILABLE of lib.sh if there are no sources.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=${1:?a version, as in 17 or 18-assert}
major=${version%%-*}
work=$TARGET/sources
prefix=$(place_for_server "postgresql-$version")

# Uses separate lists and downloads; the system's package sources are not changed.
apt_own() {
    local name=$1
    shift
    "$name" --quiet=2 -o Dir::Etc::sourcelist="$work/archives.sources" -o Dir::Etc::sourceparts=- \
        -o Dir::State="$work/state" -o Dir::State::status=/var/lib/dpkg/status \
        -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root "$@"
}

# from TYPE KEYRING [URI SUITES]...: sets what apt_own reads.
from() {
    local type=$1 keyring=$2
    shift 2
    : >"$work/archives.sources"
    while [ $# -gt 0 ]; do
        printf '%s\n' "Types: $type" "URIs: $1" "Suites: $2" 'Components: main' "Signed-By: $keyring" '' \
            >>"$work/archives.sources"
        shift 2
    done
    # A release may be gone, and another one have it.
    apt_own apt-get update || true
}

# Downloads the newest source that is available on the mirror. (A security suite may list one before
# it is available.)
download_newest() {
    local candidate
    for candidate in $(apt_own apt-cache showsrc "postgresql-$major" 2>/dev/null |
        sed -nE 's/^Version: (.*)$/\1/p' | sort -Vru); do
        rm -f "$work/postgresql-$major"_*
        if (cd "$work" && apt_own apt-get source --download-only --tar-only "postgresql-$major=$candidate"); then
            return
        fi
        note "the mirror does not have postgresql-$major $candidate"
    done
    return 1
}

# From Debian 12 and its successors, or else from releases of Ubuntu: none of Debian has 16.
download() {
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg debian=http://deb.debian.org/debian
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
    from deb-src $keyring $debian 'bookworm trixie forky sid' $debian-security 'bookworm-security trixie-security'
    download_newest && return
    # Ubuntu's key is in Debian.
    from deb $keyring $debian trixie
    rm -rf "$work/ubuntu" "$work"/ubuntu-keyring_*
    (cd "$work" && apt_own apt-get download ubuntu-keyring)
    dpkg-deb --extract "$work"/ubuntu-keyring_*.deb "$work/ubuntu"
    from deb-src "$work/ubuntu/usr/share/keyrings/ubuntu-archive-keyring.gpg" \
        http://archive.ubuntu.com/ubuntu 'noble noble-updates questing questing-updates'
    download_newest || die "the releases of Debian and Ubuntu have no source of PostgreSQL $major here"
}

# Without Debian's patches, which install into the system's directories.
build() {
    local tree=$work/$version options=(--prefix="$prefix" --with-icu --with-openssl)
    case $version in
    *-assert) options+=(--enable-cassert --enable-debug CFLAGS=-O1) ;;
    *-memcheck) options+=(--enable-cassert --enable-debug CFLAGS=-O1 CPPFLAGS=-DUSE_VALGRIND) ;;
    *) options+=(CFLAGS=-O2) ;;
    esac
    rm -rf "$tree" "$prefix"
    # At once, so that no other user owns it when make installs into it.
    mkdir -p "$tree" "$(dirname "$prefix")"
    mkdir "$prefix"
    tar -xf "$work/postgresql-$major"_*.orig.tar.* -C "$tree" --strip-components=1
    cd "$tree"
    # Under another make, PostgreSQL's makefiles assume that the headers are generated.
    unset MAKELEVEL MAKEFLAGS MFLAGS
    ./configure "${options[@]}"
    make --silent --jobs="$(nproc)" world-bin
    make --silent install-world-bin
    make --silent --directory=src/test/regress
    cp -r src/test/regress src/tools/valgrind.supp "$prefix"
    cd "$ROOT"
    rm -rf "$tree"
}

# logged COMMAND: sets status. Not in a condition, where set -e would be ineffective.
logged() {
    set +e
    (
        set -e
        "$@"
    ) >>"$log" 2>&1 9>&-
    status=$?
    set -e
    if [ $status -ne 0 ]; then tail -n 20 "$log" >&2; fi
}

make_it() {
    local status log=$TARGET/postgresql-$version.log
    # In /var/tmp, any user can make what root would run.
    case $prefix in
    "$TARGET"/*) ;;
    *) [ ! -e "$prefix" ] && [ ! -L "$prefix" ] || { [ ! -L "$prefix" ] && [ -O "$prefix" ]; } ||
        die "$prefix is owned by another user" ;;
    esac
    if [ -f "$prefix/complete" ] && [ -d "$prefix/regress" ]; then return; fi
    say "Building PostgreSQL $version from source (about three minutes, once; see $log)"
    mkdir -p "$work"
    : >"$log"
    logged download
    if [ $status -ne 0 ]; then
        printf 'error: PostgreSQL %s is not available here\n' "$version" >&2
        exit $UNAVAILABLE
    fi
    logged build
    [ $status -eq 0 ] || die "PostgreSQL $version does not build here"
    touch "$prefix/complete"
}

case $major in
15 | 16 | 17 | 18) ;;
*) die "no such version: $version (15, 16, 17, 18, and each with -assert or -memcheck)" ;;
esac
{
    "$ROOT/scripts/setup.sh" sources
    with_lock make_it
} >&2
echo "$prefix/bin/pg_config"
