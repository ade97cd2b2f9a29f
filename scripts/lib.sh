# shellcheck shell=bash
# shellcheck disable=SC2034  # the variables are for the scripts that source this
# Shared by all scripts (sourced): where things are, who runs servers, how to speak.

set -euo pipefail
# The server's user must be able to read what is built here.
umask 022
export LC_ALL=C.UTF-8

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$ROOT"

PG_MAJOR=${PG_MAJOR:-15}
PGRX_VERSION=0.18.1
PGSPOT_VERSION=0.9.4
# Its parser.
PGLAST_VERSION=7.21
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
case $TARGET in /*) ;; *) TARGET=$ROOT/$TARGET ;; esac
# pgrx looks for the PostgreSQL to compile against in config.toml there.
export PGRX_HOME=$TARGET/pgrx
# Debian's place, and apt.postgresql.org's.
PG_SYSTEM=/usr/lib/postgresql/$PG_MAJOR

say() { printf '==> %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }
die() {
    printf 'error: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '       %s\n' "$@" >&2
    exit 1
}

is_root() { [ "$(id -u)" -eq 0 ]; }

# PostgreSQL refuses to run as root: there the servers are the user postgres's.
SERVER_USER=$(id -un 2>/dev/null || id -u)
if is_root; then SERVER_USER=postgres; fi

# as_server COMMAND...: as the user of the servers. From /, since that user may not
# be able to enter the current directory. Without RUST_BACKTRACE, which pgrx would
# answer with a backtrace in the DETAIL of each error.
as_server() (
    cd /
    if is_root; then
        exec runuser -u "$SERVER_USER" -- env -u RUST_BACKTRACE "$@"
    fi
    exec env -u RUST_BACKTRACE "$@"
)

# as_root COMMAND...: for what goes into the system. sudo asks on the terminal, or fails without one.
as_root() {
    if is_root; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this takes root: $*" "Run this as root, or install sudo."
    fi
}

# The private copy of PostgreSQL lies in target/, or in /var/tmp where the server's
# user cannot read target/ (a checkout under /root).
locate_copy() {
    mkdir -p "$TARGET"
    PG_PREFIX=$TARGET/pg$PG_MAJOR
    if is_root && id "$SERVER_USER" >/dev/null 2>&1 &&
        ! as_server test -r "$TARGET" -a -x "$TARGET"; then
        PG_PREFIX=/var/tmp/leaf_id-pg$PG_MAJOR-$(printf '%s' "$TARGET" | cksum | cut -d' ' -f1)
    fi
    PG_LIB=$PG_PREFIX/lib/postgresql/$PG_MAJOR
    PG_BIN=$PG_LIB/bin
    PG_COPY_STAMP=$PG_PREFIX/copied-from
}

# What the tests need to know. Plain cargo gets it by: eval "$(make -s env)"
export_test_env() {
    export LEAF_ID_PG_BIN=$PG_BIN
    if is_root; then export LEAF_ID_SERVER_USER=$SERVER_USER; fi
}

# with_lock COMMAND...: one setup or build at a time. The lock is descriptor 9;
# whatever may start a daemon is called with it closed.
with_lock() {
    mkdir -p "$TARGET"
    exec 9>"$TARGET/leaf_id.lock"
    if ! flock -n 9; then
        note "waiting for another setup or build of this checkout"
        flock 9
    fi
    "$@"
    exec 9>&-
}

need_rust() {
    local wanted found
    if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
        export PATH
    fi
    command -v cargo >/dev/null ||
        die "Rust is missing" "Install it from https://rustup.rs (not as root, if you are not)."
    wanted=$(sed -nE 's/^rust-version = "([0-9.]+)"$/\1/p' Cargo.toml)
    found=$(rustc --version | cut -d' ' -f2)
    [ "$(printf '%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1)" = "$wanted" ] ||
        die "Rust $wanted or later is needed, this is $found" "rustup update"
}

# Sets CARGO_PGRX. Exactly this version is needed; one that the user has for other
# projects stays as it is, and ours goes into target/.
need_cargo_pgrx() {
    local candidate tools=$TARGET/tools
    for candidate in "$tools/bin/cargo-pgrx" "$(command -v cargo-pgrx || true)"; do
        [ -x "$candidate" ] || continue
        if [ "$("$candidate" pgrx --version 2>/dev/null)" = "cargo-pgrx $PGRX_VERSION" ]; then
            CARGO_PGRX=$candidate
            return
        fi
    done
    say "Building cargo-pgrx $PGRX_VERSION (about two minutes, once)"
    # Without its default features it needs no OpenSSL; optimized, it takes three times
    # as long to build and saves nothing.
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --locked --debug --no-default-features --root "$tools" --target-dir "$tools/build" \
        "cargo-pgrx@$PGRX_VERSION" 9>&-
    rm -rf "$tools/build"
    CARGO_PGRX=$tools/bin/cargo-pgrx
}

# Sets PGSPOT, which looks for names in SQL scripts that somebody else could plant. In a place
# of its own in target/.
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

# write_if_changed FILE TEXT: keeps the time of a file that says the same already;
# pgrx rebuilds everything when config.toml is newer.
write_if_changed() {
    mkdir -p "$(dirname "$1")"
    if [ ! -f "$1" ] || [ "$(cat "$1")" != "$2" ]; then printf '%s\n' "$2" >"$1"; fi
}

# 1,234,567 of 1234567. (printf's grouping follows the locale, and ours has none.)
thousands() { sed -E ':a; s/^([0-9]+)([0-9]{3})/\1,\2/; ta' <<<"$1"; }

# "1 min 5 s" of seconds.
duration() {
    if [ "$1" -ge 60 ]; then printf '%d min %d s' $(($1 / 60)) $(($1 % 60)); else printf '%d s' "$1"; fi
}
