# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='Django'
language='Python'
key='`BigAutoField`, and the hook after `migrate`'
advice='`db_default` for the key: `bulk_create` does not fill it in'
schema=none

install() { pip_install django==5.2.19 'psycopg[binary]==3.3.9'; }
version() { pip_version django; }

run() {
    export PYTHONDONTWRITEBYTECODE=1
    cp "$ROOT/packaging/hooks/django/leaf_id_hook.py" .
    # What Django itself would write, and no more.
    python manage.py makemigrations --check
    python adopted.py
    python manage.py makemigrations --check
    python main.py
    # In databases that the runner makes, and makes copies of.
    python manage.py test --parallel 2 2>&1 | tee tests.log
    grep -q '^Ran 5 tests' tests.log || die 'the test runner has not run the tests'
    python fixtures.py
}
