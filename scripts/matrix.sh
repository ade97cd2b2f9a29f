#!/usr/bin/env bash
# matrix.sh writes bench/results/tested.md: the last result of each test on each PostgreSQL with
# these sources, from target/results and from the page itself. matrix.sh check fails if the page has
# a failure or a result of other sources, or not each of the tests that a release needs.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

results=$TARGET/results/tests.tsv
page=bench/results/tested.md

on_page() { sed -n '/^| [^-]/{ s/^| //; s/ |$//; s/ | /\t/g; p; }' $page | tail -n +2; }

# Those of stdin that these sources have.
of_these_sources() {
    local row commit
    declare -A same=()
    while IFS= read -r row; do
        commit=$(cut -f 8 <<<"$row")
        commit=${commit%, packages}
        if [ -z "${same[$commit]:-}" ]; then
            same[$commit]=no
            # Not one of a checkout that was changed, or that is gone.
            if [[ $commit != *' '* ]] && git diff --quiet "$commit" -- "${TESTED[@]}" 2>/dev/null; then same[$commit]=yes; fi
        fi
        [ ${same[$commit]} = no ] || printf '%s\n' "$row"
    done
}

case ${1:-} in
'')
    [ -s "$results" ] || die "there are no results in $results" "The tests write them: make test-all"
    # The last result per server, test and architecture counts.
    rows=$({ on_page && cat "$results"; } | of_these_sources | sort -s -t "$(printf '\t')" -k 9,9 | tac |
        awk -F '\t' '!seen[$1, $2, $7]++' | sort -t "$(printf '\t')" -k 1,1V -k 2,2)
    [ -n "$rows" ] || die "there are no results of these sources in $results" "The tests write them: make test-all"
    {
        cat <<'END'
# What was tried

The last result of each test on each PostgreSQL, with the sources of this commit. This page is written
by `make matrix`, from what the make targets leave behind; do not edit it.

| PostgreSQL | what | passed | failed | skipped | result | on | commit | date |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
END
        sed 's/\t/ | /g; s/^/| /; s/$/ |/' <<<"$rows"
    } >$page
    note "$page has $(wc -l <<<"$rows") results"
    ;;
check)
    rows=$(on_page)
    old=$(comm -23 <(sort <<<"$rows") <(of_these_sources <<<"$rows" | sort))
    [ -z "$old" ] || die "$page has results of other sources" "$old"
    failures=$(awk -F '\t' '$6 !~ /^ok/' <<<"$rows")
    [ -z "$failures" ] || die "$page has failures" "$failures"
    missing=()
    # want SERVER WHAT: a row, by regular expressions.
    want() { grep -qE "^$1	$2	" <<<"$rows" || missing+=("$1: $2"); }
    for what in 'the core, without a server' 'the double buffer under loom' 'shared memory under shuttle'; do want 'no server' "$what"; done
    for version in $(versions); do
        want "$version(\.|rc|beta|~)[^	]*" 'real servers'
        want "$version(\.|rc|beta|~)[^	]*" 'the demo'
    done
    released=$(versions | head -n -1)
    newest=$(tail -n 1 <<<"$released")
    for version in $released; do want "$version\.[0-9]+" "PostgreSQL's own tests"; done
    for version in $(tail -n +2 <<<"$released"); do want "$version\.[^	]*" 'pg_upgrade from [^	]*'; done
    want "$newest\.[0-9]+ with assertions" 'real servers'
    want "$newest\.[0-9]+ with assertions" 'regression tests under memcheck'
    mapfile -t others < <(sed -nE 's/^ *what="([^"]*)".*/\1/p' scripts/test-operations.sh)
    for what in 'drivers and ORMs' "${others[@]}"; do want '[0-9]+\.[^	]*' "$what"; done
    want '[^	]*' "the server's image without Docker, in a bare [a-z]+"
    # Known by its commit, since test-upgrade.sh records it.
    want '[^	]*' 'pg_upgrade from [^	]*	.*, packages'
    [ ${#missing[@]} -eq 0 ] || die "$page has no row of" "${missing[@]}"
    ;;
*) die "matrix.sh [check]" ;;
esac
