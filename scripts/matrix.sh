#!/usr/bin/env bash
# Writes bench/results/tested.md: the last test results on each PostgreSQL, from target/results, and
# for tests not run since, from the page itself.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

results=$TARGET/results/tests.tsv
page=bench/results/tested.md
[ -s "$results" ] || die "there are no results in $results" "The tests write them: make test-all"
# The last result per server, test and architecture counts.
rows=$({
    sed -n '/^| [^-]/{ s/^| //; s/ |$//; s/ | /\t/g; p; }' $page | tail -n +2
    cat "$results"
} | sort -s -t "$(printf '\t')" -k 9,9 | tac | awk -F '\t' '!seen[$1, $2, $7]++' | sort -t "$(printf '\t')" -k 1,1V -k 2,2)
{
    cat <<'END'
# What was tried

The last result of each test on each PostgreSQL. This page is written by `make matrix`, from what
the make targets leave behind; do not edit it. "(changed)": with changes that were not committed.

| PostgreSQL | what | passed | failed | skipped | result | on | commit | date |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
END
    sed 's/\t/ | /g; s/^/| /; s/$/ |/' <<<"$rows"
} >$page
note "$page has $(wc -l <<<"$rows") results"
