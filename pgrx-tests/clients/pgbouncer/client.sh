# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='PgBouncer'
language='C'
key='any default'
advice='none in transaction mode, nor with `DISCARD ALL`'

install() { debian pgbouncer; }
version() { debian_version pgbouncer; }

run() {
    local pooler status=0
    # It must be able to read its files, and does not run as root.
    pooler=$RUN/pooler
    as_server mkdir "$pooler"
    as_server tee "$pooler/users" >/dev/null <<<"\"app\" \"$PGPASSWORD\""
    as_server tee "$pooler/pgbouncer.ini" >/dev/null <<END
[databases]
* = host=127.0.0.1 port=$PGPORT
[pgbouncer]
listen_addr =
unix_socket_dir = $pooler
listen_port = 6432
auth_type = scram-sha-256
auth_file = $pooler/users
pidfile = $pooler/pid
pool_mode = transaction
default_pool_size = 2
server_reset_query = DISCARD ALL
server_reset_query_always = 1
END
    as_server pgbouncer "$pooler/pgbouncer.ini" &
    for _ in $(seq 100); do
        [ ! -S "$pooler/.s.PGSQL.6432" ] || break
        sleep 0.1
    done
    through_it "$pooler" || status=$?
    kill -TERM "$(cat "$pooler/pid")"
    wait
    return $status
}

# Eight clients share two connections, a transaction at a time.
through_it() {
    local client clients
    for client in 1 2 3 4 5 6 7 8; do
        as_app -h "$1" -p 6432 -At -f main.sql >"ids.$client" &
        clients[client]=$!
    done
    for client in "${clients[@]}"; do wait "$client" || return 1; done
    for client in 1 2 3 4 5 6 7 8; do sort -c -n -u "ids.$client" || return 1; done
    [ "$(sort -u ids.* | wc -l)" = 1600 ] || return 1
    echo "checked 1600 ids"
}
