#!/usr/bin/env bash
# Builds the release and installs it into the private copy of PostgreSQL, unless the installed files
# are newer than the sources.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
"$ROOT/scripts/setup.sh"
need_rust
locate_copy

sources=(Cargo.toml Cargo.lock build.rs leaf_id.control sql src scripts/build.sh scripts/lib.sh)
stamp=$PG_PREFIX/leaf_id-built-with

build() {
    local with started
    # Includes the profile: the bench must not measure a faster build made for tests.
    with="$(rustc --version) $(cat "$PG_COPY_STAMP") $(env | sed -n 's/^CARGO_PROFILE_RELEASE_//p' | sort)"
    # Includes directories, whose times change when files are removed.
    if [ -f "$("$PG_BIN/pg_config" --pkglibdir)/leaf_id.so" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$with" ] &&
        [ -z "$(find "${sources[@]}" -newer "$stamp" -print -quit)" ]; then
        return
    fi
    say "Building leaf_id for $("$PG_BIN/pg_config" --version) (a minute or two the first time)"
    started=$(mktemp "$TARGET/started.XXXXXX")
    # shellcheck disable=SC2064  # the name as it is now
    trap "rm -f '$started'" EXIT
    # Including versions and update scripts that the sources do not have any more.
    rm -f "$stamp" "$("$PG_BIN/pg_config" --sharedir)/extension/leaf_id--"*.sql
    # Not for a library that is installed elsewhere.
    [ -z "$LEAF_ID_SOMETIMES" ] || export RUSTFLAGS='--cfg leaf_id_sometimes'
    CARGO_TARGET_DIR=$PG_BUILD compile "$PG_MAJOR"
    place_files "$PG_BUILD/release/libleaf_id.so" "$PG_BIN/pg_config"
    printf '%s\n' "$with" >"$stamp"
    # Files edited during the build are newer than the stamp.
    touch -r "$started" "$stamp"
}

with_lock build
