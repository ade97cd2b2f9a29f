# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='SQLAlchemy and Alembic'
language='Python'
key="\`server_default=func.leaf_segment_next('orders', monotonic=True)\`"
advice='without `monotonic=True`, many rows go one by one'
schema=extension

install() { pip_install sqlalchemy==2.1.9 alembic==1.20.1 'psycopg[binary]==3.3.9'; }
version() { echo "$(pip_version sqlalchemy), $(pip_version alembic)"; }

run() {
    cp "$ROOT/packaging/hooks/alembic/env.py" migrations
    python migrate.py
    python main.py
    alembic init --template generic new >/dev/null
    python adopted.py 2>&1 | tee adopted.log
    grep -q 'takes its ids from tag "invoices"' adopted.log || die 'Alembic has not logged what was adopted'
}
