#!/usr/bin/env bash
# test-versions.sh all: every test on the system's PostgreSQL, and all that need a server on each
# of the other versions, with pg_upgrade to it. test-versions.sh another: those on one of the others, which the commit
# chooses; where that cannot be had, it says so and succeeds.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ -z "${PG_CONFIG:-}" ] || die "the versions are chosen here: PG_CONFIG has no meaning"

# 16 is in no release of Debian: make test PG_CONFIG=... for one from elsewhere.
others=(17 18 18-assert)
failed=()
summary=()

# on VERSION: the tests that need a server.
on() {
    local pg_config began=$SECONDS result=ok
    say "PostgreSQL $1"
    if ! pg_config=$("$ROOT/scripts/postgresql.sh" "$1"); then
        printf '\n!!! PostgreSQL %s cannot be had here: NOT TESTED on it\n\n' "$1" >&2
        result='NOT TESTED'
        missing=1
    elif ! PG_CONFIG=$pg_config "$ROOT/scripts/test.sh" servers demo; then
        result=FAILED
        failed+=("$1")
    elif [ -n "${upgrade_from:-}" ] && ! "$ROOT/scripts/test-upgrade.sh" "$upgrade_from" "$pg_config"; then
        result='FAILED: pg_upgrade'
        failed+=("pg_upgrade to $1")
    fi
    summary+=("$(printf '%-12s %12s  %s' "$1" "$(duration $((SECONDS - began)))" "$result")")
}

missing=0
case ${1:-} in
all)
    upgrade_from=$PG_SYSTEM/bin/pg_config
    "$ROOT/scripts/test.sh" || failed+=("$PG_MAJOR")
    for version in "${others[@]}"; do on "$version"; done
    # Before a release, all are needed.
    [ $missing -eq 0 ] || failed+=('what was not tested')
    ;;
another)
    commit=$(git rev-parse HEAD)
    version=${others[$((16#${commit:0:7} % ${#others[@]}))]}
    say "Commit ${commit:0:7} chooses PostgreSQL $version, of ${others[*]}"
    on "$version"
    ;;
*) die "test-versions.sh all|another" ;;
esac

echo
say "Versions, in $(duration $SECONDS)"
for line in "${summary[@]}"; do note "$line"; done
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
