#!/usr/bin/env bash
# Installs missing packages for builds and tests, and creates the private copy of PostgreSQL. Fast
# and silent if everything is in place. "setup.sh tests" also installs packages needed only by
# tests, "setup.sh lint" those of "make lint", "setup.sh sources" those needed to compile
# PostgreSQL.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

missing_packages() {
    # A PostgreSQL in its own prefix is not from packages.
    [ -n "$PG_FROM" ] || missing_postgresql
    command -v clang >/dev/null || echo clang
    command -v cc >/dev/null || echo gcc
    [ -f /usr/include/stdio.h ] || echo libc6-dev
    # Included by the server's headers that pgrx reads.
    [ -f /usr/include/unicode/ucol.h ] || echo libicu-dev
    find_rust || echo rust
    # cargo checks the certificate of the registry.
    [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
    command -v make >/dev/null || echo make
    # For the test that counts instructions, which is skipped without it.
    [ "${1:-}" != tests ] || command -v valgrind >/dev/null || ! command -v apt-get >/dev/null || echo valgrind
    # lint.sh adds it to a toolchain of rustup's.
    [ "${1:-}" != lint ] || { find_rust && [ "$(command -v cargo)" != /usr/bin/cargo ]; } ||
        [ -x /usr/bin/cargo-clippy ] || echo clippy
    # To install pgspot. (Debian has the module without its dependencies.)
    [ "${1:-}" != lint ] || python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    [ "${1:-}" != sources ] || missing_to_compile
    # Used by tests to stop servers.
    type -P kill >/dev/null || echo procps
}

# Packages needed to compile PostgreSQL.
missing_to_compile() {
    local package
    for package in bison flex bzip2 libicu-dev libreadline-dev libssl-dev perl pkg-config zlib1g-dev; do
        dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
    done
}

# rust_packages NAME...: replaces "rust" and "clippy" by the packages that have them. A release of
# Debian whose first Rust is older has a newer one under names of its own.
rust_packages() {
    local name suffix= clippy=rust-clippy
    is_new_rust "$(candidate rustc)" || {
        suffix=-web
        clippy=rust-web-clippy
    }
    for name; do
        case $name in
        rust)
            is_new_rust "$(candidate "rustc$suffix")" ||
                die "this system has no package of Rust $(rust_version) or later" "Install it: https://rustup.rs"
            printf '%s\n' "rustc$suffix" "cargo$suffix" "rustfmt$suffix"
            ;;
        clippy) echo $clippy ;;
        *) echo "$name" ;;
        esac
    done
}
candidate() { apt-cache policy "$1" 2>/dev/null | sed -nE 's/^ *Candidate: ([0-9][^ ]*)$/\1/p' | grep . || echo 0; }

missing_postgresql() {
    [ -x "$PG_SYSTEM/bin/initdb" ] && [ -x "$PG_SYSTEM/bin/pgbench" ] || echo "postgresql-$PG_MAJOR"
    [ -x "$PG_SYSTEM/bin/psql" ] || echo "postgresql-client-$PG_MAJOR"
    [ -f "/usr/include/postgresql/$PG_MAJOR/server/postgres.h" ] &&
        [ -x "$PG_SYSTEM/lib/pgxs/src/test/regress/pg_regress" ] || echo "postgresql-server-dev-$PG_MAJOR"
    # The library is installed with its header.
    [ -f /usr/include/postgresql/libpq-fe.h ] || echo libpq-dev
}

need_packages() {
    local missing names
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        die "missing: ${missing[*]}" \
            "This script installs them on Debian. Elsewhere install PostgreSQL with its server" \
            "headers and clang yourself, then: make install PG_CONFIG=/path/to/pg_config"
    say "Installing ${missing[*]} (a minute or two, once)"
    apt_get update
    names=$(rust_packages "${missing[@]}")
    mapfile -t missing <<<"$names"
    [ -n "$PG_FROM" ] || apt-cache show "postgresql-$PG_MAJOR" >/dev/null 2>&1 ||
        die "this system has no package postgresql-$PG_MAJOR" \
            "Choose the version it has, as in: PG_MAJOR=17 make demo" \
            "or add PostgreSQL's own repository: https://wiki.postgresql.org/wiki/Apt"
    # Some of Rust's packages exclude others, which only the user removes.
    apt_get install --yes --no-install-recommends --no-remove "${missing[@]}"
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} -eq 0 ] || die "still missing after the installation: ${missing[*]}"
}

