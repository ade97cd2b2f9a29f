#!/usr/bin/env bash
# install.sh install|package PG_CONFIG [DIRECTORY]: for any supported PostgreSQL. Installs no system
# packages; the server's headers and clang must be present. install.sh installcheck PG_CONFIG: runs
# the regression tests on its server, in database contrib_regression, which is recreated. install.sh
# uninstall PG_CONFIG: removes the installed files.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

what=${1:?install, package, installcheck or uninstall}
pg_config=$(command -v "${2:-pg_config}") ||
    die "there is no ${2:-pg_config}" "Say which one: make $what PG_CONFIG=/path/to/pg_config"
case $pg_config in /*) ;; *) pg_config=$ROOT/$pg_config ;; esac

# As for PGXS: below this directory.
destination=${DESTDIR:-}
library=$destination$("$pg_config" --pkglibdir)
extension=$destination$("$pg_config" --sharedir)/extension

installcheck() {
    local bin run tests
    tests=$(dirname "$("$pg_config" --pgxs)")/../test
    bin=$("$pg_config" --bindir)
    [ -x "$tests/isolation/pg_isolation_regress" ] || die "there is no pg_regress or pg_isolation_regress in $tests"
    [ "$("$bin/psql" -X -A -t -d postgres -c "SHOW leaf_id.worker_id")" = 5 ] ||
        die "the server is not as the tests expect it; in postgresql.conf, before a restart:" \
            "shared_preload_libraries = 'leaf_id'" "leaf_id.worker_id = '5'"
    [ "$("$bin/psql" -X -A -t -d postgres -c "SELECT count(*) FROM pg_available_extensions
        WHERE name IN ('dblink', 'file_fdw')")" = 2 ] || die "the tests use PostgreSQL's contrib modules dblink and file_fdw"
    run=$(mktemp -d)
    # shellcheck disable=SC2064  # now: it is local
    trap "rm -rf '$run'" EXIT
    cp -r pgrx-tests/{sql,expected,schedule,isolation} "$run"
    regress regress/pg_regress "$run"
    regress isolation/pg_isolation_regress "$run/isolation"
}

# regress PROGRAM DIRECTORY: runs the schedule in this directory.
regress() {
    (cd "$2" && "$tests/$1" --dbname=contrib_regression --bindir="$bin" \
        --no-locale --encoding=UTF8 --inputdir=. --outputdir=. --schedule=schedule) || {
        [ ! -f "$2/regression.diffs" ] || cat "$2/regression.diffs"
        die "the server shows something else than it should"
    }
}

uninstall() {
    local file
    for file in "$library/leaf_id.so" "$extension/leaf_id.control" "$extension"/leaf_id--*.sql; do
        [ -e "$file" ] || continue
        note "removing $file"
        if [ -w "${file%/*}" ]; then rm "$file"; else as_root rm "$file"; fi
    done
    say "leaf_id must not be in shared_preload_libraries when the server starts again"
}

case $what in
install | package) ;;
installcheck | uninstall)
    "$what"
    exit
    ;;
*) die "install.sh install|package|installcheck|uninstall" ;;
esac

version=$("$pg_config" --version)
major=$(printf '%s' "$version" | sed -nE 's/^PostgreSQL ([0-9]+).*/\1/p')
versions | grep -qx "$major" || die "leaf_id is for PostgreSQL $(versions | xargs), this is $version"
headers=$("$pg_config" --includedir-server)
[ -f "$headers/postgres.h" ] ||
    die "the server headers are missing: $headers/postgres.h" "Debian: postgresql-server-dev-$major"

# In a separate directory: the build for the tests uses other headers.
export CARGO_TARGET_DIR=$TARGET/install PGRX_PG_CONFIG_PATH=$pg_config
files=${3:-$CARGO_TARGET_DIR/leaf_id-pg$major}

if [ "$what" = install ] && is_root && [ "${SUDO_UID:-0}" != 0 ] && [ "$(stat -c %u "$ROOT")" = "$SUDO_UID" ]; then
    # In a user's checkout by "sudo make install", as PGXN's client runs it: root may lack Rust, and would
    # own what it builds.
    sudo -H -u "#$SUDO_UID" "$ROOT/scripts/install.sh" package "$pg_config"
else
    need_rust
    say "Building leaf_id for $version"
    compile "$major"
    rm -rf "$files"
    # Cargo's own setting, for another processor.
    built=$CARGO_TARGET_DIR/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}release/libleaf_id.so
    place_files "$built" "$pg_config" "$files"
fi
if [ "$what" = package ]; then
    # Debian and RPM packages have their own place for it.
    [ -n "${3:-}" ] || "$ROOT/scripts/third-party.sh" "$built" >"$files/THIRD-PARTY"
    say "The files to package are in $files"
    exit
fi

# Use root only if necessary; cargo has run as the user.
as=as_root
if [ -n "$destination" ] || { [ -w "$library" ] && [ -w "$extension" ]; }; then as=env; fi
find "$files" -mindepth 2 -type f -printf '%m %P\n' | while read -r mode file; do
    note "installing $destination/$file"
    "$as" install -D -m "$mode" "$files/$file" "$destination/$file" </dev/null
done
[ -z "$destination" ] || exit 0
cat <<END

leaf_id is installed. To use it:
  1. in postgresql.conf     shared_preload_libraries = 'leaf_id'
  2. restart the server
  3. in each database       CREATE EXTENSION leaf_id;
END
