#!/usr/bin/env bash
# Scripts of released versions, which must not change, since databases were created with them.
#
#   sql/released/leaf_id--A.sql   the complete version A, as generated for its release
#   sql/leaf_id--A--B.sql         from version A to the next one; installed with the extension
#   sql/released/stays--A.txt     what version A has, and each later one: stays.txt of its release
#   sql/released/SHA256SUMS       lists all three, in release order
# released.sh check           compares checksums; CHANGELOG.md has the same releases; an update
#                             script leads from each version to the next, and to that of Cargo.toml;
#                             and nothing has left stays.txt but the text of an error
# released.sh same SCRIPT     the version in Cargo.toml, if released, is still generated like that
# released.sh freeze [SCRIPT] adds the version in Cargo.toml, as generated, or built now
# released.sh --self-test     makes each mistake in a small tree, and expects it to be reported

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SUMS=sql/released/SHA256SUMS

STAYS=sql/released/stays.txt

listed() { sed -nE 's/^[0-9a-f]{64}  (.*)$/\1/p' $SUMS; }

# Frozen versions, the oldest first.
frozen() { listed | sed -nE 's|^released/leaf_id--(.*)\.sql$|\1|p'; }

# Versions with a date in CHANGELOG.md, the oldest first.
published() { sed -nE 's/^## ([^ ]+) \([0-9]{4}-.*/\1/p' CHANGELOG.md | tac; }

# The source location of a statement changes with every edit.
without_places() { sed -E '/^-- src\/.*:[0-9]+$/d' "$1"; }

# Of an error only the SQLSTATE stays.
without_texts() { sed -E 's/^(error [^ ]+) .*/\1/' "$1"; }

