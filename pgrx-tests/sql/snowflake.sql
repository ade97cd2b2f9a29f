-- Would catch: an id that does not decode to its parts, bounds that leave an id out, and parts that an id
-- cannot have. Needs leaf_id.worker_id = 5 and the defaults.
\pset format unaligned
SET timezone = 'UTC';
SET datestyle = 'ISO';

-- Of this server, of this time, and in order. (On a new server ids lead the clock by 15 s.)
SELECT count(*), bool_and(worker_id = 5 AND sequence BETWEEN 0 AND 4095) AS parts,
    bool_and(id >> 12 & 1023 = 5 AND ts = to_timestamp(((id >> 22) + 1288834974657) / 1000.0)) AS as_laid_out,
    bool_and(ts BETWEEN now() - interval '10 s' AND now() + interval '16 s') AS current,
    bool_and(leaf_snowflake_decode(id) = leaf_snowflake_decode(id, 1288834974657)) AS default_epoch,
    bool_and(id = leaf_snowflake_compose(ts, worker_id, sequence)
        AND id = leaf_snowflake_compose(ts, worker_id, sequence, 1288834974657)) AS composed,
    bool_and(leaf_snowflake_min(ts) | (worker_id::bigint << 12) | sequence = id) AS lower_bound,
    bool_and(leaf_snowflake_min(ts) + x'400000'::bigint = leaf_snowflake_min(ts + interval '1 ms')) AS next_bound,
    bool_and(leaf_snowflake_min(ts) = leaf_snowflake_min(ts, 1288834974657)) AS default_epoch_of_bounds,
    bool_and(ts = leaf_snowflake_time(id) AND ts = leaf_snowflake_time(id, 1288834974657)) AS time
FROM leaf_snowflake_next_batch(10000) id, leaf_snowflake_decode(id);
SELECT leaf_snowflake_next() BETWEEN leaf_snowflake_min(now() - interval '1 min') AND leaf_snowflake_min(now() + interval '1 min') AS between;
SELECT worker_id, layout, exhausted_at FROM leaf_id.server;
-- Batches are as long as asked, also with more than a millisecond holds.
CREATE TABLE drawn (place serial, id bigint);
INSERT INTO drawn (id) SELECT leaf_snowflake_next_batch(1);
INSERT INTO drawn (id) SELECT leaf_snowflake_next();
INSERT INTO drawn (id) SELECT leaf_snowflake_next_batch(100);
INSERT INTO drawn (id) SELECT leaf_snowflake_next();
INSERT INTO drawn (id) SELECT leaf_snowflake_next_batch(4096);
INSERT INTO drawn (id) SELECT leaf_snowflake_next();
INSERT INTO drawn (id) SELECT leaf_snowflake_next_batch(20000);
INSERT INTO drawn (id) SELECT leaf_snowflake_next();
SELECT count(*), bool_and(increases) FROM (SELECT id > lag(id, 1, 0::bigint) OVER (ORDER BY place) AS increases FROM drawn) drawn;
DROP TABLE drawn;
SELECT leaf_snowflake_next_batch(0);
SELECT leaf_snowflake_next_batch(NULL);

-- Decoded: the beginning and the end of the 41 bits, epochs and layouts.
SELECT * FROM leaf_snowflake_decode(0);
SELECT * FROM leaf_snowflake_decode(1);
SELECT * FROM leaf_snowflake_decode(1729382256910270464);
SELECT * FROM leaf_snowflake_decode(1729382256910270464, 0);
SELECT * FROM leaf_snowflake_decode(9223372036854775807);
SELECT * FROM leaf_snowflake_decode(4096 + 65, 1288834974657);
SELECT * FROM leaf_snowflake_decode(4096 + 65, 1288834974657, '41/6/6');
SELECT * FROM leaf_snowflake_decode(9007199254740991, 0, '41/6/6');
SELECT * FROM leaf_snowflake_decode(3, 0, layout => '38/0/1');
-- PostgreSQL's first time.
SELECT (leaf_snowflake_decode(0, -210866803200000)).ts;

-- Bounds of times.
SELECT leaf_snowflake_min('-infinity'), leaf_snowflake_min('infinity'), leaf_snowflake_min('-infinity', 0), leaf_snowflake_min('infinity', 0);
SELECT leaf_snowflake_min('1900-01-01'), leaf_snowflake_min('2500-01-01'), leaf_snowflake_min('2010-11-04 01:42:54.657');
SELECT leaf_snowflake_min('2024-01-01'), leaf_snowflake_min('2024-01-01', 1288834974657), leaf_snowflake_min('2024-01-01', 0);
SELECT leaf_snowflake_min('2024-01-01', 0, '41/6/6'), leaf_snowflake_min('1970-01-01 00:00:00.001', 0, layout => '38/0/1');
-- Within a millisecond it is that millisecond.
SELECT leaf_snowflake_min('1970-01-01 00:00:00.001', 0), leaf_snowflake_min('1970-01-01 00:00:00.0019', 0);
SELECT leaf_snowflake_min(NULL) IS NULL AS nothing;
-- Any epoch and any time gives bounds.
SELECT count(leaf_snowflake_min(ts, epoch)), count(leaf_snowflake_min(ts, epoch, '38/0/1'))
FROM (VALUES ('-infinity'::timestamptz), ('infinity'), ('4714-11-24 00:00+00 BC'), ('294276-12-31 23:59:59.999999+00'), (now())) times (ts),
    unnest(ARRAY[-9223372036854775808, 9223372036854775807, -1, 0]) epoch;

