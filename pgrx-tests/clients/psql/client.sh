# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='psql'
language='C, libpq'
key='any default'
advice='no `currval`: `RETURNING id`, or `\gset`'

install() { :; }
version() { echo "the server's"; }

run() {
    as_app -f main.sql
    # COPY from a file, and ids in it.
    seq 1000 | as_app -c "COPY orders (item) FROM STDIN"
    [ "$(as_app -At -c 'SELECT count(DISTINCT id) FROM orders')" = 1013 ] || die "COPY has made other ids"
    # A template: the tags come along, and the ids of the copy go on.
    as_app -d postgres -c "CREATE DATABASE ${PGDATABASE}_copy TEMPLATE $PGDATABASE"
    [ "$(as_app -d "${PGDATABASE}_copy" -At -c "INSERT INTO orders (item) VALUES ('tea') RETURNING id > 1013")" = t ] ||
        die "the copy of the database repeats ids"
    echo "checked 1014 ids"
    as_app -f adopt.sql
}
