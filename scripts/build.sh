#!/usr/bin/env bash
# Builds the release and installs it into the private copy of PostgreSQL, unless what
# is there is newer than the sources.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
"$ROOT/scripts/setup.sh"
need_rust
locate_copy

sources=(Cargo.toml Cargo.lock build.rs leaf_id.control sql src scripts/build.sh scripts/lib.sh)
stamp=$PG_PREFIX/leaf_id-built-with

build() {
    local with started
    # The profile too: what the bench measures must not be a faster build of somebody's tests.
    with="$(rustc --version) $(cat "$PG_COPY_STAMP") $(env | sed -n 's/^CARGO_PROFILE_RELEASE_//p' | sort)"
    # Directories count too: their time tells of files that were removed.
    if [ -f "$("$PG_BIN/pg_config" --pkglibdir)/leaf_id.so" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$with" ] &&
        [ -z "$(find "${sources[@]}" -newer "$stamp" -print -quit)" ]; then
        return
    fi
    say "Building leaf_id for $("$PG_BIN/pg_config" --version) (a minute or two the first time)"
    started=$(mktemp "$TARGET/started.XXXXXX")
    # shellcheck disable=SC2064  # the name as it is now
    trap "rm -f '$started'" EXIT
    # Of versions and steps that the sources have not, too.
    rm -f "$stamp" "$("$PG_BIN/pg_config" --sharedir)/extension/leaf_id--"*.sql
    CARGO_TARGET_DIR=$PG_BUILD compile "$PG_MAJOR"
    place_files "$PG_BUILD/release/libleaf_id.so" "$PG_BIN/pg_config"
    printf '%s\n' "$with" >"$stamp"
    # What was edited during the build is newer than that.
    touch -r "$started" "$stamp"
}

with_lock build
