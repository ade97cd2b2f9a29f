#!/usr/bin/env bash
# A hundred random events under 16 sessions, for ten minutes: kills, restarts, edits of
# tags. Fails where an id comes twice or out of order, is lost without a crash, or where a
# session hangs or gets an error that nothing explains.
# LEAF_ID_TORTURE_SECONDS changes how long at least, LEAF_ID_SEED repeats the events.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export LEAF_ID_TORTURE_SECONDS=${LEAF_ID_TORTURE_SECONDS:-600}
[[ $LEAF_ID_TORTURE_SECONDS =~ ^[0-9]{1,6}$ ]] || die "LEAF_ID_TORTURE_SECONDS is 0 to 999999"

"$ROOT/scripts/build.sh"
need_rust
locate_copy
export_test_env

log=$TARGET/torture.log
say "Torture: 100 events and $(duration "$LEAF_ID_TORTURE_SECONDS") at least (all of it goes to $log)"
cargo test --package leaf_id_tests --test behaviour -- --ignored --nocapture --exact \
    torture::a_hundred_events_in_ten_minutes_repeat_nothing 2>&1 </dev/null | tee "$log"
grep -q 'test result: ok\. 1 passed;' "$log" || die "no test ran"
say "Nothing was repeated, in $(duration $SECONDS)"
