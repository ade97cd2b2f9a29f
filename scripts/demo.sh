#!/usr/bin/env bash
# demo.sh run: starts a private server with leaf_id, runs many sessions that insert, and prints a
# report. demo.sh stop: stops that server and removes its data. LEAF_ID_DEMO_DIR and
# LEAF_ID_DEMO_SECONDS set its directory and duration.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

dir=${LEAF_ID_DEMO_DIR:-/tmp/leaf_id-demo}
seconds=${LEAF_ID_DEMO_SECONDS:-10}
sessions=16
log=$dir/server.log

# Only a directory with this marker is ours; nothing else is removed.
check_dir() {
    [ ${#dir} -lt 80 ] || die "the path is too long for a socket: $dir"
    [ -e "$dir" ] || [ -L "$dir" ] || return 0
    if [ -L "$dir" ] || [ ! -f "$dir/.leaf_id-demo" ] || [ "$(stat -c %U "$dir")" != "$SERVER_USER" ]; then
        die "$dir exists and is not a demo of $SERVER_USER's" "Choose another place with LEAF_ID_DEMO_DIR."
    fi
}

# Prints the pid of the running server, if any. The pid in the file may belong to another process by
# now, so check its working directory.
server_pid() {
    local pid
    pid=$(head -n 1 "$dir/data/postmaster.pid" 2>/dev/null) || return 0
    [ "$(readlink "/proc/$pid/cwd" 2>/dev/null)" != "$(readlink -f "$dir/data")" ] || echo "$pid"
}

stop_server() {
    local pid signal waited
    pid=$(server_pid)
    [ -n "$pid" ] || return 0
    # Fast, immediate, then forced.
    for signal in INT QUIT KILL; do
        kill -"$signal" "$pid" 2>/dev/null || return 0
        for ((waited = 0; waited < 200; waited++)); do
            [ -n "$(server_pid)" ] || return 0
            sleep 0.1
        done
    done
    die "the server with pid $pid does not stop" "See $log"
}

# As the server's user, to limit damage to what that user could remove anyway.
remove_dir() { as_server rm -rf "$dir"; }

query() { "$PG_BIN/psql" -X -q -v ON_ERROR_STOP=1 -h "$dir" -U postgres "$@"; }

start_server() {
    as_server mkdir -m 700 "$dir"
    as_server touch "$dir/.leaf_id-demo"
    # Trust, since only this user (and root) can access the socket directory.
    as_server "$PG_BIN/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 -N >/dev/null
    as_server tee -a "$dir/data/postgresql.conf" >/dev/null <<END
listen_addresses = ''
unix_socket_directories = '$dir'
shared_preload_libraries = 'leaf_id'
leaf_id.worker_id = '7'
END
    as_server "$PG_BIN/pg_ctl" -D "$dir/data" -l "$log" -w -t 60 start </dev/null >/dev/null
}

# From pgbench's "progress: 2.0 s, 3411.4 tps, lat 4.672 ms stddev 3.215, 0 failed".
show_progress() {
    local line
    while IFS= read -r line; do
        if [[ $line =~ ^progress:\ ([0-9]+)[0-9.]*\ s,\ ([0-9]+)[0-9.]*\ tps,\ lat\ ([0-9.]+)\ ms ]]; then
            printf '    %3d s  %9s transactions per second, %4.1f ms each\n' \
                "${BASH_REMATCH[1]}" "$(thousands "${BASH_REMATCH[2]}")" "${BASH_REMATCH[3]}"
        else
            printf '    %s\n' "$line"
        fi
    done
}

# Exit after a failure: show the server log, and leave no server behind.
give_up() {
    local status=$?
    trap - EXIT
    # From 128 on, it was a signal: the user wants to stop.
    if [ $status -lt 128 ] && [ -f "$log" ]; then
        echo "The end of the server's log:" >&2
        tail -n 15 "$log" >&2
    fi
    stop_server
    exit $status
}

run() {
    local result transactions rolled_back client
    check_dir
    "$ROOT/scripts/build.sh"
    need_rust
    locate_copy

    # Again: building takes minutes.
    check_dir
    if [ -e "$dir" ]; then
        say "Ending the demo that was there before"
        stop_server
        remove_dir
    fi
    trap give_up EXIT
    trap 'exit 130' INT TERM

    say "Starting a private PostgreSQL in $dir"
    start_server
    query -d postgres -c 'CREATE DATABASE shop'
    query -d shop -c "ALTER DATABASE shop SET search_path = shop, public"
    query -d shop -f scripts/demo/schema.sql >/dev/null
    note "shared_preload_libraries = 'leaf_id', leaf_id.worker_id = '7'"
    note "orders.id       bigint DEFAULT leaf_segment_next('orders')"
    note "order_lines.id  bigint DEFAULT leaf_snowflake_next()"

    say "The first snowflake id"
    note "$(query -d shop -At -U shop -c 'SELECT leaf_snowflake_next()')"

    say "$sessions sessions insert orders and their lines for $seconds s; one in ten changes its mind"
    result=$TARGET/demo-pgbench.log
    # Progress goes to standard error, the result to a file.
    "$PG_BIN/pgbench" -h "$dir" -U shop -n -c $sessions -j 2 -T "$seconds" -P 2 \
        -f scripts/demo/order.sql@8 -f scripts/demo/import.sql@1 -f scripts/demo/rollback.sql@1 \
        shop 2>&1 >"$result" | show_progress
    transactions=$(sed -nE 's/^number of transactions actually processed: ([0-9]+).*/\1/p' "$result")
    rolled_back=$(query -d shop -At -c 'SELECT count(*) FROM rolled_back')
    [ "${transactions:-0}" -gt 0 ] || die "pgbench made no transaction"

    say "Counting"
    echo
    printf "%s, %s sessions at once on %s processors, %s s\n" \
        "$("$PG_BIN/postgres" -V | sed -E 's/^postgres \(PostgreSQL\) ([0-9.]+).*/PostgreSQL \1/')" \
        $sessions "$(nproc)" "$seconds"
    # A row stands for a rolled back transaction (and for one that recorded it).
    printf '  %-28s %15s\n' 'transactions committed' "$(thousands "$transactions")" \
        'transactions rolled back' "$(thousands "$rolled_back")"
    query -d shop -v seconds="$seconds" -f scripts/demo/report.sql

    trap - EXIT INT TERM
    client=psql
    command -v psql >/dev/null || client=$PG_BIN/psql
    echo "All of it, from nothing to here, in $(duration $SECONDS). The server keeps running:"
    echo
    echo "  go on    $client -h $dir -U postgres shop"
    echo "           SELECT leaf_segment_next('orders'), leaf_snowflake_decode(leaf_snowflake_next());"
    echo "  its log  $log"
    echo "  stop     make demo-stop"
}

stop() {
    check_dir
    if [ ! -e "$dir" ]; then
        say "No demo is running"
        return
    fi
    stop_server
    remove_dir
    say "The demo's server has stopped, its data is removed"
}

case ${1:-} in
run | stop) "$1" ;;
*) die "demo.sh run|stop" ;;
esac
