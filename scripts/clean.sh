#!/usr/bin/env bash
# Removes files built from these sources. "clean.sh all" removes everything created by these
# scripts, including the copy of PostgreSQL (installed packages remain).

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
locate_copy
if [ "${1:-}" = all ]; then
    # Stop the demo, whose server runs from the copy. (Does not affect other users' servers.)
    "$ROOT/scripts/demo.sh" stop || true
    # With CARGO_TARGET_DIR, other projects may build there, too: the stamp of our copy has its
    # origin.
    for stamp in "$PG_COPY_STAMP" "$TARGET"/pg[0-9]*/copied-from; do
        [ -f "$stamp" ] || continue
        copy=${stamp%/*}
        rm -rf "$copy" "$copy-build"
    done
    # Files that must be readable for the servers' user, if target/ is not.
    for place in /var/tmp/leaf_id-*-"$(printf '%s' "$TARGET" | cksum | cut -d' ' -f1)"; do
        [ ! -O "$place" ] || rm -rf "$place"
    done
    remove_root "$TARGET"/roots/*/
    rm -rf "$TARGET/pgrx" "$TARGET/tools" "$TARGET"/leaf_id-script.?????? "$TARGET/loom" "$TARGET/shuttle" "$TARGET/night" "$TARGET/install" "$TARGET/clients" "$TARGET/deb" "$TARGET/rpm" "$TARGET/roots"
    if [ "$TARGET" = "$ROOT/target" ]; then
        rm -rf --one-file-system "$TARGET"
        exit
    fi
    # Directories of these names may belong to other projects: ours contain these files. (The build
    # for a copy in /var/tmp is here.)
    marks=("$TARGET"/postgresql-[0-9]*/complete "$TARGET"/pg[0-9]*-build/pgrx/config.toml "$TARGET/sources/debian.sources"
        "$TARGET/arm64/headers/pg_config" "$TARGET"/release-[0-9]*/leaf_id-*.tar.gz)
    ! grep -qs '^# leaf_id' "$TARGET/bench/report.md" || marks+=("$TARGET/bench/report.md")
    for mark in "${marks[@]}"; do
        [ -f "$mark" ] || continue
        name=${mark#"$TARGET/"}
        made=$TARGET/${name%%/*}
        if [ -O "$made" ]; then rm -rf "$made"; else note "$made stays: another user owns it"; fi
    done
    if [ -f "$TARGET/results/tests.tsv" ]; then
        rm "$TARGET/results/tests.tsv"
        rmdir --ignore-fail-on-non-empty "$TARGET/results"
    fi
    rm -f "$TARGET"/{leaf_id.lock,apt.log,demo-pgbench.log,torture.log} "$TARGET"/postgresql-[0-9]*.log \
        "$TARGET"/test-{lint,core,loom,shuttle,servers,demo,clients,postgresql}.log "$TARGET"/pg[0-9]*-times.tsv
else
    need_rust
    rm -f "$PG_PREFIX/leaf_id-built-with"
    for target in "$TARGET" "$PG_BUILD" "$TARGET/loom" "$TARGET/shuttle" "$TARGET/install"; do
        cargo clean --quiet --target-dir "$target" --package leaf_id --package leaf_id_core \
            --package leaf_id_tests --package leaf_id_bench
    done
fi
