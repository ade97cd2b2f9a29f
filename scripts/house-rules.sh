#!/usr/bin/env bash
# Import rules between modules, and text that no file may contain. house-rules.sh checks the
# sources; house-rules.sh --self-test plants each violation in a small tree, and expects it to be
# reported.
#
# A rule is one line:
#   forbid NAME VIEW PATTERN PLACES ALLOWED REASON
#   exist NAME PLACES REASON
# VIEW     code (comments and string literals blanked), text (comments blanked), all
# PATTERN  a Perl regular expression, matched line by line
# PLACES   paths of directories, of which the sources are checked, or of files, also as patterns
# ALLOWED  exempted rooms: "pg" is src/pg.rs and all of src/pg/, "pgrx-tests/sql" all of that
# exist: each `module::test` that these texts name is a function, or a file, in a file or a directory
# of that name.
# After a change, add a violation of the rule to self_test.

set -euo pipefail
export LC_ALL=C.UTF-8

rules() {
    # Not included: rules that rustc, clippy and Cargo.toml already enforce, such as no unsafe code,
    # no unwrap, and no PostgreSQL in the core or in the tests.
    forbid core-without-clock code 'std::time|\bInstant\b|\bSystemTime\b' 'src/core/src' '' \
        'time is an argument of the core, so its tests choose it'
    forbid pg_sys-rooms code '\bpg_sys\b' "$extension" \
        'lib shmem pg api worker error guc remote/libpq remote/foreign_server' \
        'other rooms use the safe wrappers of pg.rs'
    forbid sql code '\bSpi\b|\bSPI_(?!inside)\w+|\bspi::' "$extension" '' \
        'rows are read and written by oid, through src/pg/table'
    forbid rows code '\bCatalogTuple\w+|\btable_tuple_(?!get_latest|fetch)\w+|\b(simple_)?heap_(insert|update|delete)\b|\bindex_insert\b' "$extension" 'pg/table/write' \
        'src/pg/table/write.rs alone writes rows: it has compared the table with its shape'
    forbid claims code '\bclaim::(\{[^}]*\b)?(claim|receive)' "$extension" 'tags worker api' \
        'segments are claimed by the allocator, or for another server'
    forbid shared-locks code '\bparking_lot\b' 'src/shmem.rs src/shmem' '' \
        'its waiters sit in the heap of one process: no lock for shared memory'
    forbid versions text '\bfeature\s*=\s*"pg[0-9]|\bsince_[0-9]' "$extension" 'pg' \
        'differences between versions of PostgreSQL are in src/pg'
    forbid libpq-never-waits text '\bPQ(exec|prepare|describe|connectdb|setdb|ping|cancel|reset)(?!Start|Poll)' "$extension" '' \
        'a call that waits for the network handles no interrupts'
    forbid sleeps code '\bthread::sleep\b|\bsleep\(Duration' "$extension src/core/src" '' \
        'a wait can be canceled and shows as a wait event'
    forbid house-words all '(?i)(some|no|every)body|meanwhile|whoever|cannot be had|(?<![a-z])(anew|told)(?![a-z])' \
        '*.md docs/*.md src src/*/README.md pgrx-tests pgrx-tests/*/*.py bench packaging/*/*.yaml scripts/*.sh' \
        "$with_house_words" \
        'say which role, session or server, and when: no other role, PUBLIC, concurrently, again'
    exist named-tests 'src/*/README.md sql/README.md' \
        'a test that shows a rule is looked for by its name'
}

# All of src/ except for the core.
extension=extension

# Rooms that still have words of rule house-words: their own text, or a name or message of another
# one of them.
with_house_words='
    scripts/house-rules.sh
    lease shmem/registry
    core/src/lease core/src/registry core/src/keeper core/tests/keeper core/tests/lease core/tests/lease_explorer
    core/tests/lease_explorer/node core/tests/lease_explorer/world
    core/tests/lease_sim core/tests/registry core/README.md pg/README.md
    pgrx-tests/tests/behavior/lease/registry pgrx-tests/tests/behavior/lease/registry_bounds
    pgrx-tests/tests/behavior/slow/registry_failover'

