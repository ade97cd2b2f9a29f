#!/usr/bin/env bash
# test-versions.sh all: every test of tier all on the system's PostgreSQL, and those that need a
# server on each of the other versions, with pg_upgrade to it; PostgreSQL's own tests on all of
# them. test-versions.sh another: tests of tier test that need a server, on one of the others,
# chosen by the commit; if none is available, reports that and succeeds.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ -z "${PG_CONFIG:-}${TESTS:-}" ] || die "the versions and tests are chosen here: PG_CONFIG and TESTS have no meaning"

# 16 is in no release of Debian: use make test PG_CONFIG=... for one from elsewhere.
others=(17 18 18-assert)
failed=()
summary=()

# on VERSION STEP...: runs these steps of scripts/test.sh.
on() {
    local version=$1 pg_config began=$SECONDS result=ok status=0
    shift
    say "PostgreSQL $version"
    pg_config=$("$ROOT/scripts/postgresql.sh" "$version") || status=$?
    if [ $status -eq $UNAVAILABLE ]; then
        printf '\n!!! PostgreSQL %s is not available here: NOT TESTED on it\n\n' "$version" >&2
        result='NOT TESTED'
        missing=1
    elif [ $status -ne 0 ] || ! PG_CONFIG=$pg_config "$ROOT/scripts/test.sh" "$@"; then
        result=FAILED
        failed+=("$version")
    elif [ -n "${upgrade_from:-}" ] && ! "$ROOT/scripts/test-upgrade.sh" "$upgrade_from" "$pg_config"; then
        result='FAILED: pg_upgrade'
        failed+=("pg_upgrade to $version")
    fi
    summary+=("$(printf '%-12s %12s  %s' "$version" "$(duration $((SECONDS - began)))" "$result")")
}

missing=0
case ${1:-} in
all)
    export TIER=all
    "$ROOT/scripts/test.sh" all || failed+=("$PG_MAJOR")
    # Debian's PostgreSQL has no regression tests.
    on "$PG_MAJOR" postgresql
    upgrade_from=$PG_SYSTEM/bin/pg_config
    for version in "${others[@]}"; do on "$version" servers demo postgresql; done
    upgrade_from=
    on 18-memcheck memcheck
    # A release requires all of them.
    [ $missing -eq 0 ] || failed+=('what was not tested')
    ;;
another)
    commit=$(git rev-parse HEAD)
    first=$((16#${commit:0:7} % ${#others[@]}))
    say "Commit ${commit:0:7} chooses PostgreSQL ${others[$first]}, of ${others[*]}"
    # The next one if the mirror lacks its sources.
    for version in "${others[@]:first}" "${others[@]:0:first}"; do
        missing=0
        on "$version" servers demo
        [ $missing -ne 0 ] || break
    done
    ;;
*) die "test-versions.sh all|another" ;;
esac

echo
say "Versions, in $(duration $SECONDS)"
for line in "${summary[@]}"; do note "$line"; done
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
