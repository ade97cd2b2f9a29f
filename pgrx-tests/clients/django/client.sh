# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='Django'
language='Python'
key='`BigAutoField`, and `RunSQL` in the migration'
advice='`db_default` for the key: `bulk_create` does not fill it in'
schema=none
# Folders of Django's own tests.
read -ra folders <<<"${LEAF_ID_DJANGO:-}"
[ ${#folders[@]} -eq 0 ] || seconds=3600
# shellcheck source=pgrx-tests/clients/django/suite.sh
. "$CLIENTS_DIR/django/suite.sh"

install() {
    pip_install django==5.2.19 'psycopg[binary]==3.3.9'
    [ ${#folders[@]} -eq 0 ] || [ -d "$PACKAGES/django-$(version)" ] || had "Django's tests" fetch_suite "$(version)"
}
version() { pip_version django; }

run() {
    export PYTHONDONTWRITEBYTECODE=1
    query -d postgres -c "ALTER ROLE app SET leaf_id.adopt_new_columns = on"
    # What Django itself would write, and no more.
    rm shop/migrations/0003_segment_ids.py
    python manage.py makemigrations --check
    python manage.py migrate --verbosity 0
    python manage.py makemigrations --check
    python main.py
    # In databases that the runner makes, and makes copies of.
    python manage.py test --parallel 2 2>&1 | tee tests.log
    grep -q '^Ran 5 tests' tests.log || die 'the test runner has not run the tests'
    python fixtures.py
    [ ${#folders[@]} -eq 0 ] || run_suite "${folders[@]}"
}
