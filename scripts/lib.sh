# shellcheck shell=bash
# shellcheck disable=SC2034  # the variables are for the scripts that source this
# Shared by all scripts, which source it: locations, the user that runs servers, output.

set -euo pipefail
# Files built here must be readable for the server's user.
umask 022
export LC_ALL=C.UTF-8

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$ROOT"

PGSPOT_VERSION=0.9.4
# Parser of pgspot.
PGLAST_VERSION=7.21
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
case $TARGET in /*) ;; *) TARGET=$ROOT/$TARGET ;; esac

# Exit status of scripts/postgresql.sh if the sources are not available.
UNAVAILABLE=69

say() { printf '==> %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }
die() {
    printf 'error: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '       %s\n' "$@" >&2
    exit 1
}

is_root() { [ "$(id -u)" -eq 0 ]; }

# PostgreSQL refuses to run as root; if the scripts do, user postgres runs the servers.
SERVER_USER=$(id -un 2>/dev/null || id -u)
if is_root; then SERVER_USER=postgres; fi

# Version in Cargo.toml, its only place apart from META.json, which lint compares.
version() { sed -nE '/^\[workspace.package\]/,/^$/s/^version = "(.*)"$/\1/p' "$ROOT/Cargo.toml"; }

# Supported major versions of PostgreSQL, one per line: Cargo.toml has a feature for each.
versions() { sed -nE 's/^pg([0-9]+) = .*/\1/p' "$ROOT/Cargo.toml"; }

# Files of the sources, each terminated by a NUL, and the time of their last change (Unix seconds):
# from git, or from an unpacked archive.
source_files() {
    if [ -e "$ROOT/.git" ]; then git ls-files -z; else find . -path ./target -prune -o -type f -print0; fi
}
changed_at() {
    if [ -e "$ROOT/.git" ]; then git log -1 --format=%ct; else stat -c %Y CHANGELOG.md; fi
}

# Maintainer and address, also from Cargo.toml.
maintainer() { sed -nE 's/^authors = \["(.*)"\]$/\1/p' "$ROOT/Cargo.toml"; }

# Addresses of the project, also from there.
homepage() { sed -nE 's/^homepage = "(.*)"$/\1/p' "$ROOT/Cargo.toml"; }
repository() { sed -nE 's/^repository = "(.*)"$/\1/p' "$ROOT/Cargo.toml"; }

# authors_of DIRECTORY: authors in its manifest, if any.
authors_of() {
    sed -nE '/^authors = \[/{ :more; /\]$/!{ N; b more; }; p; q; }' "$1/Cargo.toml" | grep -oE '"[^"]*"' | tr -d '"' | paste -sd'|' | sed 's/|/, /g'
}

# as_server COMMAND...: runs as the servers' user, from /, since that user may not have access to
# the current directory.
as_server() (
    cd /
    if is_root; then
        exec runuser -u "$SERVER_USER" -- "$@"
    fi
    exec "$@"
)

# as_root COMMAND...: for changes of the system. sudo asks on the terminal, or fails without one.
as_root() {
    if is_root; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this takes root: $*" "Run this as root, or install sudo."
    fi
}

# The version in this release of Debian.
version_of_release() {
    case $(sed -nE 's/^VERSION_ID="?([0-9]+)"?$/\1/p' /etc/os-release 2>/dev/null) in
    13) echo 17 ;;
    *) echo 15 ;;
    esac
}

# Chooses the PostgreSQL to develop and test with: the system's of version PG_MAJOR, or that of
# PG_CONFIG, whose prefix setup.sh checks before copying it. Sets PG_MAJOR; PG_NAME, unique among
# them; PG_SYSTEM, directory of the system's, or PG_FROM, the prefix; and PG_BUILD, the build
# directory of the extension.
choose_postgresql() {
    local bin
    PG_FROM=
    PG_BUILD=$TARGET
    # A file in which the library counts its rare branches: another library, and another copy.
    LEAF_ID_SOMETIMES=${LEAF_ID_SOMETIMES:-}
    if [ -n "${PG_CONFIG:-}" ]; then
        bin=$("$PG_CONFIG" --bindir 2>/dev/null) || die "PG_CONFIG=$PG_CONFIG does not run"
        PG_MAJOR=$("$PG_CONFIG" --version | sed -nE 's/^PostgreSQL ([0-9]+).*/\1/p')
        # If it is Debian's, PG_CONFIG is equivalent to PG_MAJOR.
        if [ "$bin" != "/usr/lib/postgresql/$PG_MAJOR/bin" ]; then
            PG_FROM=$(dirname "$(readlink -f "$bin")")
            PG_CONFIG=$PG_FROM/bin/pg_config
        fi
    fi
    PG_MAJOR=${PG_MAJOR:-$(version_of_release)}
    PG_NAME=pg$PG_MAJOR
    # Directory of packages from Debian and apt.postgresql.org.
    PG_SYSTEM=/usr/lib/postgresql/$PG_MAJOR
    # config.toml in there determines the PostgreSQL that pgrx compiles against.
    export PGRX_HOME=$TARGET/pgrx
    [ -n "$PG_FROM$LEAF_ID_SOMETIMES" ] || return 0
    [ -z "$PG_FROM" ] || PG_NAME+=-$(printf '%s' "$PG_FROM" | cksum | cut -d' ' -f1)
    [ -z "$LEAF_ID_SOMETIMES" ] || PG_NAME+=-sometimes
    PG_BUILD=$TARGET/$PG_NAME-build
    PGRX_HOME=$PG_BUILD/pgrx
}