# Shows what is being installed, and the whole log on failure. Descriptor 9 is closed, since the
# installation may start Debian's server.
apt_get() {
    local log=$TARGET/apt.log
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get --quiet=2 \
        -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null 2>&1 9>&- |
        tee "$log" | sed -unE 's/^Setting up ([^ :]+).*/    \1/p'; then
        cat "$log" >&2
        die "apt-get $1 failed"
    fi
}

# Files that identify an installation, one per line.
marks() {
    if [ -n "$PG_FROM" ]; then
        printf '%s\n' "$PG_FROM/bin/postgres" "$(dirname "$("$PG_CONFIG" --pgxs)")/../test/regress/pg_regress" \
            "$("$PG_CONFIG" --includedir-server)/postgres.h"
    else
        printf '%s\n' "$PG_SYSTEM/bin/postgres" "$PG_SYSTEM/lib/pgxs/src/test/regress/pg_regress" \
            "/usr/include/postgresql/$PG_MAJOR/server/postgres.h"
    fi
}

# copy_to DIRECTORY: copies the files of the installation, keeping their relative locations.
copy_to() {
    if [ -n "$PG_FROM" ]; then
        cp -a "$PG_FROM/." "$1"
        return
    fi
    mkdir -p "$1/lib/postgresql" "$1/share/postgresql" "$1/include/postgresql"
    cp -a "$PG_SYSTEM" "$1/lib/postgresql/$PG_MAJOR"
    cp -aL "/usr/share/postgresql/$PG_MAJOR" "$1/share/postgresql/$PG_MAJOR"
    cp -a "/usr/include/postgresql/$PG_MAJOR" "$1/include/postgresql/$PG_MAJOR"
}

# The copy is of the whole prefix, which must contain all of PostgreSQL, and nothing else.
need_own_prefix() {
    local option directory
    case $PG_FROM in
    '') return ;;
    / | /usr | /usr/local) die "the PostgreSQL of $PG_CONFIG is not in a prefix of its own: $PG_FROM" ;;
    esac
    for option in --bindir --sharedir --pkglibdir --includedir-server; do
        directory=$("$PG_CONFIG" "$option") || die "$PG_CONFIG does not run"
        case $directory in
        "$PG_FROM"/*) ;;
        *) die "the PostgreSQL of $PG_CONFIG is not in a prefix of its own: $directory" ;;
        esac
    done
}

# Creates a relocatable copy (pg_config's output is relative to its location), so that neither an
# installation nor a test needs write access to, or affects, the system's directories.
need_copy() {
    local marks from new
    need_own_prefix
    mapfile -t marks < <(marks)
    from=$(stat -c '%n %s %Y' "${marks[@]}")
    if [ -f "$PG_COPY_STAMP" ] && [ "$(cat "$PG_COPY_STAMP")" = "$from" ]; then
        [ -O "$PG_PREFIX" ] || die "$PG_PREFIX is owned by another user"
        return
    fi
    say "Copying PostgreSQL $PG_MAJOR${PG_FROM:+ of $PG_FROM} to $PG_PREFIX"
    [ ! -e "$PG_PREFIX" ] || [ -O "$PG_PREFIX" ] || die "$PG_PREFIX is owned by another user"
    new=$PG_PREFIX.new
    rm -rf "$new"
    mkdir "$new"
    copy_to "$new"
    # The original may contain another leaf_id.
    find "$new" -type f -name 'leaf_id*' -delete
    printf '%s\n' "$from" >"$new/${PG_COPY_STAMP##*/}"
    chmod -R u+w,a+rX "$new"
    rm -rf "$PG_PREFIX"
    mv -T "$new" "$PG_PREFIX"
    # Other headers require new bindings.
    rm -f "$PGRX_HOME/config.toml"
}

setup() {
    need_packages "$@"
    need_rust
    [ "${1:-}" != lint ] || need_pgspot
    locate_copy
    need_copy
    write_if_changed "$PGRX_HOME/config.toml" "[configs]
pg$PG_MAJOR = \"$PG_BIN/pg_config\""
}

with_lock setup "$@"
