#!/usr/bin/env bash
# night.sh [SECONDS [VERSION...]]: everything random, and bench/results/night.md with what it has
# met. SECONDS (7200) of torture, of one server and of a fleet at once, shared by the versions of
# PostgreSQL: the one to develop with, and 18-assert, which is left out where its sources are not
# available. Long explorations, loom and shuttle run beside it, at the lowest priority: they
# compute, and wait for nothing. Then histories of the explorer of rows on each version and
# statements of hostile roles, beside allocations that fail and the tests of worker ids, some of whose
# branches random events hardly reach. After an hour or more of torture, each branch that is marked by
# sometimes! must have been reached. A part that fails does not end the night; its output stays in
# target/night, and the page stays as it was. A night that was interrupted, or had such a part, goes
# on with the parts that have not passed, if no source has changed.

# Before lib.sh: it chooses the library that counts branches.
LEAF_ID_SOMETIMES=$(mktemp /tmp/leaf_id-branches.XXXXXX)
export LEAF_ID_SOMETIMES
trap 'rm -f "$LEAF_ID_SOMETIMES"' EXIT
truncate -s 32768 "$LEAF_ID_SOMETIMES"
chmod 666 "$LEAF_ID_SOMETIMES"
# Also the torture in the background, which an interrupt does not reach.
trap 'trap - INT TERM HUP; kill 0' INT TERM HUP
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