# blank code|text FILE: prints the file with comments (and string literals) blanked, keeping line
# numbers.
blank() {
    perl -0777 -pe '
        BEGIN { $view = shift @ARGV }
        sub gap { my $s = shift; $s =~ s/[^\n]//g; $s }
        s~
            (?<comment> //[^\n]* | (?<block> /\* (?: [^/*] | /(?!\*) | \*(?!/) | (?&block) )* \*/ ) )
          | (?<string> \b(?:b|c)?r(?<hash>\#*)"(?s:.*?)"\g{hash} | (?:\b[bc])?"(?:[^"\\]|\\(?s:.))*" )
          | (?<char> \x27(?:[^\x27\\\n]|\\(?:u\{[^}]*\}|x..|.))\x27 )
        ~
            my ($comment, $string, $char) = @+{qw(comment string char)};
            defined $comment ? gap($comment)
              : $view eq "text" ? (defined $string ? $string : $char)
              : defined $string ? "\"" . gap($string) . "\"" : "\x27\x27"
        ~gex' "$1" "$2"
}

# files PLACE...: sources in these places, and files named there. A missing place has none.
files() {
    local place
    for place in "$@"; do
        if [ "$place" = extension ]; then
            find src -path src/core -prune -o -name '*.rs' -print
        elif [ -f "$place" ]; then
            echo "$place"
        elif [ -e "$place" ]; then
            find "$place" -name target -prune -o -type f \
                \( -name '*.rs' -o -name '*.sql' -o -name 'Cargo.toml' \) -print
        fi
    done | sort
}

forbid() {
    local name=$1 view=$2 pattern=$3 places=$4 allowed=$5 reason=$6 file path room found text
    checked=$((checked + 1))
    # shellcheck disable=SC2086  # places are several words, and patterns
    while IFS= read -r file; do
        path=${file#src/}
        path=${path%.rs}
        for room in $allowed; do
            case $path in "$room" | "$room"/*) continue 2 ;; esac
        done
        text=$file
        if [ "$view" != all ] && [[ $file = *.rs ]]; then
            text=$views/$view/$file
            if [ ! -f "$text" ]; then
                mkdir -p "$(dirname "$text")"
                # Explicitly, since set -e is off during the self-test.
                blank "$view" "$file" >"$text" || exit 2
            fi
        fi
        found=$(grep -nP -- "$pattern" "$text" | cut -d: -f1) || continue
        for found in $found; do
            printf '%s:%s: %s\n    rule %s: %s\n' "$file" "$found" \
                "$(sed -n "${found}{s/^[[:space:]]*//;p}" "$file")" "$name" "$reason"
            broken=$((broken + 1))
        done
    done < <(files $places)
}

exist() {
    local name=$1 places=$2 reason=$3 file line path
    checked=$((checked + 1))
    while IFS=: read -r file line path; do
        printf '%s:%s: %s\n    rule %s: %s\n' "$file" "$line" "$path" "$name" "$reason"
        broken=$((broken + 1))
    done < <(
        # shellcheck disable=SC2086  # places are patterns
        perl -e '
            my (%is_there, @named);
            for my $file (split /\n/, shift @ARGV) {
                open my $source, "<", $file or die "$file: $!";
                my @modules = split m{/}, $file =~ s/\.rs$//r;
                $is_there{"$modules[-2]::$modules[-1]"} = 1;
                while (<$source>) {
                    my ($function) = /\bfn (\w+)/ or next;
                    $is_there{"${_}::$function"} = 1 for @modules;
                }
            }
            for my $file (@ARGV) {
                open my $text, "<", $file or next;
                while (<$text>) {
                    for my $path (/`([a-z]\w*(?:::\w+)+)`/g) {
                        my ($name) = $path =~ /(\w+::\w+)$/;
                        print "$file:$.:$path\n" unless $is_there{$name};
                    }
                }
            }' "$(files src pgrx-tests | grep '\.rs$')" $places
    )
}

check() {
    checked=0
    broken=0
    if [ -z "$(files extension)" ] || [ -z "$(files src/core/src)" ]; then
        echo "house rules: there are no sources to check in $PWD"
        return 1
    fi
    views=$(mktemp -d)
    rules
    rm -rf "$views"
    if [ $broken -gt 0 ]; then
        echo "house rules: $broken violations"
        return 1
    fi
    echo "house rules: $checked rules hold in $(files src pgrx-tests bench sql | wc -l) files"
}

# A tree without violations, although parts look like some.
clean_tree() {
    rm -rf src docs
    mkdir -p src/core/src src/worker
    cat >src/core/src/lib.rs <<'RUST'
//! No std::time, no SystemTime.
/* std::time /* Instant */ SystemTime */
RUST
    cat >src/error.rs <<'RUST'
#![deny(unsafe_code)]
// pgrx::Spi and claim::claim are words in a comment.
const HINT: &str = "unsafe { Spi } \" thread::sleep // not a comment";
const RAW: &str = r#"unsafe "Spi" "#;
fn same<'a>(c: &'a char) -> bool { *c == '"' || *c == '\'' }
const TABLE: &str = "max_id of leaf_alloc moved backwards";
RUST
    echo 'fn f() { claim::claim(); unsafe { pg_sys::f() } }' >src/worker/launcher.rs
    printf '#[cfg(since_18)]\nfn g() { unsafe {} }\n' >src/pg.rs
    mkdir src/pg src/remote src/segment src/tags
    echo 'fn h() { unsafe { PQconnectPoll(c) } }' >src/remote/libpq.rs
    echo 'fn i() { unsafe { pg_sys::SPI_inside_nonatomic_context() } }' >src/pg/syncrep.rs
    echo 'fn next() { heap::see(); }' >src/segment/issue.rs
    echo 'fn shared() {}' >src/shmem.rs
    echo 'use parking_lot::Mutex;' >src/tags/transaction.rs
    mkdir -p src/core/tests/explorer
    echo 'fn holds() {}' >src/core/tests/explorer/world.rs
    echo '(`explorer::holds`, `world::holds`, `tests::explorer::world`, `Explorer::new`)' >src/core/README.md
}

self_test() {
    local scratch said failed=0 planted=0
    scratch=$(mktemp -d)
    cd "$scratch"
    clean_tree
    said=$(check) || {
        printf 'self-test: the clean tree is found guilty:\n%s\n' "$said"
        failed=1
    }
    # plant RULE FILE LINE: adds a line to the file that violates the rule, which must be reported.
    plant() {
        planted=$((planted + 1))
        clean_tree
        mkdir -p "$(dirname "$2")"
        printf '%s\n' "$3" >>"$2"
        if said=$(check); then
            printf 'self-test: not noticed: %s in %s (rule %s)\n' "$3" "$2" "$1"
            failed=1
        elif [[ $said != *"rule $1:"* ]]; then
            printf 'self-test: rule %s did not notice: %s in %s\n%s\n' "$1" "$3" "$2" "$said"
            failed=1
        fi
        rules_seen="$rules_seen $1"
    }
    rules_seen=
    plant core-without-clock src/core/src/step.rs 'use std::time::Instant;'
    plant pg_sys-rooms src/tags/transaction.rs 'use pgrx::pg_sys;'
    plant pg_sys-rooms src/remote/connection.rs 'use pgrx::pg_sys;'
    plant sql src/worker/launcher.rs 'use pgrx::Spi;'
    plant sql src/segment/issue.rs 'use pgrx::spi::Spi;'
    plant rows src/tags/heap.rs 'fn f() { CatalogTupleUpdate(r, t, n) }'
    plant rows src/pg/trigger.rs 'fn f() { unsafe { pg_sys::heap_update(r) } }'
    plant rows src/tags/heap.rs 'fn f() { unsafe { pg_sys::index_insert(i) } }'
    plant claims src/files.rs 'use crate::tags::claim::{self, claim};'
    plant claims src/files.rs 'fn f() { crate::tags::claim::receive(); }'
    plant claims src/segment/issue.rs 'fn f() { claim::claim_for_member(); }'
    plant shared-locks src/shmem.rs 'use parking_lot::Mutex;'
    plant versions src/worker.rs '#[cfg(not(since_16))]'
    plant versions src/worker.rs '#[cfg(feature = "pg16")]'
    plant libpq-never-waits src/remote/libpq.rs 'fn f() { unsafe { PQconnectdbParams(k, v, 0) } }'
    plant libpq-never-waits src/remote/libpq.rs '#[link_name = "PQcancel"]'
    plant sleeps src/worker.rs 'fn f() { std::thread::sleep(d) }'
    plant house-words src/tags/heap.rs '// Nobody waits meanwhile.'
    plant house-words docs/guide.md 'The caller is told.'
    plant named-tests src/tags/README.md '(`world::holds_no_more`)'
    plant named-tests src/tags/README.md '(`tags::holds`)'
    # Each rule was violated at least once.
    forbid() {
        case " $rules_seen " in *" $1 "*) ;; *)
            echo "self-test: nothing breaks rule $1"
            failed=1
            ;;
        esac
    }
    exist() { forbid "$1"; }
    rules
    cd /
    rm -rf "$scratch"
    [ $failed -eq 0 ] || return 1
    echo "house rules: all $planted planted violations are noticed"
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in
'') check ;;
--self-test) self_test ;;
*)
    echo "house-rules.sh [--self-test]" >&2
    exit 2
    ;;
esac
