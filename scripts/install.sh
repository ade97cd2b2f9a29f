#!/usr/bin/env bash
# install.sh install|package PG_CONFIG: for any PostgreSQL from 15 to 18. Installs no
# system packages: the server's headers and clang are yours to provide.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

what=${1:?install or package}
pg_config=$(command -v "${2:-pg_config}") ||
    die "there is no ${2:-pg_config}" "Say which one: make $what PG_CONFIG=/path/to/pg_config"
case $pg_config in /*) ;; *) pg_config=$ROOT/$pg_config ;; esac

version=$("$pg_config" --version)
major=$(printf '%s' "$version" | sed -nE 's/^PostgreSQL ([0-9]+).*/\1/p')
case $major in
15 | 16 | 17 | 18) ;;
*) die "leaf_id is for PostgreSQL 15 to 18, this is $version" ;;
esac
headers=$("$pg_config" --includedir-server)
[ -f "$headers/postgres.h" ] ||
    die "the server headers are missing: $headers/postgres.h" "Debian: postgresql-server-dev-$major"

need_rust
with_lock need_cargo_pgrx
# In a directory of its own: what the tests use is compiled against other headers.
export CARGO_TARGET_DIR=$TARGET/install PGRX_PG_CONFIG_PATH=$pg_config
options=(--package leaf_id --pg-config "$pg_config" --no-default-features --features "pg$major")

say "Building leaf_id for $version"
if [ "$what" = package ]; then
    "$CARGO_PGRX" pgrx package "${options[@]}"
    say "The files to package are under $CARGO_TARGET_DIR/release/leaf_id-pg$major"
    exit
fi

writable() { [ -w "$("$pg_config" --pkglibdir)" ] && [ -w "$("$pg_config" --sharedir)/extension" ]; }
writable || options+=(--sudo)
"$CARGO_PGRX" pgrx install --release "${options[@]}"
cat <<END

leaf_id is installed. To use it:
  1. in postgresql.conf     shared_preload_libraries = 'leaf_id'
  2. restart the server
  3. in each database       CREATE EXTENSION leaf_id;
END