-- The time alone; in a generated column it needs the epoch.
SELECT leaf_snowflake_time(0), leaf_snowflake_time(9223372036854775807), leaf_snowflake_time(4194304, 0),
    leaf_snowflake_time(9007199254740991, 0, '41/6/6'), leaf_snowflake_time(3, 0, layout => '38/0/1'), leaf_snowflake_time(NULL);
CREATE TABLE timed (id bigint, at timestamptz GENERATED ALWAYS AS (leaf_snowflake_time(id, 0)) STORED);
INSERT INTO timed VALUES (4194304) RETURNING *;
DROP TABLE timed;
CREATE TABLE timed (id bigint, at timestamptz GENERATED ALWAYS AS (leaf_snowflake_time(id)) STORED);

-- Composed, within a millisecond also before 1970.
SELECT arguments, id FROM (VALUES
    ('2010-11-04 01:42:54.657, 0, 0', leaf_snowflake_compose('2010-11-04 01:42:54.657', 0, 0)),
    ('the last', leaf_snowflake_compose('2080-07-10 17:30:30.208999', 1023, 4095)),
    ('epoch 0', leaf_snowflake_compose('1970-01-01', 0, 0, 0)),
    ('.0019', leaf_snowflake_compose('1970-01-01 00:00:00.0019', 2, 3, 0)),
    ('.9991 before 1970', leaf_snowflake_compose('1969-12-31 23:59:59.9991', 0, 0, -2)),
    ('41/6/6', leaf_snowflake_compose('1970-01-01 00:00:00.001', 63, 63, 0, '41/6/6')),
    ('38/0/1', leaf_snowflake_compose('1970-01-01 00:00:00.001', 0, 1, 0, layout => '38/0/1'))) composed (arguments, id);
SELECT leaf_snowflake_compose(NULL, 1, 1) IS NULL AS time, leaf_snowflake_compose(now(), NULL, 1) IS NULL AS worker_id,
    leaf_snowflake_compose(now(), 1, NULL) IS NULL AS sequence, leaf_snowflake_compose(now(), 1, 1, NULL) IS NULL AS epoch,
    leaf_snowflake_compose(now(), 1, 1, 0, NULL) IS NULL AS layout;

-- What no id is, and what none can have.
SELECT call, r.* FROM unnest(ARRAY[
    'next_batch(-1)', 'next_batch(-2147483648)',
    'decode(-1)', 'decode(-9223372036854775808)', 'decode(9007199254740992, 0, ''41/6/6'')',
    'decode(1, 9223372036854775807)', 'decode(1, -9223372036854775808)', 'decode(0, -210866803200001)',
    'time(-1)', 'time(9007199254740992, 0, ''41/6/6'')', 'time(1, 9223372036854775807)', 'time(0, -210866803200001)',
    'compose(now(), -1, 0)', 'compose(now(), 1024, 0)', 'compose(now(), 2147483647, 0)', 'compose(now(), 65536, 0)',
    'compose(now(), 64, 0, 0, ''41/6/6'')',
    'compose(now(), 1, 4096)', 'compose(now(), 1, -1)', 'compose(now(), 1, 9223372036854775807)',
    'compose(now(), 1, 65536, 0, ''46/1/16'')',
    'compose(''2010-11-04 01:42:54.656999'', 1, 1)', 'compose(''2080-07-10 17:30:30.209'', 1, 1)',
    'compose(''infinity'', 1, 1)', 'compose(''-infinity'', 1, 1)', 'compose(''294276-12-31'', 1, 1, 0, ''46/1/1'')',
    'compose(now(), 1, 1, 9223372036854775807)', 'compose(now(), 1, 1, -9223372036854775808)'
]) call, refusal('SELECT leaf_snowflake_' || call) r;
SELECT layout, r.*, count(*) AS calls
FROM unnest(ARRAY['41/10/13', '41/6', '', '41/6/6 ', U&'\00C4/6/6', U&'\0664\0661/6/6']) layout,
    unnest(ARRAY['decode(1, 0, %L)', 'min(now(), 0, %L)', 'time(1, 0, %L)', 'compose(now(), 0, 0, 0, %L)']) call,
    refusal('SELECT leaf_snowflake_' || format(call, layout)) r
GROUP BY 1, 2, 3, 4, 5 ORDER BY layout COLLATE "C";

-- Settings of the server, first with all words, then with the SQLSTATE.
CREATE TABLE bad AS SELECT format('ALTER SYSTEM SET leaf_id.%s = %L', setting, value) AS statement FROM (VALUES
    ('worker_id', '1024'), ('worker_id', '-1'), ('worker_id', 'x'), ('worker_id', '1.5'), ('worker_id', '0x1'),
    ('worker_id', '99999999999999999999'), ('worker_id', '1 2'), ('epoch', 'tomorrow'), ('snowflake_layout', ''),
    ('snowflake_layout', '41'), ('snowflake_layout', '41/6'), ('snowflake_layout', '41/10/13'), ('snowflake_layout', '37/10/12'),
    ('snowflake_layout', '47/1/1'), ('snowflake_layout', '41/16/6'), ('snowflake_layout', '41/6/0'), ('snowflake_layout', '41/6/17'),
    ('snowflake_layout', '41-6-6'), ('snowflake_layout', '041/6/6')) bad (setting, value);
SELECT statement FROM bad \gexec
\set VERBOSITY sqlstate
SELECT statement FROM bad \gexec
\set VERBOSITY default
SELECT r.* FROM unnest(ARRAY['worker_id', 'snowflake_layout']) setting, refusal(format('SET leaf_id.%s = %L', setting, '6')) r;
SELECT leaf_snowflake_next() >> 12 & 1023 AS worker_id;
DROP TABLE bad;