# place_for_server NAME: prints a directory in target/, or in /var/tmp if the server's user cannot
# read target/ (a checkout under /root).
place_for_server() {
    mkdir -p "$TARGET"
    if is_root && id "$SERVER_USER" >/dev/null 2>&1 &&
        ! as_server test -r "$TARGET" -a -x "$TARGET"; then
        echo "/var/tmp/leaf_id-$1-$(printf '%s' "$TARGET" | cksum | cut -d' ' -f1)"
    else
        echo "$TARGET/$1"
    fi
}

# Location of the private copy of PostgreSQL.
locate_copy() {
    PG_PREFIX=$(place_for_server "$PG_NAME")
    PG_BIN=$PG_PREFIX/lib/postgresql/$PG_MAJOR/bin
    [ -z "$PG_FROM" ] || PG_BIN=$PG_PREFIX/bin
    PG_COPY_STAMP=$PG_PREFIX/copied-from
}

# remove_root DIRECTORY...: removes bare Debian roots, but nothing mounted in them.
remove_root() {
    local root mounted
    for root; do
        for mounted in "$root"/{proc,dev,sys}; do
            if [ ! -L "$mounted" ] && mountpoint --quiet "$mounted"; then umount --recursive "$mounted"; fi
        done
        rm -rf --one-file-system "$root"
    done
}

# Environment of the tests. For plain cargo: eval "$(make -s env)"
export_test_env() {
    export LEAF_ID_PG_BIN=$PG_BIN
    if is_root; then export LEAF_ID_SERVER_USER=$SERVER_USER; fi
}

# with_lock COMMAND...: serializes setups and builds. The lock is descriptor 9; commands that may
# start a daemon are run with it closed.
with_lock() {
    mkdir -p "$TARGET"
    exec 9>"$TARGET/leaf_id.lock"
    # By sudo, in the checkout of a user who builds in it, too.
    ! is_root || chown --no-dereference --reference="$ROOT" "$TARGET" "$TARGET/leaf_id.lock"
    if ! flock -n 9; then
        note "waiting for another setup or build of this checkout"
        flock 9
    fi
    "$@"
    exec 9>&-
}

# server_name BIN: "15.20 (Debian)", for the PostgreSQL with these programs.
server_name() {
    local name
    name=$("$1/postgres" --version | sed -E 's/^postgres \(PostgreSQL\) //; s/ \((Debian).*/ (\1)/')
    ! "$1/pg_config" --configure | grep -q -- --enable-cassert || name+=' with assertions'
    echo "$name"
}

# What a test result depends on. (Frozen scripts are copies, and no test runs release.sh.)
TESTED=(src sql scripts pgrx-tests packaging Cargo.toml Cargo.lock build.rs leaf_id.control ':!sql/released' ':!scripts/release.sh' ':!*.md')

# Prints the commit that is tested, and whether it was changed. Fails in a source archive.
tested_commit() {
    local commit=${LEAF_ID_COMMIT:-}
    if [ -z "$commit" ]; then
        commit=$(git rev-parse --short=7 HEAD 2>/dev/null) || return 1
        git diff --quiet HEAD -- "${TESTED[@]}" || commit+=' (changed)'
    fi
    echo "$commit"
}

# What is tested by a script that records a result at its end.
BEGUN_WITH=$(tested_commit || true)

# record WHAT SERVER PASSED FAILED SKIPPED VERDICT [ARCHITECTURE]: records a test result for
# scripts/matrix.sh.
record() {
    local commit=$BEGUN_WITH
    [ -n "$commit" ] || return 0
    # Not if the sources have changed since then.
    if [ -z "${LEAF_ID_COMMIT:-}" ] && [[ $commit != *' (changed)' ]]; then
        git diff --quiet "$commit" -- "${TESTED[@]}" || commit+=' (changed)'
    fi
    mkdir -p "$TARGET/results"
    printf '%s\t' "$2" "$1" "$3" "$4" "$5" "$6" "${7:-$(uname -m)}" "$commit" >>"$TARGET/results/tests.tsv"
    date --utc +%F >>"$TARGET/results/tests.tsv"
    # Some targets run as root, but the normal user must still be able to write there.
    ! is_root || chown -R --reference="$ROOT" "$TARGET/results"
}

