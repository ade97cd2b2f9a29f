-- Would catch: a function that cannot stand in a table where its arguments say all, or can where they do
-- not; and a backfill as in docs/guide.md that repeats an id. Needs leaf_id.worker_id = 5.
\pset format unaligned
\set SHOW_CONTEXT never
SET timezone = 'UTC';

-- With an epoch a function is immutable: it stands in an index, a check and a generated column.
CREATE TABLE events (
    id bigint PRIMARY KEY DEFAULT leaf_snowflake_next()
        CHECK (id >= leaf_snowflake_min('2020-01-01 00:00+00', 1288834974657)),
    at timestamptz GENERATED ALWAYS AS ((leaf_snowflake_decode(id, 1288834974657)).ts) STORED);
INSERT INTO events SELECT FROM generate_series(1, 100);
SELECT count(*), bool_and(at BETWEEN now() - interval '1 min' AND now() + interval '1 min') AS current FROM events;
DROP TABLE events;
CREATE TABLE events (
    at timestamptz NOT NULL, n integer NOT NULL,
    id bigint PRIMARY KEY GENERATED ALWAYS AS (leaf_snowflake_compose(at, 900, n, 1288834974657)) STORED,
    CHECK (leaf_snowflake_compose(at, 900, n, 1288834974657, '41/10/12') = id));
CREATE INDEX ON events (leaf_snowflake_compose(at, 0, 0, 1288834974657, '41/6/6'));
INSERT INTO events (at, n) SELECT now(), n FROM generate_series(0, 4095) n;
SELECT count(DISTINCT id) FROM events;
SELECT r.sqlstate, r.message FROM refusal('INSERT INTO events (at, n) VALUES (now(), 4096)') r;
DROP TABLE events;
-- Without one it follows the setting.
SELECT r.sqlstate, r.message FROM unnest(ARRAY['(leaf_snowflake_decode(n)).ts', 'to_timestamp(leaf_snowflake_compose(at, 900, 0))']) expression,
    refusal(format('CREATE TABLE wrong (n bigint, at timestamptz, made timestamptz GENERATED ALWAYS AS (%s) STORED)', expression)) r;

-- A backfill beside live ids, with as many rows in some milliseconds as these hold.
CREATE TABLE old_events (created_at timestamptz NOT NULL, what text NOT NULL);
INSERT INTO old_events
    SELECT timestamptz '2020-01-01 00:00+00' + (i / 4096) * interval '1 ms' + (i % 7) * interval '100 us', 'row ' || i
    FROM generate_series(0, 8191) i
    UNION ALL SELECT now() - i * interval '1 ms', 'recent row ' || i FROM generate_series(1, 2000) i;
CREATE TABLE events (id bigint PRIMARY KEY DEFAULT leaf_snowflake_next(), what text NOT NULL, live boolean);
INSERT INTO events (what, live) SELECT 'live', true FROM generate_series(1, 5000);
INSERT INTO events (id, what)
    SELECT leaf_snowflake_compose(created_at, 900,
        row_number() OVER (PARTITION BY date_trunc('milliseconds', created_at) ORDER BY created_at, what) - 1,
        1288834974657, '41/10/12'), what
    FROM old_events;
INSERT INTO events (what, live) SELECT 'live', true FROM generate_series(1, 5000);
SELECT live, count(*) FROM events GROUP BY live ORDER BY live;
-- Each carries its row's time, and follows the order.
SELECT bool_and(d.ts = date_trunc('milliseconds', created_at) AND d.worker_id = 900) AS of_their_time
FROM events e JOIN old_events o USING (what), leaf_snowflake_decode(e.id) d;
SELECT bool_and(increases) AS in_order
FROM (SELECT e.id > lag(e.id) OVER (ORDER BY created_at, what) IS NOT false AS increases FROM events e JOIN old_events o USING (what)) pairs;
-- One row more than a millisecond holds.
INSERT INTO old_events VALUES ('2020-01-01 00:00+00', 'one more');
SELECT leaf_snowflake_compose(created_at, 900, row_number() OVER (PARTITION BY date_trunc('milliseconds', created_at)) - 1) FROM old_events;
DROP TABLE old_events, events;

-- A backfill of dates: many rows of one time spill over into the milliseconds after it.
CREATE TABLE old_bills (billed_on date NOT NULL, n integer NOT NULL);
INSERT INTO old_bills SELECT date '2020-01-01' + i % 2, i FROM generate_series(1, 20001) i;
CREATE TABLE bills (id bigint PRIMARY KEY, billed_on date, n integer);
INSERT INTO bills
    SELECT leaf_snowflake_compose(billed_on + (k / 4096) * interval '1 ms', 901, k % 4096, 1288834974657, '41/10/12'), billed_on, n
    FROM (SELECT *, row_number() OVER (PARTITION BY billed_on ORDER BY n) - 1 AS k FROM old_bills) numbered;
SELECT count(*), bool_and((leaf_snowflake_decode(id)).ts::date = billed_on) AS of_their_day FROM bills;
DROP TABLE old_bills, bills;
