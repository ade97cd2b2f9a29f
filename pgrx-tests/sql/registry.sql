-- The functions of the worker registry: what they take and refuse, from whom, and what its owner decides for all.
-- (They refuse a transaction block, and so a function that catches errors: statements of their own.)
\set SHOW_CONTEXT never
CREATE FUNCTION public.now_ms() RETURNS bigint LANGUAGE sql AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint';
\set now public.now_ms()
-- Messages: system identifier, node, token and next token, what is held; then what its server is set to.
CREATE FUNCTION public.message(
    kind text, system_identifier bigint, node_name text, token bigint, next_token bigint, held integer, held_until_ms bigint,
    now_ms bigint, reserve_until_ms bigint, lease_ms bigint, max_skew_ms bigint, max_lead_ms bigint, epoch_ms bigint, layout text)
RETURNS text LANGUAGE sql AS $$
    SELECT json_build_object('version', 1, 'question', json_build_object('kind', kind, 'token', coalesce(token, 0),
            'next_token', next_token, 'lease_ms', lease_ms,
            'held', CASE WHEN held IS NOT NULL THEN json_build_object('worker_id', held, 'reserved_until_ms', coalesce(held_until_ms, 0)) END),
        'system_identifier', system_identifier, 'node_name', node_name, 'now_ms', now_ms, 'reserve_until_ms', reserve_until_ms,
        'max_skew_ms', max_skew_ms, 'max_lead_ms', max_lead_ms, 'epoch_ms', epoch_ms, 'layout', layout)::text
$$;
CREATE FUNCTION public.answer(
    answer json, OUT status text, OUT worker_id integer, OUT floor_ms bigint, OUT reserved_until_ms bigint, OUT registry_ms bigint,
    OUT detail text, OUT lease_ms bigint, OUT max_skew_ms bigint, OUT max_lead_ms bigint)