seconds=${1:-7200}
[[ $seconds =~ ^[0-9]{1,6}$ ]] || die "night.sh [SECONDS [VERSION...]]"
versions=("${@:2}")
[ ${#versions[@]} -gt 0 ] || versions=("$PG_MAJOR" 18-assert)
own=${PG_CONFIG:-}
page=bench/results/night.md
out=$TARGET/night
# A short one is for trying this script.
is_long=$((seconds >= 3600))
[ $is_long = 0 ] || export LEAF_ID_LONG=yes
export LEAF_ID_TORTURE_SECONDS=$((seconds / ${#versions[@]}))
need_rust

# The sources and the arguments, which are not to change until the end. Prose may.
sources() {
    {
        git ls-tree -r HEAD | grep -vP '\t(docs|bench/results)/'
        git diff HEAD -- . ':!docs' ':!bench/results'
        echo "$seconds ${versions[*]}"
    } | cksum
}
begun_with=$(sources)
if [ "$(cat "$out/sources" 2>/dev/null)" = "$begun_with" ]; then
    [ ! -s "$out/branches" ] || cat "$out/branches" >"$LEAF_ID_SOMETIMES"
else
    rm -rf "$out"
    mkdir -p "$out"
    echo "$begun_with" >"$out/sources"
fi
commit=$(git rev-parse --short=7 HEAD)$(git diff --quiet HEAD || echo ' (changed)')

# True if the part of this name has passed.
passed() { grep -qsP "^$1\t[0-9]+\t0$" "$out/parts.tsv"; }

# part NAME COMMAND...: runs one, with its output in a file of this name. One that runs no test fails.
part() {
    local name=$1 began=$SECONDS status=0
    shift
    passed "$name" && return
    "$@" >"$out/$name.log" 2>&1 </dev/null || status=$?
    grep -qE '^test result: ok\. [1-9]' "$out/$name.log" || status=1
    # It may have found what the next attempt does not: the page names it.
    [ $status -eq 0 ] || cp "$out/$name.log" "$out/failed-$name-$(date --utc +%H%M%S).log"
    printf '%s\t%d\t%d\n' "$name" $((SECONDS - began)) $status >>"$out/parts.tsv"
    cp "$LEAF_ID_SOMETIMES" "$out/branches.$BASHPID"
    mv "$out/branches.$BASHPID" "$out/branches"
    note "$name: $(duration $((SECONDS - began)))$([ $status -eq 0 ] || echo ", FAILED: see $out/$name.log")"
}
behavior() {
    cargo test --package leaf_id_tests --test behavior -- --include-ignored --nocapture --test-threads 1 "$@"
}
loom() {
    RUSTFLAGS='--cfg leaf_id_loom' CARGO_TARGET_DIR=$TARGET/loom \
        cargo test --package leaf_id_core --release --test loom_segment -- --nocapture
}
shuttle() {
    RUSTFLAGS='--cfg leaf_id_shuttle' CARGO_TARGET_DIR=$TARGET/shuttle \
        cargo test --package leaf_id_core --profile schedules --test shmem_schedules -- --nocapture
}

# use VERSION: builds for this version, and lets the following parts run on it.
use() {
    local environment
    if [ "$1" = "$PG_MAJOR" ]; then
        PG_CONFIG=$own
    else
        PG_CONFIG=$("$ROOT/scripts/postgresql.sh" "$1") || return
    fi
    export PG_CONFIG
    "$ROOT/scripts/build.sh" || return
    environment=$("$ROOT/scripts/env.sh") || return
    eval "$environment"
}

servers=()
usable=()
wanted=(explorers loom shuttle effects worker-ids)
say "A night of $(duration "$seconds") of torture, on PostgreSQL ${versions[*]}"
for version in "${versions[@]}"; do
    status=0
    use "$version" || status=$?
    [ $status -ne $UNAVAILABLE ] || { note "no PostgreSQL $version here" && continue; }
    [ $status -eq 0 ] || die "PostgreSQL $version could not be built"
    servers+=("$(server_name "$LEAF_ID_PG_BIN")")
    usable+=("$version")
    wanted+=("torture-server-$version" "torture-fleet-$version" "histories-$version")
done
[ ${#servers[@]} -gt 0 ] || die "there is no server to torture"
cargo test --quiet --package leaf_id_tests --test behavior --no-run

{
    renice --priority 19 --pid $BASHPID >/dev/null
    part explorers cargo test --package leaf_id_core -- --nocapture
    part loom loom
    part shuttle shuttle
} &
for version in "${usable[@]}"; do
    use "$version"
    part "torture-server-$version" behavior --exact torture::server::events_for_ten_minutes_repeat_nothing &
    part "torture-fleet-$version" behavior --exact torture::fleet::events_in_a_fleet_for_ten_minutes_repeat_nothing
    wait $!
done
{
    for version in "${usable[@]}"; do
        use "$version"
        part "histories-$version" behavior slow::explored
    done
    part effects behavior security::effects
} &
# Not with assertions, PostgreSQL's own of which do not hold without memory.
if [[ " ${usable[*]} " = *" $PG_MAJOR "* ]]; then
    wanted+=(memory)
    use "$PG_MAJOR"
    part memory behavior slow::memory
fi
part worker-ids behavior lease:: snowflake:: slow::registry
wait
if [ $is_long = 1 ]; then
    wanted+=(branches)
    part branches behavior --exact torture::branches::each_branch_was_reached
fi

# What the logs of the tortures say, as rows of a table.
figures() {
    awk '
        # Counts may have more digits than an integer of mawk.
        BEGIN { OFMT = CONVFMT = "%.15g" }
        /^[a-z]/ { part = $1 }
        /^events: / { events += $2 }
        part == "events:" && NF == 2 && /^ / { times[$1] += $2 }
        /^ids, none of them twice: / { ids += $NF }
        part == "ids" && /^ids lost/ { part = "lost" }
        part == "lost" && /^ / { count = $NF; $NF = ""; lost[$0] += count }
        part == "first" && /^ / {
            for (i = 9; i < NF; i += 2) {
                if ($i == "call") { if ($(i + 1) > call[$1]) call[$1] = $(i + 1) }
                else if ($(i + 1) > longest[$1]) { longest[$1] = $(i + 1); kind[$1] = $i }
            }
        }
        END {
            before += events
            print "Hostile events in all nights: **" before "**.\n"
            print "| the last night | |\n| --- | --- |"
            print "| date, commit | " today ", " commit " |\n| servers | " servers " |"
            print "| seconds of torture | " seconds " |"
            print "| hostile events | " events " |\n| ids | " ids " |\n| ids issued twice | 0 |"
            fflush()
            for (i in lost) print "| ids lost " i "| " lost[i] " |" | "sort"
            close("sort")
            print "| histories and states explored | " states " |\n| marked branches reached | " branches " |"
            print "| seconds of each part | " parts " |"
            print "| parts that failed before they passed | " failures " |"
            print "\n| event | times | longest time to the next id, ms | of | longest call during it, ms |"
            print "| --- | --- | --- | --- | --- |"
            fflush()
            for (i in times) print "| " i " | " times[i] " | " longest[i] + 0 " | " (i in kind ? kind[i] : "-") " | " call[i] + 0 " |" | "sort"
        }' before="$(sed -nE 's/^Hostile events in all nights: \*\*([0-9]+)\*\*\.$/\1/p' "$page")" \
        today="$(date --utc +%F)" servers="$(printf '%s, ' "${servers[@]}" | sed 's/, $//')" \
        commit="$commit" seconds="$seconds" \
        states="$(grep -ohE '[0-9]+ (worlds|random histories)' "$out/explorers.log" | awk '{ n += $1 } END { printf "%.0f", n }')" \
        branches="$(awk '/^  [a-z].* [0-9]+$/ { n++; if ($NF > 0) reached++ } END { print reached + 0 " of " n + 0 }' "$out/branches.log")" \
        parts="$(awk -F '\t' '$3 == 0 { printf "%s%s %d", (n++ ? ", " : ""), $1, $2 }' "$out/parts.tsv")" \
        failures="$(awk -F '\t' '$3 != 0 { printf "%s%s", (n++ ? ", " : ""), $1 } END { if (!n) printf "none" }' "$out/parts.tsv")" \
        "$out"/torture-*.log
}

for name in "${wanted[@]}"; do
    passed "$name" || die "$name failed: see $out"
done
if [ $is_long = 0 ]; then
    say "Nothing was repeated, in $(duration $SECONDS); too short for $page"
    exit
fi
[ "$(sources)" = "$begun_with" ] || die "the sources have changed since it began"
new=$(figures)
rm "$out/sources"
perl -0777 -pi -e 'BEGIN { $new = shift } s/(<!-- night -->\n).*(<!-- end of night -->)/$1\n$new\n\n$2/s' "$new" "$page"
say "Nothing was repeated, in $(duration $SECONDS): see $page"
