#!/usr/bin/env bash
# Random events under 16 sessions on one server, for ten minutes: kills, restarts, and bursts of
# edits of tags, which make thousands. Then the same in a fleet of three servers and a central pair,
# with network failures. Then a minute each in which the central server dies and its standby takes
# over, with synchronous and with asynchronous replication. Then a crash every second for a minute.
# Finally two minutes of random SQL by sqlsmith, if installed. Fails if an id is issued twice or out
# of order, is lost without a crash, or if a session hangs or gets an unexplained error.
# LEAF_ID_TORTURE_SECONDS sets the minimum duration of the first two, LEAF_ID_SEED repeats the events.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export LEAF_ID_TORTURE_SECONDS=${LEAF_ID_TORTURE_SECONDS:-600}
[[ $LEAF_ID_TORTURE_SECONDS =~ ^[0-9]{1,6}$ ]] || die "LEAF_ID_TORTURE_SECONDS is 0 to 999999"

"$ROOT/scripts/build.sh"
need_rust
locate_copy
export_test_env

log=$TARGET/torture.log
tests=(
    torture::server::events_for_ten_minutes_repeat_nothing
    torture::fleet::events_in_a_fleet_for_ten_minutes_repeat_nothing
    slow::central_failover::a_synchronous_pair_fails_over_in_a_minute_under_load
    slow::central_failover::an_asynchronous_pair_fails_over_in_a_minute_under_load
    slow::never_waits::a_crash_every_second_leaves_no_second_without_ids
    torture::sqlsmith::random_statements_crash_nothing
)
say "Torture: every event, and $(duration "$LEAF_ID_TORTURE_SECONDS") at least, on one server and in a fleet (all of it goes to $log)"
# One after the other, so that each has the machine to itself.
cargo test --package leaf_id_tests --test behavior -- --include-ignored --nocapture --exact --test-threads 1 \
    "${tests[@]}" 2>&1 </dev/null | tee "$log"
grep -q "test result: ok\. ${#tests[@]} passed;" "$log" || die "not all tests ran"
! grep -q SKIPPED "$log" || note "!!! BUT SQLSMITH IS MISSING: no random statements were run"
say "Nothing was repeated, in $(duration $SECONDS)"
