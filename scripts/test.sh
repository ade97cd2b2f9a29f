#!/usr/bin/env bash
# Sets up, builds, and runs every test, or those named: core loom servers demo clients, and
# postgresql, PostgreSQL's own regression tests, for a server that scripts/postgresql.sh has built.
# Goes on after a failure, and fails where a step ran no test at all.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# With the arithmetic of the bench, which needs no server either.
core() { cargo test --package leaf_id_core --package leaf_id_bench; }

# In a directory of its own: other flags would rebuild everything each time.
loom() {
    RUSTFLAGS='--cfg leaf_id_loom' CARGO_TARGET_DIR=$TARGET/loom \
        cargo test --package leaf_id_core --release --test loom_segment
}

servers() {
    export_test_env
    cargo test --package leaf_id_tests
}

# The first thing that people see has to work. It counts as one test.
demo() {
    local status=0
    export LEAF_ID_DEMO_DIR LEAF_ID_DEMO_SECONDS=3
    LEAF_ID_DEMO_DIR=$(mktemp -u /tmp/leaf_id-demo.XXXXXX)
    "$ROOT/scripts/demo.sh" run || status=$?
    "$ROOT/scripts/demo.sh" stop || status=$?
    [ $status -ne 0 ] || echo "test result: ok. 1 passed; 0 failed; 0 ignored"
    return $status
}

# Those whose packages install in seconds; one whose packages cannot be had is skipped.
clients() { "$ROOT/scripts/test-clients.sh" quick; }

# With leaf_id loaded.
postgresql() {
    export_test_env
    cargo test --package leaf_id_tests --test behavior -- \
        --ignored --nocapture --exact operations::regress::postgresqls_own_tests
}

title() {
    case $1 in
    core) echo "the core, without a server" ;;
    loom) echo "the double buffer under loom" ;;
    servers) echo "real servers" ;;
    demo) echo "the demo" ;;
    clients) echo "drivers and ORMs" ;;
    postgresql) echo "PostgreSQL's own tests" ;;
    *) die "no such test: $1 (core, loom, servers, demo, clients, postgresql)" ;;
    esac
}

# count passed|failed|ignored LOG: how many tests it reports as that.
count() {
    sed -nE "s/.*test result: [^0-9].* ([0-9]+) $1(;.*)?\$/\1/p" "$2" | awk '{ n += $1 } END { print n + 0 }'
}

run() {
    local name=$1 status=0 passed skipped server began=$SECONDS log=$TARGET/test-$1.log
    say "Testing $(title "$name")"
    # A subshell, so that set -e holds inside; the status is the step's, not tee's.
    set +e
    (
        set -e
        "$name"
    ) 2>&1 </dev/null | tee "$log"
    status=${PIPESTATUS[0]}
    set -e
    passed=$(count passed "$log")
    # They say by themselves how many they are, in one test of ours.
    [ "$name" != postgresql ] || passed=$(sed -nE 's/.*All ([0-9]+) tests passed.*/\1/p' "$log" | tail -n 1)
    passed=${passed:-0}
    skipped=$(count ignored "$log")
    if [ "$status" -ne 0 ]; then
        verdict=FAILED
    elif [ "$passed" -eq 0 ]; then
        verdict='FAILED: no test ran'
    else
        verdict=ok
    fi
    [ "$verdict" = ok ] || failures=$((failures + 1))
    case $name in
    core | loom) server='no server' ;;
    *) server=$(server_name "$PG_BIN") ;;
    esac
    record "$(title "$name")" "$server" "$passed" "$(count failed "$log")" "$skipped" "$verdict"
    [ "$skipped" -eq 0 ] || verdict="$verdict, BUT $skipped SKIPPED"
    summary+=("$(printf '%-30s %5d passed  %10s  %s' "$(title "$name")" "$passed" \
        "$(duration $((SECONDS - began)))" "$verdict")")
}

steps=("$@")
[ $# -gt 0 ] || steps=(core loom servers demo clients)
for step in "${steps[@]}"; do title "$step" >/dev/null; done

"$ROOT/scripts/setup.sh" tests
need_rust
locate_copy
case " ${steps[*]} " in *' servers '* | *' demo '* | *' clients '* | *' postgresql '*) "$ROOT/scripts/build.sh" ;; esac

failures=0
summary=()
for step in "${steps[@]}"; do run "$step"; done

echo
say "Tests, in $(duration $SECONDS)"
for line in "${summary[@]}"; do note "$line"; done
[ $failures -eq 0 ]