check() {
    local version before='' file files unlisted gone
    mapfile -t files < <(listed)
    if [ ${#files[@]} -gt 0 ]; then
        (cd sql && sha256sum --check --strict --quiet released/SHA256SUMS) ||
            die "a released script has changed" "Databases were made with it: change it back, and add a step to the next version."
    fi
    unlisted=$(find sql/released \( -name '*.sql' -o -name 'stays--*' \) -printf 'released/%f\n' | grep -vxF -f <(listed) || true)
    [ -z "$unlisted" ] || die "sql/ has what SHA256SUMS does not list: $unlisted"
    [ "$(frozen)" = "$(published)" ] ||
        die "CHANGELOG.md and sql/released/ have other releases" "CHANGELOG.md: $(published | xargs)" "sql/released/: $(frozen | xargs)"
    for version in $(frozen); do
        gone=$(without_texts "sql/released/stays--$version.txt" | grep -vxF -f <(without_texts $STAYS) || true)
        [ -z "$gone" ] || die "version $version has, and $STAYS no longer" "$gone"
    done
    for version in $(frozen) "$(version)"; do
        if [ -n "$before" ] && [ "$before" != "$version" ]; then
            file=leaf_id--$before--$version.sql
            [ -f "sql/$file" ] || die "there is no sql/$file" "ALTER EXTENSION leaf_id UPDATE needs it, even if nothing changes."
            [ "$version" = "$(version)" ] || listed | grep -qxF "$file" || die "SHA256SUMS does not list $file"
        fi
        before=$version
    done
    note "$(frozen | wc -l) versions are released; their scripts are as they were"
}

same() {
    local script
    script=sql/released/leaf_id--$(version).sql
    [ -f "$script" ] || return 0
    diff <(without_places "$script") <(without_places "$1") ||
        die "version $(version) is released, and the sources now make another script" "Raise the version in Cargo.toml, and add a step to it."
}

freeze() {
    local version script step
    version=$(version)
    script=released/leaf_id--$version.sql
    ! listed | grep -qxF "$script" || die "version $version is released already"
    grep -qE "^## $version \([0-9]{4}-[0-9]{2}-[0-9]{2}\)" CHANGELOG.md || die "CHANGELOG.md has no date for version $version"
    step=$(frozen | tail -n 1)
    step=${step:+leaf_id--$step--$version.sql}
    [ -z "$step" ] || [ -f "sql/$step" ] || die "there is no sql/$step"
    # The sums last: without them, nothing is released.
    cp "$1" "sql/$script"
    cp $STAYS "sql/released/stays--$version.txt"
    # shellcheck disable=SC2086  # no step is no word
    (cd sql && sha256sum $step "$script" "released/stays--$version.txt" >released/sums && cat released/sums >>released/SHA256SUMS && rm released/sums)
}

self_test() {
    local scratch failed=0 mistakes=0 current=0.2.0
    scratch=$(mktemp -d)
    cd "$scratch"
    version() { echo "$current"; }
    # Versions 0.1.0 and 0.2.0 are released, 0.3.0 is in development.
    clean_tree() {
        rm -rf sql
        mkdir -p sql/released
        : >$SUMS
        printf -- '-- src/a.rs:7\nSELECT 1;\n' >generated
        printf 'error 42704 not there\nfunction f()\n' >$STAYS
        printf '## 0.3.0 (unreleased)\n## 0.2.0 (2027-02-01)\n## 0.1.0 (2027-01-01)\n' >CHANGELOG.md
        echo 'SELECT 2;' >sql/leaf_id--0.1.0--0.2.0.sql
        echo 'SELECT 3;' >sql/leaf_id--0.2.0--0.3.0.sql
        for current in 0.1.0 0.2.0; do freeze generated; done
        current=0.3.0
    }
    # mistake COMMAND COMMAND: the second command must detect what the first one does.
    mistake() {
        mistakes=$((mistakes + 1))
        clean_tree
        eval "$1"
        if (eval "$2") >/dev/null 2>&1; then
            echo "self-test: not noticed: $1"
            failed=1
        fi
    }
    clean_tree
    check >/dev/null
    same generated
    sed -i 's/not there/missing/' $STAYS
    check >/dev/null
    # Cut off between the files and the sums.
    sed -i '/0.2.0.[st][qx]/d; /0.1.0--0.2.0/d' $SUMS
    current=0.2.0
    freeze generated
    current=0.3.0
    check >/dev/null
    current=0.2.0
    sed -i 's/:7/:8/' generated
    same generated
    mistake 'echo "--" >>sql/released/leaf_id--0.1.0.sql' check
    mistake 'echo "--" >>sql/leaf_id--0.1.0--0.2.0.sql' check
    mistake 'rm sql/released/leaf_id--0.1.0.sql' check
    mistake 'rm sql/released/stays--0.1.0.txt' check
    mistake "sed -i '/function/d' $STAYS" check
    mistake "sed -i '/error/d' $STAYS" check
    mistake "sed -i '/function/d' $STAYS sql/released/stays--0.1.0.txt" check
    mistake "sed -i '/stays--0.2.0/d' $SUMS" check
    mistake 'rm sql/leaf_id--0.2.0--0.3.0.sql' check
    mistake 'cp generated sql/released/leaf_id--0.3.0.sql' check
    mistake "sed -i '/0.1.0/d' CHANGELOG.md" check
    mistake "sed -i '/released.leaf_id--0.2.0/d' $SUMS" check
    mistake "sed -i '/0.1.0--/d' $SUMS" check
    mistake 'current=0.2.0; echo "SELECT 2;" >generated' 'same generated'
    mistake 'current=0.2.0' 'freeze generated'
    mistake 'true' 'freeze generated'
    mistake "sed -i 's/unreleased/2027-03-01/' CHANGELOG.md; rm sql/leaf_id--0.2.0--0.3.0.sql" 'freeze generated'
    cd /
    rm -rf "$scratch"
    [ $failed -eq 0 ] || return 1
    note "all $mistakes mistakes are noticed"
}

case ${1:-} in
check) check ;;
same) same "$(realpath "${2:?a script}")" ;;
freeze)
    script=${2:-}
    if [ -z "$script" ]; then
        "$ROOT/scripts/build.sh"
        locate_copy
        script=$("$PG_BIN/pg_config" --sharedir)/extension/leaf_id--$(version).sql
    fi
    freeze "$(realpath "$script")"
    ;;
--self-test) self_test ;;
*) die "released.sh check | same SCRIPT | freeze [SCRIPT] | --self-test" ;;
esac
