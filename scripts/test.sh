#!/usr/bin/env bash
# test.sh TIER|STEP...: sets up, builds, and tests. Tiers are check, test and all; pgrx-tests/tiers
# lists the tests on real servers in each of them. Steps are lint, core, loom, shuttle, servers,
# demo, clients, and for a server built by scripts/postgresql.sh: postgresql, its own regression
# tests, and memcheck, ours under valgrind. Their tier is TIER, by default test. Continues after a failure. A step that
# runs no test fails. TESTS="lease segment::waits" runs only tests on real servers whose names start
# like that.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lint() { "$ROOT/scripts/lint.sh" && echo "test result: ok. 1 passed; 0 failed; 0 ignored"; }

# With the tests of the bench's arithmetic, which need no server, either; in tier all, with long
# simulations.
core() {
    [ "$tier" != all ] || export LEAF_ID_LONG=yes
    cargo test --package leaf_id_core --package leaf_id_bench
}

# Models take long, and rarely change: only tier all repeats them after a success. In a separate
# directory, since other flags would rebuild everything each time.
# models loom|shuttle PROFILE TEST FILE...: the models in TEST of the core and what is in FILE...
models() {
    local passed=$TARGET/$1/passed sum
    sum=$({
        cat Cargo.lock Cargo.toml src/core/Cargo.toml "${@:4}"
        find src/core/src -name '*.rs' | sort | xargs cat
        rustc --version
    } | cksum)
    if [ "$tier" != all ] && [ "$(cat "$passed" 2>/dev/null)" = "$sum" ]; then
        echo "unchanged since $1 has passed"
        echo "test result: ok. 1 passed; 0 failed; 0 ignored"
        return
    fi
    RUSTFLAGS="--cfg leaf_id_$1" CARGO_TARGET_DIR=$TARGET/$1 \
        cargo test --package leaf_id_core --profile "$2" --test "$3"
    echo "$sum" >"$passed"
}

loom() {
    models loom release loom_segment src/core/tests/loom_segment.rs
}

shuttle() {
    models shuttle schedules shmem_schedules src/core/tests/shmem_schedules{,/*}.rs src/shmem/*.rs
}

# Tests of the tier, or those named.
servers() {
    local program wanted=("$tier")
    [ -z "${TESTS:-}" ] || read -ra wanted <<<"$TESTS"
    export_test_env
    cargo test --package leaf_id_tests --lib
    program=$(cargo test --package leaf_id_tests --test behavior --no-run --message-format=json-render-diagnostics |
        sed -nE 's/.*"executable":"([^"]*\/behavior-[^"]*)".*/\1/p')
    "$TARGET/debug/runner" "$program" "$TARGET/$PG_NAME-times.tsv" "${wanted[@]}"
}

# A user's first impression must work. Counts as one test.
demo() {
    local status=0
    export LEAF_ID_DEMO_DIR LEAF_ID_DEMO_SECONDS=3
    LEAF_ID_DEMO_DIR=$(mktemp -u /tmp/leaf_id-demo.XXXXXX)
    "$ROOT/scripts/demo.sh" run || status=$?
    "$ROOT/scripts/demo.sh" stop || status=$?
    [ $status -ne 0 ] || echo "test result: ok. 1 passed; 0 failed; 0 ignored"
    return $status
}

# Clients whose packages install within seconds; in tier all, all of them. Clients whose packages
# are unavailable are skipped.
clients() {
    if [ "$tier" = all ]; then "$ROOT/scripts/test-clients.sh"; else "$ROOT/scripts/test-clients.sh" quick; fi
}

# With leaf_id loaded.
postgresql() {
    export_test_env
    cargo test --package leaf_id_tests --test behavior -- \
        --ignored --nocapture --exact sql::postgresqls_own_tests
}

# Regression tests, with an error for each byte that is read before it is written, or not ours.
memcheck() {
    export_test_env
    LEAF_ID_MEMCHECK=$(dirname "$PG_BIN")/valgrind.supp cargo test --package leaf_id_tests --test behavior -- \
        --nocapture --test-threads 1 sql::
}

title() {
    case $1 in
    lint) echo "lint" ;;
    core) echo "the core, without a server" ;;
    loom) echo "the double buffer under loom" ;;
    shuttle) echo "shared memory under shuttle" ;;
    servers) echo "real servers" ;;
    demo) echo "the demo" ;;
    clients) echo "drivers and ORMs" ;;
    postgresql) echo "PostgreSQL's own tests" ;;
    memcheck) echo "regression tests under memcheck" ;;
    *) die "no such test: $1 (check, test, all; lint, core, loom, shuttle, servers, demo, clients, postgresql, memcheck)" ;;
    esac
}

