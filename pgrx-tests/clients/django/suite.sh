# shellcheck shell=bash
# Sourced by client.sh: Django's own tests, without and with leaf_id.adopt_new_columns. Takes
# minutes, so only on request:
#
#     LEAF_ID_DJANGO="schema migrations" make test-clients CLIENTS=django
#
# LEAF_ID_DJANGO has folders of its tests. What differs must be what suite.expected says of them;
# docs/clients.md has the reasons.

# fetch_suite VERSION
fetch_suite() {
    "$PACKAGES/venv/bin/pip" download --quiet --no-deps --no-binary django --dest "$PACKAGES" "django==$1" &&
        tar -xzf "$PACKAGES/django-$1.tar.gz" -C "$PACKAGES"
}

# run_suite FOLDER...
run_suite() {
    local setting
    query -d postgres -c 'CREATE DATABASE suite OWNER app'
    as_app -d suite -c 'CREATE EXTENSION leaf_id'
    for setting in off on; do
        query -d postgres -c "ALTER ROLE app SET leaf_id.adopt_new_columns = $setting"
        # Some fail in any case, for what is not installed.
        env -C "$PACKAGES/django-$(version)/tests" "PYTHONPATH=$WORK" \
            python -W ignore runtests.py --settings=suite --parallel=1 --noinput "$@" >"$setting.log" 2>&1 || true
        grep '^Ran ' "$setting.log" || die "Django's tests have not run" "$(tail -n 5 "$setting.log")"
        sed -nE 's/^(FAIL|ERROR): //p' "$setting.log" | sort -u >"$setting.failed"
    done
    diff <(printf '(%s.\n' "$@" | grep -F -f - suite.expected) <(comm -13 off.failed on.failed) ||
        die "Django's tests that fail with the setting only are not those of suite.expected"
}
