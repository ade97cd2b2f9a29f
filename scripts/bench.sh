#!/usr/bin/env bash
# Compares leaf_id with other generators of ids in PostgreSQL, on private servers that are stopped
# at the end. Runs all sections, or those given: one-session one-row bulk sessions latency start-up.
# The report is written to standard output and, with all figures (results.json), to target/bench. A
# complete run takes about 40 minutes and, if nothing fails, replaces bench/results/VERSION.
# LEAF_ID_BENCH=quick takes a few minutes, with rough figures. LEAF_ID_BENCH_ROUNDS sets the number
# of rounds (default: 7; 3 in a quick run). PGEDGE is the path of the source of pgEdge's extension
# snowflake, which is measured beside; without it, the report says that it was not.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Standard output is reserved for the report.
"$ROOT/scripts/build.sh" >&2
need_rust
locate_copy
export_test_env
# Into the copy of PostgreSQL, from a copy of the source.
if [ -n "${PGEDGE:-}" ]; then
    pgedge=$TARGET/pgedge-$PG_NAME
    rm -rf "$pgedge"
    cp -r "$PGEDGE" "$pgedge"
    # From another make, its own would take variables.
    env -u MAKEFLAGS -u MAKEOVERRIDES make --silent --directory="$pgedge" USE_PGXS=1 PG_CONFIG="$PG_BIN/pg_config" install \
        >"$pgedge.log" 2>&1 || die "pgEdge's extension could not be built: see $pgedge.log"
fi
cargo build --release --package leaf_id_bench
LEAF_ID_COMMIT=$(git describe --always --dirty 2>/dev/null || echo unknown)
export LEAF_ID_COMMIT
# In a separate session: an interrupt must not reach the servers before the bench has exited, which
# removes running servers with their data.
setsid "$TARGET/release/leaf_id_bench" "$@" &
trap 'kill $!' INT TERM HUP
wait $!
