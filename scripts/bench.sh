#!/usr/bin/env bash
# Measures leaf_id beside what PostgreSQL has, on private servers that end with it: all
# sections, or those named: one-session one-row bulk sessions snowflake latency start-up.
# A whole run takes about 40 minutes and is kept in bench/results, if nothing fails;
# anything less goes to target/bench. LEAF_ID_BENCH=quick takes a few minutes, its figures are rough.
# LEAF_ID_BENCH_ROUNDS changes how many rounds count (7; 3 in a quick run).

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
exec "$TARGET/release/leaf_id_bench" "$@"
