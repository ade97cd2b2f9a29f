#!/usr/bin/env bash
# test-versions.sh all: every test of tier all on the system's PostgreSQL, and those that need a
# server on each of the other versions, with pg_upgrade to it; PostgreSQL's own tests on all of
# them. 19, and what cannot be built here, is tested in a bare Debian that has its packages, without
# these two, except for pg_upgrade to 19: that takes root and debootstrap. test-versions.sh another:
# tests of tier test that need a server, on one of the others, chosen by the commit; if none is
# available, reports that and succeeds.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ -z "${PG_CONFIG:-}${TESTS:-}${STEPS:-}" ] || die "the versions and tests are chosen here: PG_CONFIG, TESTS and STEPS have no meaning"

others=(16 17 18 18-assert)
failed=()
summary=()
# Versions that cannot be built here.
missing=()

summarize() { summary+=("$(printf '%-18s %12s  %s' "$1" "$(duration "$2")" "$3")"); }

# on VERSION STEP...: runs these steps of scripts/test.sh.
on() {
    local version=$1 pg_config began=$SECONDS result=ok status=0
    shift
    say "PostgreSQL $version"
    pg_config=$("$ROOT/scripts/postgresql.sh" "$version") || status=$?
    if [ $status -eq $UNAVAILABLE ]; then
        printf '\n!!! PostgreSQL %s cannot be built here: NOT TESTED on it\n\n' "$version" >&2
        result='NOT TESTED'
        missing+=("$version")
    elif [ $status -ne 0 ] || ! PG_CONFIG=$pg_config "$ROOT/scripts/test.sh" "$@"; then
        result=FAILED
        failed+=("$version")
    elif [ -n "${upgrade_from:-}" ] && ! "$ROOT/scripts/test-upgrade.sh" "$upgrade_from" "$pg_config"; then
        result='FAILED: pg_upgrade'
        failed+=("pg_upgrade to $version")
    fi
    summarize "$version" $((SECONDS - began)) "$result"
}

# in_debian VERSION STEP...: the same in a bare Debian.
in_debian() {
    local version=$1 suite began=$SECONDS result=ok targets=(test)
    shift
    case $version in
    17) suite=trixie ;;
    18) suite=forky ;;
    19) suite=experimental targets+=(test-upgrade) ;;
    *) suite= ;;
    esac
    if [ -z "$suite" ] || ! is_root || ! command -v debootstrap >/dev/null; then
        result='NOT TESTED'
        failed+=("$version, which was not tested")
    elif ! STEPS="$*" PG_MAJOR=$version "$ROOT/scripts/test-from-nothing.sh" $suite "${targets[@]}"; then
        result=FAILED
        failed+=("$version, $suite")
    fi
    summarize "$version, ${suite:-no Debian}" $((SECONDS - began)) "$result"
}

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
    for version in "${missing[@]}" 19; do in_debian "$version" servers demo; done
    ;;
another)
    commit=$(git rev-parse HEAD)
    first=$((16#${commit:0:7} % ${#others[@]}))
    say "Commit ${commit:0:7} chooses PostgreSQL ${others[$first]}, of ${others[*]}"
    # The next one if the mirror lacks its sources.
    for version in "${others[@]:first}" "${others[@]:0:first}"; do
        missing=()
        on "$version" servers demo
        [ ${#missing[@]} -ne 0 ] || break
    done
    ;;
*) die "test-versions.sh all|another" ;;
esac

echo
say "Versions, in $(duration $SECONDS)"
for line in "${summary[@]}"; do note "$line"; done
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
