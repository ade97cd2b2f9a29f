#!/usr/bin/env bash
# The graph of modules of a crate: who names whose items. It must have no cycle.
#
#   module-graph.sh                        checks every crate, the list is below
#   module-graph.sh DIR...                 checks these; DIR holds lib.rs or main.rs
#   module-graph.sh --list [--rooms] DIR   prints "a -> b" for each edge
#   module-graph.sh --dot [--rooms] DIR    prints the graph for Graphviz
#   module-graph.sh --self-test            reads small crates with and without a cycle
#
# A node is a file: a.rs and a/b.rs are two nodes. With --rooms, a node is a top-level module with
# everything below it. An edge leads from the file that contains a path to the file of the longest
# module prefix of that path. So `pub use child::Item` is an edge to the child, and `super::item` is
# an edge to the parent; `mod child;` alone is not an edge. Comments, strings and items under
# #[cfg(test)] do not count. A check searches for cycles of files and of rooms.

set -euo pipefail
export LC_ALL=C.UTF-8

crates=(
    bench/src
    pgrx-tests/src
    pgrx-tests/tests/behavior
    src
    src/core/src
)

# graph check|list|dot files|rooms DIR
graph() {
    perl - "$@" <<'PERL'
use strict;
use warnings;

my ($mode, $level, $dir) = @ARGV;
# By module path ("" is the root): its file, and names imported by `use`.
my (%file_of, %name_of_file, %imports, %globs);
# Uses of paths: [module, segments, line].
my @named;

sub tokens {
    my ($file) = @_;
    open my $handle, '<', $file or die "$file: $!\n";
    my $text = do { local $/; <$handle> };
    my (@tokens, $line);
    $line = 1;
    while ($text =~ m{\G(?:
            (?<gap> \s+ | //[^\n]* | (?<block> /\* (?: [^/*] | /(?!\*) | \*(?!/) | (?&block) )* \*/ ) )
          | (?<literal> \b(?:b|c)?r(?<hash>\#*)"(?s:.*?)"\g{hash} | (?:b|c)?"(?:[^"\\]|\\(?s:.))*"
              | b?'(?:[^'\\\n]|\\(?:u\{[^\}]*\}|x..|.))' )
          | (?: r\# )? (?<token> [A-Za-z_]\w* | :: | . ) )}gcxs) {
        push @tokens, [$+{token}, $line] if defined $+{token};
        push @tokens, ['"', $line] if defined $+{literal};
        $line += $& =~ tr/\n//;
    }
    return \@tokens;
}

# Reads the file of a module, and of the modules it declares.
sub read_file {
    my ($file, $module) = @_;
    $file_of{$module} = $file;
    my $name = $module eq '' ? $file =~ s{.*/(.*)\.rs$}{$1}r : $module;
    $name_of_file{$file} = $name;
    my @tokens = @{ tokens($file) };
    my $i = 0;
    my $is = sub { my $at = $i + shift; $at >= 0 && $at < @tokens && $tokens[$at][0] eq shift };
    my $word = sub { $i < @tokens && $tokens[$i][0] =~ /^[A-Za-z_]/ };
    my $skip = sub {    # a group in brackets, whole
        my $depth = 0;
        while ($i < @tokens) {
            my $token = $tokens[$i++][0];
            $depth++ if $token =~ /^[(\[\{]$/;
            $depth-- if $token =~ /^[)\]\}]$/;
            last if $depth == 0;
        }
    };
    # Parses one `use` tree to [segments, alias] pairs.
    my $tree;
    $tree = sub {
        my @path = @_;
        if ($is->(0, '::')) { push @path, '::'; $i++ }
        while ($i < @tokens) {
            if ($is->(0, '{')) {
                $i++;
                my @leaves;
                while ($i < @tokens && !$is->(0, '}')) {
                    push @leaves, $tree->(@path);
                    $i++ if $is->(0, ',');
                }
                $i++;
                return @leaves;
            }
            my ($segment, $line) = @{ $tokens[ $i++ ] };
            push @path, $segment unless $segment eq 'self' && @path;
            if ($is->(0, '::')) { $i++; next }
            my $alias = $path[-1];
            if ($is->(0, 'as')) { $alias = $tokens[ $i + 1 ][0]; $i += 2 }
            return [[@path], $alias, $line];
        }
        return;
    };

    my ($here, $depth) = ($module, 0);
    my @outer;    # of inline modules: what was around them, and at which depth they began
    while ($i < @tokens) {
        my ($token, $line) = @{ $tokens[$i] };
        if ($token eq '#' && $is->(1, '[')) {
            my $test = $is->(2, 'cfg') && ($is->(4, 'test') || $is->(4, 'all') && $is->(6, 'test'));
            die "$file:$line: #[path] is not understood here\n" if $is->(2, 'path');
            $i++;
            $skip->();
            next unless $test;
            while ($is->(0, '#')) { $i++; $skip->() }
            $i++ if $is->(0, 'pub');
            $skip->() if $is->(0, '(');
            next unless $word->() && $tokens[$i][0] =~ /^(mod|use|fn|impl|struct|enum|const|static|type|trait)$/;
            while ($i < @tokens && !$is->(0, ';') && !$is->(0, '{')) {
                if ($is->(0, '(') || $is->(0, '[')) { $skip->() } else { $i++ }
            }
            if ($is->(0, '{')) { $skip->() } else { $i++ }
        } elsif ($token eq 'pub' && $is->(1, '(') && $is->(2, 'in')) {
            $i++;
            $skip->();
        } elsif ($token eq 'mod' && $tokens[ $i + 1 ][0] =~ /^\w/ && $is->(2, ';')) {
            my $child = $tokens[ $i + 1 ][0];
            my $path = join '::', grep { length } $here, $child;
            my $base = "$dir/" . ($path =~ s{::}{/}gr);
            my ($found) = grep { -f } "$base.rs", "$base/mod.rs";
            die "$file:$line: no file for mod $child\n" unless $found;
            read_file($found, $path);
            $i += 3;
        } elsif ($token eq 'mod' && $tokens[ $i + 1 ][0] =~ /^\w/ && $is->(2, '{')) {
            push @outer, [$here, $depth++];
            $here = join '::', grep { length } $here, $tokens[ $i + 1 ][0];
            $file_of{$here} = $file;
            $i += 3;
        } elsif ($token eq 'use' && !$is->(1, '<')) {
            $i++;
            for my $leaf ($tree->()) {
                my ($path, $alias, $at) = @$leaf;
                if ($alias eq '*') {
                    pop @$path;
                    push @{ $globs{$here} }, $path;
                } else {
                    $imports{$here}{$alias} = $path;
                }
                push @named, [$here, $path, $at];
            }
        } elsif ($token =~ /^[A-Za-z_]/) {
            my $foreign = $is->(-1, '::') || $is->(-1, '$') && $token ne 'crate';
            my @path = ($token);
            $i++;
            while ($is->(0, '::') && $i + 1 < @tokens && $tokens[ $i + 1 ][0] =~ /^[A-Za-z_]/) {
                push @path, $tokens[ $i + 1 ][0];
                $i += 2;
            }
            push @named, [$here, \@path, $line] if @path > 1 && !$foreign;
        } else {
            $depth++ if $token eq '{';
            $depth-- if $token eq '}';
            ($here) = @{ pop @outer } if @outer && $depth == $outer[-1][1];
            $i++;
        }
    }
}

# The module of this crate that a name refers to in a module, if any.
sub lookup {
    my ($module, $name, %seen) = @_;
    return if $seen{"$module $name"}++;
    my $child = join '::', grep { length } $module, $name;
    return $child if exists $file_of{$child};
    if (my $path = $imports{$module}{$name}) {
        my ($found, $rest) = resolve($module, $path, %seen);
        return defined $found && $rest == 0 ? $found : undef;
    }
    for my $path (@{ $globs{$module} || [] }) {
        my ($from, $rest) = resolve($module, $path, %seen);
        next if !defined $from || $rest;
        my $found = lookup($from, $name, %seen);
        return $found if defined $found;
    }
    return;
}

# The longest module prefix of a path, and the number of remaining segments.
sub resolve {
    my ($module, $path, %seen) = @_;
    my @rest = @$path;
    return unless @rest;
    my $first = shift @rest;
    my $at;
    if ($first eq 'crate') {
        $at = '';
    } elsif ($first eq 'self' || $first eq 'super') {
        unshift @rest, 'super' if $first eq 'super';
        $at = $module;
        while (@rest && $rest[0] eq 'super') { $at =~ s/(?:^|::)\w+$//; shift @rest }
    } else {
        $at = lookup($module, $first, %seen);
        return unless defined $at;
    }
    while (@rest) {
        my $next = join '::', grep { length } $at, $rest[0];
        last unless exists $file_of{$next};
        $at = $next;
        shift @rest;
    }
    return ($at, scalar @rest);
}

my ($root) = grep { -f } "$dir/lib.rs", "$dir/main.rs";
die "$dir holds neither lib.rs nor main.rs\n" unless $root;
read_file($root, '');
my $root_name = $name_of_file{$root};

# Places of each edge.
my %edges;
my %is_module = map { $_ => 1 } values %name_of_file;
for my $use (@named) {
    my ($module, $path, $line) = @$use;
    my ($target) = resolve($module, $path);
    next unless defined $target;
    my ($from, $to) = map { $name_of_file{ $file_of{$_} } } $module, $target;
    if ($level eq 'rooms') { s/::.*// for $from, $to }
    push @{ $edges{$from}{$to} }, "$file_of{$module}:$line: " . join '::', @$path if $from ne $to;
}

if ($mode ne 'check') {
    print "digraph modules {\n    rankdir = LR;\n    node [shape = box];\n" if $mode eq 'dot';
    for my $from (sort keys %edges) {
        for my $to (sort keys %{ $edges{$from} }) {
            print $mode eq 'dot' ? "    \"$from\" -> \"$to\";\n" : "$from -> $to\n";
        }
    }
    print "}\n" if $mode eq 'dot';
    exit 0;
}

# A shortest cycle through a node, as a list of nodes in order; empty if there is none.
sub cycle_through {
    my ($start) = @_;
    my %before;
    my @queue = ($start);
    while (defined(my $node = shift @queue)) {
        for my $next (sort keys %{ $edges{$node} }) {
            if ($next eq $start) {
                my @cycle = ($node);
                unshift @cycle, $before{ $cycle[0] } while $cycle[0] ne $start;
                return @cycle;
            }
            next if exists $before{$next};
            $before{$next} = $node;
            push @queue, $next;
        }
    }
    return;
}

# As many cycles as must be broken, the shortest first. Assumes that the edge with the fewest uses
# is the one to be removed.
my $found = 0;
while (1) {
    my @shortest;
    for my $node (sort keys %edges) {
        my @cycle = cycle_through($node);
        @shortest = @cycle if @cycle && (!@shortest || @cycle < @shortest);
    }
    last unless @shortest;
    $found++;
    print "$dir: cycle of $level: ", join(' -> ', @shortest, $shortest[0]), "\n";
    my @weakest;
    for my $i (0 .. $#shortest) {
        my ($from, $to) = @shortest[$i, ($i + 1) % @shortest];
        my @uses = @{ $edges{$from}{$to} };
        print "    $from -> $to (", scalar @uses, @uses == 1 ? ' use): ' : ' uses): ', $uses[0], "\n";
        @weakest = ($from, $to, scalar @uses) if !@weakest || @uses < $weakest[2];
    }
    delete $edges{ $weakest[0] }{ $weakest[1] };
}
exit($found > 0);
PERL
}

check() {
    local dir bad=0
    for dir in "$@"; do
        graph check rooms "$dir" || bad=1
        graph check files "$dir" || bad=1
    done
    return $bad
}

# A crate without a cycle: b uses a, and in the room, high uses low.
small_crate() {
    rm -rf crate
    mkdir -p crate/b crate/room
    printf 'mod a;\nmod b;\nmod room;\nfn main() { b::two(); }\n' >crate/lib.rs
    echo 'pub struct One;' >crate/a.rs
    printf 'pub mod deep;\nuse crate::a::One;\npub fn two() {}\n' >crate/b.rs
    echo 'pub fn three() {}' >crate/b/deep.rs
    printf 'mod high;\nmod low;\npub use high::High;\n' >crate/room.rs
    echo 'use super::low::Low;' >crate/room/high.rs
    echo 'pub struct Low;' >crate/room/low.rs
}

# expect CYCLES FILE LINE...: adds each line to its file of the small crate. Exactly these cycles
# must be found, as "LEVEL: a -> b -> a", separated by commas.
expect() {
    local expected=$1 planted said found status=0
    shift
    planted="$*"
    small_crate
    cases=$((cases + 1))
    while [ $# -gt 0 ]; do
        printf '%s\n' "$2" >>"crate/$1"
        shift 2
    done
    said=$(check crate 2>&1) || status=1
    found=$(sed -n 's/^crate: cycle of //p' <<<"$said" | paste -sd, | sed 's/,/, /g')
    if [ "$found" != "$expected" ] || [ $status -ne $((${#expected} > 0)) ]; then
        printf 'self-test: expected "%s", got "%s" (status %d) with: %s\n%s\n' \
            "$expected" "$found" "$status" "$planted" "$said"
        failed=1
    fi
}

# same WHAT EXPECTED FOUND
same() {
    if [ "$2" != "$3" ]; then
        printf 'self-test: %s:\n%s\nexpected:\n%s\n' "$1" "$3" "$2"
        failed=1
    fi
}

self_test() {
    local scratch cases=0 failed=0 both='rooms: a -> b -> a, files: a -> b -> a' line
    scratch=$(mktemp -d)
    cd "$scratch"
    while IFS= read -r line; do expect "$both" a.rs "$line"; done <<'RUST'
use crate::b::two;
use crate::{b::two};
use crate::{room::High, b::{self as other, deep::{x, y}}};
use crate::{room, b};
use crate::b::*;
pub use crate::b::two;
pub(crate) use crate::b::two as second;
use super::b::two as _;
use super::{room, b};
use self::super::b;
use crate::b as c; fn f() { c::two() }
fn f() { crate::b::two() }
fn f() -> Option<crate::b::Two> { None }
struct S(pub (crate::b::Two, u8));
fn f() { <super::b::Two as Clone>::clone(x) }
fn f() { for i in 0..crate::b::N {} }
fn f<'a>(x: &'a str) { let c = '"'; let e = '\''; crate::b::two() }
fn f() { let s = "\" // "; crate::b::two() }
fn f() { let s = br#" // " "#; crate::b::two() }
fn f() { /* /* */ */ crate::b::two() }
fn f() { crate::r#b::two() }
mod inline { use super::super::b::two; }
mod inline { fn f() { g::<u8>() } } use super::b;
macro_rules! m { () => { $crate::b::two() } }
#[cfg(not(test))] mod live { use crate::b; }
#[cfg(all(unix, not(test)))] mod live { use crate::b; }
#[cfg(test)] mod tests { fn f() {} } use crate::b;
#[cfg(test)] use std::fmt::{self}; use crate::b;
RUST
    while IFS= read -r line; do expect '' a.rs "$line"; done <<'RUST'
// use crate::b;
/// [`crate::b::two`]
/* /* */ use crate::b; */
const S: &str = "crate::b::two \" crate::b::two";
const R: &str = r##"crate::b::two "# crate::b::two"##;
fn f() { other::b::two() }
use other::crate_b::{b::two};
mod inline { mod b {} use self::b::two; fn f() { b::two() } }
#[cfg(test)] mod tests { use crate::b::two; fn f() { crate::b::two() } }
#[cfg(all(test, not(loom)))] #[expect(unused)] mod tests { use crate::b::two; }
#[cfg(test)] mod tests;
#[cfg(test)] pub(crate) fn f(x: [u8; 2]) { crate::b::two() }
#[cfg(test)] use crate::b::{self};
RUST
    # A parent and its child.
    expect 'files: room -> room::high -> room' room/high.rs 'use super::three;'
    expect 'files: room -> room::high -> room' room/high.rs 'fn f() { crate::room::three() }'
    # A parent that only declares its child does not use it.
    expect '' b/deep.rs 'fn f() { super::two() }'
    expect 'files: b -> b::deep -> b' b/deep.rs 'fn f() { super::two() }' b.rs 'fn f() { deep::three() }'
    for line in 'use ::deep::x;' 'fn f() { ::deep::x(); Y::<u8>::deep::x(); y.deep::<u8>() }'; do
        expect '' b/deep.rs 'fn f() { super::two() }' b.rs "$line"
    done
    expect '' room/high.rs 'pub(in crate::room) fn f(x: pub(super) u8) {}'
    # Children of one parent.
    expect 'files: room::high -> room::low -> room::high' room/low.rs 'use super::high::High;'
    expect 'files: room::high -> room::low -> room::high' room/low.rs 'use crate::room::{high};'
    # A cycle of rooms, but not of files, if each uses a different file of the other one.
    expect 'rooms: b -> room -> b' \
        room/high.rs 'use crate::b::two;' b/deep.rs 'use crate::room::low::Low;'
    # The root file of the crate is a node, too.
    expect 'rooms: b -> lib -> b, files: b -> lib -> b' b.rs 'fn f() { crate::main() }'
    line='rooms: a -> b -> a, rooms: a -> lib -> b -> a, files: a -> b -> a, files: a -> lib -> b -> a'
    expect "$line" a.rs 'use crate::*; fn f() { b::two() }'
    expect "$line" a.rs 'use crate as root; fn f() { root::b::two() }'
    # A name imported by `self` in a group.
    expect "$both, files: a -> b::deep -> a" \
        a.rs 'use crate::b::{self}; fn f() { b::deep::three() }' b/deep.rs 'use crate::a::One;'
    # Longer cycles, and two at once.
    expect 'rooms: a -> room -> b -> a, files: a -> room::low -> b -> a' \
        a.rs 'use crate::room::low::Low;' room/low.rs 'use crate::b;'
    expect "$both, files: room::high -> room::low -> room::high" \
        a.rs 'use crate::b;' room/low.rs 'use super::high;'

    small_crate
    mkdir crate/c
    echo 'mod c;' >>crate/lib.rs
    printf 'mod x;\n\nuse x::X;\n' >crate/c/mod.rs
    echo 'use crate::c;' >crate/c/x.rs
    same 'the places of a cycle' 'crate: cycle of files: c -> c::x -> c
    c -> c::x (1 use): crate/c/mod.rs:3: x::X
    c::x -> c (1 use): crate/c/x.rs:1: crate::c' "$(check crate || true)"
    small_crate
    same 'the graph of files' 'b -> a
lib -> b
room -> room::high
room::high -> room::low' "$(graph list files crate)"
    same 'the graph of rooms' 'b -> a
lib -> b' "$(graph list rooms crate)"
    same 'the graph for Graphviz' 'digraph modules {
    rankdir = LR;
    node [shape = box];
    "b" -> "a";
    "lib" -> "b";
}' "$(graph dot rooms crate)"
    rm crate/a.rs
    if check crate 2>/dev/null || check nowhere 2>/dev/null; then
        echo 'self-test: a crate whose files are missing is taken for one without a cycle'
        failed=1
    fi

    cd /
    rm -rf "$scratch"
    [ $failed -eq 0 ] || return 1
    echo "module graph: all $cases small crates are read right"
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in
'')
    check "${crates[@]}"
    echo "module graph: no cycle in ${crates[*]}"
    ;;
--self-test) self_test ;;
--list | --dot)
    mode=${1#--}
    shift
    level=files
    if [ "${1:-}" = --rooms ]; then
        level=rooms
        shift
    fi
    graph "$mode" "$level" "${1:?a directory}"
    ;;
-*)
    sed -n '4,8s/^# *//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
*) check "$@" ;;
esac
