#!/usr/bin/env bash
# A first look at speed: what one session pays for an id, over a call that does nothing,
# on a private server that ends with this script. The generators take turns in each
# round, so that what else the machine does falls on all of them.
# LEAF_ID_SPEED_IDS and LEAF_ID_SPEED_ROUNDS change how many ids, and how often.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ids=${LEAF_ID_SPEED_IDS:-2000000}
rounds=${LEAF_ID_SPEED_ROUNDS:-9}
[[ $ids =~ ^[1-9][0-9]{0,7}$ && $rounds =~ ^[1-9][0-9]{0,2}$ ]] ||
    die "LEAF_ID_SPEED_IDS is 1 to 99999999, LEAF_ID_SPEED_ROUNDS 1 to 999"

query() { "$PG_BIN/psql" -X -q -v ON_ERROR_STOP=1 -h "$dir" -U postgres -d postgres "$@"; }

start_server() {
    # Trust, since only this user (and root) can reach the socket in there.
    as_server "$PG_BIN/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 -N >/dev/null
    as_server tee -a "$dir/data/postgresql.conf" >/dev/null <<END
listen_addresses = ''
unix_socket_directories = '$dir'
shared_preload_libraries = 'leaf_id'
leaf_id.worker_id = '1'
jit = off
# So that generate_series stays in memory.
work_mem = '1GB'
END
    as_server "$PG_BIN/pg_ctl" -D "$dir/data" -l "$dir/server.log" -w -t 60 start </dev/null >/dev/null
}

# However this script ends: no server and no files are left behind.
clean_up() {
    local status=$?
    trap - EXIT
    if [ $status -ne 0 ] && [ $status -lt 128 ] && [ -f "$dir/server.log" ]; then
        echo "The end of the server's log:" >&2
        tail -n 15 "$dir/server.log" >&2
    fi
    if [ -f "$dir/data/postmaster.pid" ]; then
        as_server "$PG_BIN/pg_ctl" -D "$dir/data" -m immediate -w -t 60 stop >/dev/null || status=1
    fi
    as_server rm -rf "$dir"
    exit $status
}

# What is measured, and how. count() rather than max(), which uuid does not have.
prepare() {
    query <<'SQL'
CREATE EXTENSION leaf_id;
SELECT leaf_tag_create('speed') \g /dev/null
CREATE SEQUENCE cache_1;
CREATE SEQUENCE cache_1000 CACHE 1000;
CREATE TABLE contender (place int, expression text, label text);
INSERT INTO contender VALUES
    (0, 'pg_backend_pid()', 'pg_backend_pid()'),
    (1, 'leaf_segment_next(''speed'')', 'leaf_segment_next(''speed'')'),
    (2, 'leaf_snowflake_next()', 'leaf_snowflake_next()'),
    (3, 'nextval(''cache_1'')', 'nextval, CACHE 1'),
    (4, 'nextval(''cache_1000'')', 'nextval, CACHE 1000'),
    (5, 'gen_random_uuid()', 'gen_random_uuid()');
CREATE UNLOGGED TABLE measured (round int, place int, ns numeric);
CREATE UNLOGGED TABLE refilled (refills bigint, waits bigint, waited_ms double precision);
CREATE FUNCTION measure(round int, place int, ids int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    query text := format('SELECT count(%s) FROM generate_series(1, %s)',
        (SELECT c.expression FROM contender c WHERE c.place = $2), ids);
    began timestamptz := clock_timestamp();
BEGIN
    EXECUTE query;
    INSERT INTO measured
        SELECT $1, $2, extract(epoch FROM clock_timestamp() - began) * 1e9 / ids;
END
$$;
SQL
}

# Each turn is a transaction of its own. Round 0 warms up and does not count: the tag's
# step grows there.
measure() {
    local round
    for ((round = 0; round <= rounds; round++)); do
        for place in 0 1 2 3 4 5; do
            echo "SELECT measure($round, $place, $ids) \\g /dev/null"
        done
        [ $round -gt 0 ] ||
            echo "INSERT INTO refilled SELECT refills, waits, waited_ms FROM leaf_segment_status;"
    done | query
}

# Ratios are taken within each round, before the median. The call that does nothing, with
# its loop, is subtracted first.
report() {
    query -At -F '' <<'SQL'
CREATE TEMP VIEW net AS
    SELECT m.round, m.place, m.ns - idle.ns AS ns
    FROM measured m JOIN measured idle ON idle.round = m.round AND idle.place = 0
    WHERE m.round > 0 AND m.place > 0;
CREATE FUNCTION pg_temp.spread(figures numeric[], digits int) RETURNS text LANGUAGE sql AS $$
    SELECT format('%7s  %7s .. %-7s',
        round((percentile_cont(0.5) WITHIN GROUP (ORDER BY n))::numeric, digits),
        round(min(n), digits), round(max(n), digits))
    FROM unnest(figures) n
$$;
SELECT format('  %-26s  %-26s  %-26s', '', 'relative to CACHE 1', 'ns per id');
SELECT format('  %-26s  %-26s  %-26s', '', ' median      min .. max', ' median      min .. max');
SELECT format('  %-26s  %s  %s', c.label,
    pg_temp.spread(array_agg(net.ns / sequence.ns), 2), pg_temp.spread(array_agg(net.ns), 0))
FROM net JOIN contender c USING (place)
    JOIN net sequence ON sequence.round = net.round AND sequence.place = 3
GROUP BY c.place, c.label ORDER BY c.place;
SELECT format(E'\n  Subtracted: %s ns per call of pg_backend_pid() in the same loop (%s .. %s).',
    round((percentile_cont(0.5) WITHIN GROUP (ORDER BY ns))::numeric), round(min(ns)), round(max(ns)))
FROM measured WHERE place = 0 AND round > 0;
SELECT format('  Segments of %s ids (it began at 1000): %s claimed meanwhile, %s waits for one, %s ms together.',
    s.step, s.refills - r.refills, s.waits - r.waits, round((s.waited_ms - r.waited_ms)::numeric, 1))
FROM leaf_segment_status s, refilled r;
SQL
    echo "  Snowflake ids are limited by their layout: 4,096 per millisecond, 244 ns each, loop included."
}

"$ROOT/scripts/build.sh"
locate_copy
dir=$(as_server mktemp -d /tmp/leaf_id-speed.XXXXXX)
trap clean_up EXIT
trap 'exit 130' INT TERM

say "Starting a private PostgreSQL"
start_server
prepare
say "Measuring: $rounds rounds, $(thousands "$ids") ids of each kind in one statement (and a round to warm up)"
measure
echo
printf 'One session, %s, %s processors\n' \
    "$("$PG_BIN/postgres" -V | sed -E 's/^postgres \(PostgreSQL\) ([0-9.]+).*/PostgreSQL \1/')" "$(nproc)"
query -At -F '' -c "SELECT '  ' || string_agg(name || ' = ' || current_setting(name), ', ' ORDER BY name)
    FROM unnest('{jit,work_mem,shared_buffers,fsync,wal_level,synchronous_commit}'::text[]) name"
echo
report | sed 's/ *$//'
echo