# count passed|failed|ignored LOG: number of tests with this result in the log.
count() {
    sed -nE "s/.*test result: [^0-9].* ([0-9]+) $1(;.*)?\$/\1/p" "$2" | awk '{ n += $1 } END { print n + 0 }'
}

run() {
    local name=$1 status=0 passed failed skipped server verdict began=$SECONDS log=$TARGET/test-$1.log
    say "Testing: $(title "$name")"
    # A subshell, so that set -e is effective inside; the status is the step's, not tee's.
    set +e
    (
        set -e
        "$name"
    ) 2>&1 </dev/null | tee "$log"
    status=${PIPESTATUS[0]}
    set -e
    passed=$(count passed "$log")
    # They report their number themselves, within a single test of ours.
    [ "$name" != postgresql ] || passed=$(sed -nE 's/.*All ([0-9]+) tests passed.*/\1/p' "$log" | tail -n 1)
    passed=${passed:-0}
    failed=$(count failed "$log")
    # What is unavailable here. Ignored tests of other steps are for other commands.
    skipped=0
    [[ $name != clients && $name != servers ]] || skipped=$(count ignored "$log")
    if [ "$status" -ne 0 ]; then
        verdict=FAILED
    elif [ "$passed" -eq 0 ]; then
        verdict='FAILED: no test ran'
    else
        verdict=ok
    fi
    [ "$verdict" = ok ] || failures=$((failures + 1))
    case $name in
    lint | core | loom | shuttle) server='no server' ;;
    *) server=$(server_name "$PG_BIN") ;;
    esac
    # bench/results/tested.md lists complete runs only.
    [ "$tier" != all ] || [ -n "${TESTS:-}${LEAF_ID_PARTITION:-}" ] || record "$(title "$name")" "$server" "$passed" "$failed" "$skipped" "$verdict"
    [ "$skipped" -eq 0 ] || verdict="$verdict, $skipped skipped"
    summary+=("$(printf '%-30s %5d passed  %10s  %s' "$(title "$name")" "$passed" \
        "$(duration $((SECONDS - began)))" "$verdict")")
}

tier=${TIER:-test}
steps=()
for word; do
    case $word in
    check) tier=check steps+=(lint core servers) ;;
    test) tier=test steps+=(core loom shuttle servers demo clients) ;;
    all) tier=all steps+=(core loom shuttle servers demo clients) ;;
    *) title "$word" >/dev/null && steps+=("$word") ;;
    esac
done
[ -z "${TESTS:-}" ] || steps=(servers)
[ ${#steps[@]} -gt 0 ] || die "test.sh check|test|all, or steps: lint core loom shuttle servers demo clients postgresql memcheck"

"$ROOT/scripts/setup.sh" tests
need_rust
locate_copy
case " ${steps[*]} " in *' servers '* | *' demo '* | *' clients '* | *' postgresql '* | *' memcheck '*) "$ROOT/scripts/build.sh" ;; esac

failures=0
summary=()
for step in "${steps[@]}"; do run "$step"; done

echo
say "Tests, in $(duration $SECONDS)"
for line in "${summary[@]}"; do note "$line"; done
# Failures last, since they need attention.
if [ $failures -ne 0 ]; then
    for step in "${steps[@]}"; do
        sed -nE '/^FAILED  |^ {8}its server and log: /p' "$TARGET/test-$step.log"
    done
    exit 1
fi