# Version of Rust that Cargo.toml asks for.
rust_version() { sed -nE 's/^rust-version = "([0-9.]+)"$/\1/p' "$ROOT/Cargo.toml"; }

# is_new_rust VERSION: that one or a later one.
is_new_rust() { [ "$(printf '%s\n' "$(rust_version)" "${1%%[-+]*}" | sort -V | head -n 1)" = "$(rust_version)" ]; }

# Puts a Rust that is new enough first in PATH: the one there, rustup's, or the distribution's. pgrx
# calls rustfmt.
find_rust() {
    local directory found
    for directory in "$(dirname "$(command -v cargo || echo /usr/bin/cargo)")" "${CARGO_HOME:-${HOME:-}/.cargo}/bin" /usr/bin; do
        if [ -x "$directory/cargo" ] && "$directory/rustfmt" --version >/dev/null 2>&1 &&
            found=$("$directory/rustc" --version 2>/dev/null) && is_new_rust "$(cut -d' ' -f2 <<<"$found")"; then
            case $PATH in
            "$directory":*) ;;
            *) export PATH=$directory:$PATH ;;
            esac
            return
        fi
    done
    return 1
}

need_rust() {
    find_rust || die "Rust $(rust_version) or later is missing, with cargo and rustfmt" \
        "scripts/setup.sh installs Debian's. Elsewhere: https://rustup.rs"
}

# compile MAJOR OPTION...: compiles the library for this version of PostgreSQL, into
# CARGO_TARGET_DIR. PGRX_HOME or PGRX_PG_CONFIG_PATH determines the installation to compile against.
compile() {
    local major=$1
    shift
    cargo build --release --package leaf_id --no-default-features --features "pg$major" "$@" 9>&-
}

# The extension's script: files of sql/ in the order of src/api.rs.
extension_script() {
    local files
    mapfile -t files < <(sed -nE 's/.*"\.\.\/(sql\/[^"]+)".*/\1/p' src/api.rs)
    sed -s '$a\' "${files[@]}"
}

# place_files LIBRARY PG_CONFIG [DIRECTORY]: installs the extension's files into that PostgreSQL, or
# below a directory. install replaces a file instead of writing into it, since a server may have the
# library mapped.
place_files() {
    local library extension made
    library=${3:-}$("$2" --pkglibdir)
    extension=${3:-}$("$2" --sharedir)/extension
    made=$(mktemp -d "$TARGET/leaf_id-script.XXXXXX")
    sed "s/@CARGO_VERSION@/$(version)/" leaf_id.control >"$made/leaf_id.control"
    extension_script >"$made/leaf_id--$(version).sql"
    find sql -maxdepth 1 -name 'leaf_id--*--*.sql' -exec cp -t "$made" {} +
    install -D -m 644 -t "$extension" "$made"/*
    install -D -m 755 "$1" "$library/leaf_id.so"
    rm -r "$made"
}

# Sets PGSPOT, which finds names in SQL scripts that could resolve to other roles' objects.
# Installed in target/.
need_pgspot() {
    local venv=$TARGET/tools/pgspot
    PGSPOT=$venv/bin/pgspot
    if [ "$("$PGSPOT" --version 2>/dev/null)" = "pgspot $PGSPOT_VERSION" ]; then return; fi
    say "Installing pgspot $PGSPOT_VERSION"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check \
        "pgspot==$PGSPOT_VERSION" "pglast==$PGLAST_VERSION" 9>&-
}

# write_if_changed FILE TEXT: keeps the time of an unchanged file; a newer config.toml makes pgrx
# rebuild everything.
write_if_changed() {
    mkdir -p "$(dirname "$1")"
    if [ ! -f "$1" ] || [ "$(cat "$1")" != "$2" ]; then printf '%s\n' "$2" >"$1"; fi
}

# Converts 1234567 to 1,234,567. (printf's grouping depends on the locale, and ours has none.)
thousands() { sed -E ':a; s/^([0-9]+)([0-9]{3})/\1,\2/; ta' <<<"$1"; }

# Converts seconds to "1 min 5 s".
duration() {
    if [ "$1" -ge 60 ]; then printf '%d min %d s' $(($1 / 60)) $(($1 % 60)); else printf '%d s' "$1"; fi
}

choose_postgresql