LANGUAGE sql AS $$
    SELECT coalesce(answer #>> '{outcome,Err,status}', 'granted'), ok.worker_id, ok.floor_ms, ok.reserved_until_ms,
        (answer ->> 'registry_ms')::bigint, answer #>> '{outcome,Err,detail}', ok.lease_ms, (answer ->> 'max_skew_ms')::bigint, ok.max_lead_ms
    FROM json_to_record(coalesce(answer #> '{outcome,Ok}', '{}'))
        ok (worker_id integer, floor_ms bigint, reserved_until_ms bigint, lease_ms bigint, max_lead_ms bigint)
$$;
\set terms ':now, :now + 60000, 60000, 1000, 15000, 1288834974657, ''41/10/12'''
\set rows 'SELECT (SELECT count(*) FROM leaf_id.leaf_worker) + (SELECT count(*) FROM leaf_id.leaf_registry) AS rows;'
CREATE ROLE leaf_id_x;
CREATE ROLE leaf_id_y;
CREATE ROLE leaf_id_monitor IN ROLE pg_monitor;

-- Not in a transaction block, in several statements or where an error is caught.
BEGIN;
SELECT token FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', NULL, 2, NULL, NULL, :terms));
\echo :SQLSTATE
ROLLBACK;
SELECT token FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', NULL, 2, NULL, NULL, :terms)) \; SELECT 1;
\echo :SQLSTATE
\set claim 'SELECT token FROM ts_parse(''leaf_id.leaf_worker_lease'', public.message(''claim'', 4711, ''n'', NULL, 2, NULL, NULL, ' :terms '))'
SELECT sqlstate, message FROM refusal(:'claim');
BEGIN;
SELECT token FROM ts_parse('leaf_id.leaf_worker_lease', public.message('renew', 4711, 'n', NULL, 2, 0, 0, :terms));
\echo :SQLSTATE
ROLLBACK;
SELECT token FROM ts_parse('leaf_id.leaf_worker_lease', public.message('renew', 4711, 'n', NULL, 2, 0, 0, :terms)) \; SELECT 1;
\echo :SQLSTATE
\set renewal 'SELECT token FROM ts_parse(''leaf_id.leaf_worker_lease'', public.message(''renew'', 4711, ''n'', NULL, 2, 0, 0, ' :terms '))'
SELECT sqlstate, message FROM refusal(:'renewal');
:rows

-- Arguments that no server sends leave nothing behind. Each in the place of a usual one.
CREATE TABLE usual (n int, argument text, value text);
INSERT INTO usual VALUES
    (1, 'system_identifier', '1'), (2, 'node_name', '''a'''), (3, 'token', 'NULL'), (4, 'next_token', '5'),
    (5, 'held', 'NULL'), (6, 'held_until_ms', 'NULL'), (7, 'now_ms', :'now'), (8, 'reserve_until_ms', :'now'),
    (9, 'lease_ms', '2000'), (10, 'max_skew_ms', '1000'), (11, 'max_lead_ms', '1000'),
    (12, 'epoch_ms', '1288834974657'), (13, 'layout', '''41/10/12''');
CREATE TABLE absurd (n int GENERATED ALWAYS AS IDENTITY, changes jsonb);
INSERT INTO absurd (changes)
SELECT jsonb_build_object(argument, 'NULL') FROM usual
WHERE argument NOT IN ('token', 'held', 'held_until_ms') ORDER BY n;
INSERT INTO absurd (changes)
SELECT jsonb_build_object(argument, value)
FROM (VALUES ('node_name', '{"repeat(''x'', 64)","E''a\\nb''"}'::text[]),
             ('next_token', '{0}'),
             ('held', '{-1,65536,2147483647,-2147483648}'),
             ('now_ms', '{-9223372036854775808,9223372036854775807,-1}'),
             ('lease_ms', '{0,-1,86400001,2147483647}'),
             ('max_skew_ms', '{-1,3600001,2147483647,-2147483648}'),
             ('max_lead_ms', '{-1,3600001,2147483647,-2147483648}'),
             ('layout', '{"''''","''41/10''","''41/10/13''","''41/10/12 ''","U&''\\00e4''"}')) a (argument, vals),
     unnest(vals) value;
INSERT INTO absurd (changes) VALUES ('{"held": "1024", "held_until_ms": "1"}'), ('{"token": "6", "next_token": "6"}');
CREATE VIEW calls AS
SELECT absurd.n, format('SELECT token FROM ts_parse(''leaf_id.leaf_worker_lease'', public.message(''claim'', %s))',
    string_agg(coalesce(changes ->> argument, value), ', ' ORDER BY usual.n)) AS call
FROM absurd, usual GROUP BY absurd.n;
\set VERBOSITY sqlstate
SELECT call FROM calls ORDER BY n \gexec
\set VERBOSITY default
:rows
-- In words.
SELECT call FROM calls WHERE n IN (1, 11) ORDER BY n \gexec
-- These are possible, if strange: what is reserved is bounded, and another epoch is refused.
CREATE FUNCTION bounded(reserved_until_ms bigint, registry_ms bigint) RETURNS boolean LANGUAGE sql
    AS 'SELECT reserved_until_ms BETWEEN 0 AND registry_ms + 10000';
\set what 'status, worker_id, floor_ms, bounded(reserved_until_ms, registry_ms), left(detail, 20) AS detail'
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', -9223372036854775808, 'a', NULL, 101, 9, 9223372036854775807, :now, 9223372036854775807, 2000, 1000, 1000, 1288834974657, '41/10/12')) \gset
SELECT :what FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', -9223372036854775808, 'a', NULL, 102, 9, 9223372036854775807, :now, 9223372036854775807, 2000, 1000, 1000, 9223372036854775807, '41/10/12')) \gset
SELECT :what FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 9223372036854775807, 'a', NULL, 103, 9, -9223372036854775808, :now, -9223372036854775808, 2000, 1000, 1000, 1288834974657, '41/10/12')) \gset
SELECT :what FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 9223372036854775807, 'a', NULL, 104, 9, -9223372036854775808, :now, -9223372036854775808, 2000, 1000, 1000, 9223372036854775807, '41/10/12')) \gset
SELECT :what FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('renew', -9223372036854775808, 'a', -9223372036854775808, 101, 0, 0, :now, 9223372036854775807, 86400000, 3600000, 3600000, 1288834974657, '41/10/12')) \gset
SELECT status, worker_id FROM public.answer(:'answer');
SELECT count(*) FROM leaf_id.fleet WHERE kind = 'member';
DROP VIEW calls;
DROP TABLE usual, absurd;
DROP FUNCTION bounded;
DELETE FROM leaf_id.leaf_worker;
DELETE FROM leaf_id.leaf_registry;

-- EXECUTE is needed, and nothing else is given with it.
SET ROLE leaf_id_x;
SELECT token FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :terms));
\echo :SQLSTATE
RESET ROLE;
GRANT EXECUTE ON FUNCTION leaf_id.leaf_worker_lease TO leaf_id_x, leaf_id_y;
SET ROLE leaf_id_x;
-- Nothing of the caller's is run with the owner's rights.
CREATE TEMP TABLE leaf_worker (worker_id int);
CREATE TEMP TABLE leaf_registry (one bool);
CREATE FUNCTION pg_temp.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql
    AS 'BEGIN RAISE EXCEPTION ''run as %'', current_user; END';
SET search_path = pg_temp, pg_catalog;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 987654321, NULL, NULL, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('renew', 4711, 'n', 987654321, 987654322, 0, 0, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
RESET search_path;
DROP TABLE pg_temp.leaf_worker, pg_temp.leaf_registry;
SELECT statement, sqlstate, message
FROM (VALUES ('SELECT leaf_id.leaf_worker_release(0)'),
             ('SELECT leaf_id.leaf_worker_retire(0)'),
             ('SELECT * FROM leaf_id.leaf_worker'),
             ('SELECT * FROM leaf_id.leaf_registry'),
             ('SELECT * FROM leaf_id.fleet'),
             ('DELETE FROM leaf_id.leaf_worker'),
             ('UPDATE leaf_id.leaf_registry SET epoch_ms = 0')) s (statement), refusal(statement);
SET ROLE leaf_id_monitor;
SELECT name, role_name FROM leaf_id.fleet WHERE state = 'leased';
SELECT epoch_ms FROM leaf_id.leaf_registry;
SELECT sqlstate, message FROM refusal('SELECT * FROM leaf_id.leaf_worker');
SELECT token FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 2, 3, NULL, NULL, :terms));
RESET ROLE;
-- A role that sees a token can pass for its holder.
SELECT w::text LIKE '%98765432%' AS kept, s::text LIKE '%98765432%' AS shown FROM leaf_id.leaf_worker w, leaf_id.fleet s;
DELETE FROM leaf_id.leaf_worker;

-- Another role cannot take a name, though it knows the token.
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
RESET ROLE;
CREATE TABLE was AS SELECT w::text AS row FROM leaf_id.leaf_worker w;
CREATE VIEW as_before AS SELECT was.row = w::text AS as_before FROM was, leaf_id.leaf_worker w;
GRANT SELECT ON as_before TO PUBLIC;
SET ROLE leaf_id_y;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 2, 3, NULL, NULL, :terms)) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('renew', 4711, 'n', 2, 3, 0, 0, :terms)) \gset
SELECT status, detail FROM public.answer(:'answer');
TABLE as_before;
-- Names of another role's servers are not revealed.
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('renew', 4711, 'm', 2, 3, 0, 0, :terms)) \gset
SELECT status, detail FROM public.answer(:'answer');
RESET ROLE;
-- Release and retire are for the owner, and where they are granted, for the role itself.
GRANT EXECUTE ON FUNCTION leaf_id.leaf_worker_release, leaf_id.leaf_worker_retire, leaf_id.leaf_worker_set_aside TO leaf_id_x, leaf_id_y;
SET ROLE leaf_id_y;
SELECT call, r.*
FROM (VALUES ('leaf_id.leaf_worker_release(0)'), ('leaf_id.leaf_worker_retire(0)'), ('leaf_id.leaf_worker_set_aside(0, now())')) c (call),
     refusal('SELECT ' || call) r \gx
TABLE as_before;
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('renew', 4711, 'n', 2, 3, 0, 0, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
SELECT leaf_id.leaf_worker_release(0);
SET ROLE leaf_id_y;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
RESET ROLE;
SELECT leaf_id.leaf_worker_release(1);
-- After SET ROLE, the current role counts.
GRANT leaf_id_x TO leaf_id_y;
SET SESSION AUTHORIZATION leaf_id_y;
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
RESET SESSION AUTHORIZATION;
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('renew', 4711, 'n', 2, 3, 2, 0, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
RESET ROLE;
SELECT worker_id, role_name FROM leaf_id.fleet ORDER BY 1;
DROP VIEW as_before;
DROP TABLE was;
DELETE FROM leaf_id.leaf_worker;

-- What is beyond the bounds is clamped.
\set greedy ':now, :now + 86400000, 86400000, 3600000, 3600000, 1288834974657, ''41/10/12'''
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :greedy)) \gset
SELECT status, lease_ms, max_skew_ms, max_lead_ms, reserved_until_ms - registry_ms BETWEEN 3616000 AND 3616999 AS reserved
FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('renew', 4711, 'n', 2, 3, 0, 0, :greedy)) \gset
SELECT status, lease_ms FROM public.answer(:'answer');
RESET ROLE;
-- Nothing is granted after a promotion for as long as that, and no longer.
UPDATE leaf_id.leaf_registry SET timeline = 0;
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'new', 1, 2, NULL, NULL, :terms)) \gset
SELECT status, substring(detail FROM 'in 3600000 ms') AS detail FROM public.answer(:'answer');
RESET ROLE;
DELETE FROM leaf_id.leaf_worker;
DELETE FROM leaf_id.leaf_registry;

