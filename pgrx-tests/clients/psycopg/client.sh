# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='psycopg 3'
language='Python'
key='any default'
advice='`executemany` returns ids with `returning=True` only'

install() { pip_install 'psycopg[binary]==3.3.9'; }
version() { pip_version psycopg; }
run() {
    cp "$ROOT/packaging/http/leaf_http.py" .
    python main.py && python http_ids.py
}
