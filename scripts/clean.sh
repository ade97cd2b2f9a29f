#!/usr/bin/env bash
# Removes what was built from these sources; "clean.sh all" all that these scripts made,
# the copy of PostgreSQL too (packages that were installed stay).

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
locate_copy
if [ "${1:-}" = all ]; then
    # Its server runs from the copy. (Somebody else's does not.)
    "$ROOT/scripts/demo.sh" stop || true
    rm -rf "$PG_PREFIX" "$TARGET/pgrx" "$TARGET/tools" "$TARGET/loom" "$TARGET/install"
    # With CARGO_TARGET_DIR, other projects may build there too.
    [ "$TARGET" != "$ROOT/target" ] || rm -rf "$TARGET"
else
    rm -f "$PG_PREFIX/leaf_id-built-with"
    for target in "$TARGET" "$TARGET/loom" "$TARGET/install"; do
        cargo clean --quiet --target-dir "$target" --package leaf_id --package leaf_id_core \
            --package leaf_id_tests --package leaf_id_bench
    done
fi