-- The registry's row is as its owner would insert it.
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
CREATE VIEW bounds AS SELECT max_skew_ms, max_lease_ms, max_lead_ms, max_ids_per_role FROM leaf_id.leaf_registry;
TABLE bounds;
DELETE FROM leaf_id.leaf_registry;
INSERT INTO leaf_id.leaf_registry DEFAULT VALUES;
TABLE bounds;
DROP VIEW bounds;
-- It was created here, so nothing is forgotten.
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'b', 1, 2, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
-- NULL is any number.
UPDATE leaf_id.leaf_registry SET max_ids_per_role = 1;
SET ROLE leaf_id_y;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'c', 1, 2, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'd', 1, 2, NULL, NULL, :terms)) \gset
SELECT status, detail FROM public.answer(:'answer');
RESET ROLE;
UPDATE leaf_id.leaf_registry SET max_ids_per_role = NULL;
SET ROLE leaf_id_y;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'd', 1, 2, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
RESET ROLE;
SELECT change, sqlstate, message
FROM unnest('{max_skew_ms = -1,max_lease_ms = 999,max_lead_ms = 3600001,max_lead_ms = -1,max_ids_per_role = 32769,
              moved_floor_ms = -1,layout = '''',layout = ''41/10/13'',layout = ''41/10/12 '',layout = ''37/10/12'',
              layout = ''41/16/6'',layout = ''41/10/0'',"layout = E''41/10/12\\n''"}'::text[]) change,
     refusal('UPDATE leaf_id.leaf_registry SET ' || change);

-- How far a clock may be off is the stricter one of both.
UPDATE leaf_id.leaf_registry SET max_skew_ms = 200;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'e', 1, 2, NULL, NULL, :now + 900, :now + 60000, 60000, 1000, 15000, 1288834974657, '41/10/12')) \gset
SELECT status, max_skew_ms FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'e', 1, 2, NULL, NULL, :now + 900, :now + 60000, 60000, 50, 15000, 1288834974657, '41/10/12')) \gset
SELECT status, max_skew_ms FROM public.answer(:'answer');

-- The epoch is the owner's to say, and not the first member's.
DELETE FROM leaf_id.leaf_worker;
DELETE FROM leaf_id.leaf_registry;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :now, :now + 60000, 60000, 1000, 15000, 0, '41/10/12')) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :now, :now + 60000, 60000, 1000, 15000, 1288834974656, '41/10/12')) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :now, :now + 60000, 60000, 1000, 15000, 1288834974658, '41/10/12')) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
DELETE FROM leaf_id.leaf_worker;
DELETE FROM leaf_id.leaf_registry;
INSERT INTO leaf_id.leaf_registry (epoch_ms) VALUES (7);
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :terms)) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :now, :now + 60000, 60000, 1000, 15000, 7, '41/10/12')) \gset
SELECT status, floor_ms FROM public.answer(:'answer');

-- So is the layout, which says how many worker ids there are.
DELETE FROM leaf_id.leaf_worker;
DELETE FROM leaf_id.leaf_registry;
\set small ':now, :now + 60000, 60000, 1000, 15000, 1288834974657, ''41/6/6'''
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :small)) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
SELECT layout FROM leaf_id.leaf_registry;
DELETE FROM leaf_id.leaf_worker;
DELETE FROM leaf_id.leaf_registry;
INSERT INTO leaf_id.leaf_registry (layout) VALUES ('41/6/6');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :terms)) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT count(leaf_id.leaf_worker_retire(n)) FROM generate_series(0, 62) n;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'n', 1, 2, NULL, NULL, :small)) \gset
SELECT * FROM refusal('SELECT leaf_id.leaf_worker_retire(64)') \gx
SELECT status, worker_id FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('renew', 4711, 'n', 2, 3, 63, 0, :small)) \gset
SELECT status FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('renew', 4711, 'n', 2, 3, 63, 0, :terms)) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message('claim', 4711, 'm', 1, 2, NULL, NULL, :small)) \gset
SELECT status, detail FROM public.answer(:'answer');

