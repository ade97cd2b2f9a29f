#!/usr/bin/env bash
# Writes docs/tested.md: what the tests have come to last, on each PostgreSQL, from the results that
# they leave in target/results.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

results=$TARGET/results/tests.tsv
[ -s "$results" ] || die "there are no results in $results" "The tests write them: make test, make test-all-versions"
{
    cat <<'END'
# What was tried

The last result of each test on each PostgreSQL. This page is written by `make matrix`, from what
`make test`, `make test-all-versions` and `make test-upgrade` leave behind; do not edit it. "(changed)": with
changes that were not committed.

| PostgreSQL | what | passed | failed | skipped | result | on | commit | date |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
END
    # The last line of each server and test counts.
    tac "$results" | awk -F '\t' '!seen[$1, $2, $7]++' | sort -t "$(printf '\t')" -k 1,1V -k 2,2 | sed 's/\t/ | /g; s/^/| /; s/$/ |/'
} >docs/tested.md
note "docs/tested.md has $(grep -c '^| ' docs/tested.md) lines"
