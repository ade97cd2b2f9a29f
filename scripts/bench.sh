#!/usr/bin/env bash
# Compares leaf_id with what else issues ids in PostgreSQL, on private servers that it stops at
# its end: all sections, or those named: one-session one-row bulk sessions latency start-up.
# The report goes to standard output and, with all figures (results.json), to target/bench. A
# complete run takes about 40 minutes and, if nothing fails, replaces bench/results.
# LEAF_ID_BENCH=quick takes a few minutes; its figures are rough. LEAF_ID_BENCH_ROUNDS changes
# how many rounds count (7; 3 in a quick run).

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Standard output is the report's.
"$ROOT/scripts/build.sh" >&2
need_rust
locate_copy
export_test_env
cargo build --release --package leaf_id_bench
LEAF_ID_COMMIT=$(git describe --always --dirty 2>/dev/null || echo unknown)
export LEAF_ID_COMMIT
# In a session of its own: an interrupt must not reach the servers before the bench has ended,
# since what it leaves running is removed with its data.
setsid "$TARGET/release/leaf_id_bench" "$@" &
trap 'kill $!' INT TERM HUP
wait $!