-- A tool that follows rows by a trigger, and puts its copy in their place, would take leases back.
CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER copied AFTER UPDATE ON leaf_id.leaf_worker FOR EACH ROW EXECUTE FUNCTION follow();
SELECT * FROM refusal('SELECT leaf_id.leaf_worker_retire(5, false)') \gx
ALTER TABLE leaf_id.leaf_worker DISABLE TRIGGER copied;
SELECT leaf_id.leaf_worker_retire(5, false);
CREATE TRIGGER copied AFTER UPDATE ON leaf_id.leaf_registry FOR EACH ROW EXECUTE FUNCTION follow();
SELECT sqlstate, detail FROM refusal('SELECT leaf_id.leaf_worker_retire(5)');
ALTER TABLE leaf_id.leaf_registry DISABLE TRIGGER copied;
CREATE TRIGGER copied AFTER UPDATE ON leaf_id.leaf_registry_origin FOR EACH ROW EXECUTE FUNCTION follow();
SELECT * FROM refusal('SELECT leaf_id.leaf_worker_retire(5, false)') \gx
ALTER TABLE leaf_id.leaf_registry_origin DISABLE TRIGGER copied;
SELECT leaf_id.leaf_worker_retire(5, false);
DROP FUNCTION follow() CASCADE;

DELETE FROM leaf_id.leaf_worker;
DELETE FROM leaf_id.leaf_registry;
DROP OWNED BY leaf_id_x, leaf_id_y, leaf_id_monitor;
DROP ROLE leaf_id_x, leaf_id_y, leaf_id_monitor;
DROP FUNCTION public.now_ms(), public.message, public.answer;
