#!/usr/bin/env bash
# Compares leaf_id with other generators of ids in PostgreSQL, on private servers that are stopped
# at the end. Runs all sections, or those given: one-session one-row bulk sessions latency start-up.
# The report is written to standard output and, with all figures (results.json), to target/bench. A
# complete run takes about 40 minutes and, if nothing fails, replaces bench/results/VERSION.
# LEAF_ID_BENCH=quick takes a few minutes, with rough figures. LEAF_ID_BENCH_ROUNDS sets the number
# of rounds (default: 7; 3 in a quick run).

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Standard output is reserved for the report.
"$ROOT/scripts/build.sh" >&2
need_rust
locate_copy
export_test_env
cargo build --release --package leaf_id_bench
LEAF_ID_COMMIT=$(git describe --always --dirty 2>/dev/null || echo unknown)
export LEAF_ID_COMMIT
# In a separate session: an interrupt must not reach the servers before the bench has exited, which
# removes running servers with their data.
setsid "$TARGET/release/leaf_id_bench" "$@" &
trap 'kill $!' INT TERM HUP
wait $!
