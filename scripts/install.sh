#!/usr/bin/env bash
# install.sh install|package PG_CONFIG [DIRECTORY]: for any PostgreSQL that it supports. Installs no
# system packages: the server's headers and clang are yours to provide.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

what=${1:?install or package}
pg_config=$(command -v "${2:-pg_config}") ||
    die "there is no ${2:-pg_config}" "Say which one: make $what PG_CONFIG=/path/to/pg_config"
case $pg_config in /*) ;; *) pg_config=$ROOT/$pg_config ;; esac

version=$("$pg_config" --version)
major=$(printf '%s' "$version" | sed -nE 's/^PostgreSQL ([0-9]+).*/\1/p')
versions | grep -qx "$major" || die "leaf_id is for PostgreSQL $(versions | xargs), this is $version"
headers=$("$pg_config" --includedir-server)
[ -f "$headers/postgres.h" ] ||
    die "the server headers are missing: $headers/postgres.h" "Debian: postgresql-server-dev-$major"

need_rust
with_lock need_cargo_pgrx
# In a directory of its own: what the tests use is compiled against other headers.
export CARGO_TARGET_DIR=$TARGET/install PGRX_PG_CONFIG_PATH=$pg_config
options=(--package leaf_id --pg-config "$pg_config" --no-default-features --features "pg$major")

files=${3:-$CARGO_TARGET_DIR/leaf_id-pg$major}
package() {
    rm -rf "$files"
    "$CARGO_PGRX" pgrx package --out-dir "$files" "${options[@]}"
}

say "Building leaf_id for $version"
if [ "$what" = package ]; then
    package
    # Debian's and RPM's packages have a place of their own for it.
    [ -n "${3:-}" ] || "$ROOT/scripts/third-party.sh" >"$files/THIRD-PARTY"
    say "The files to package are in $files"
    exit
fi

if [ -w "$("$pg_config" --pkglibdir)" ] && [ -w "$("$pg_config" --sharedir)/extension" ]; then
    "$CARGO_PGRX" pgrx install --release "${options[@]}"
else
    # Not pgrx's own --sudo: it overwrites the library in place, under a running server.
    package
    find "$files" -type f -printf '%P\n' | while IFS= read -r file; do
        note "sudo install /$file"
        as_root install -D -m 644 "$files/$file" "/$file" </dev/null
    done
fi
cat <<END

leaf_id is installed. To use it:
  1. in postgresql.conf     shared_preload_libraries = 'leaf_id'
  2. restart the server
  3. in each database       CREATE EXTENSION leaf_id;
END
