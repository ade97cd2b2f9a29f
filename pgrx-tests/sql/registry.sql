-- The functions of the worker registry: what they take and refuse, from whom, and what its owner decides for all.
-- (They refuse a transaction block, and so a function that catches errors: statements of their own.)
\set SHOW_CONTEXT never
CREATE FUNCTION public.now_ms() RETURNS bigint LANGUAGE sql AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint';
\set now public.now_ms()
-- Rows cannot be deleted.
\set forget_workers 'SET session_replication_role = replica; DELETE FROM leaf_id.leaf_worker; RESET session_replication_role;'
\set forget_registry 'SET session_replication_role = replica; DELETE FROM leaf_id.leaf_registry; RESET session_replication_role;'
-- Messages: system identifier, node, token and next token, the segment held; then what its server is set to.
CREATE FUNCTION public.message(
    system_identifier bigint, node_name text, token bigint, next_token bigint, held integer, floor_ms bigint, until_ms bigint,
    now_ms bigint, epoch_ms bigint, layout text)
RETURNS text LANGUAGE sql AS $$
    SELECT json_build_object('version', 1, 'question', json_build_object('token', coalesce(token, 0), 'next_token', next_token,
            'held', CASE WHEN held IS NOT NULL THEN json_build_object('worker_id', held,
                'floor_ms', coalesce(floor_ms, 0), 'reserved_until_ms', coalesce(until_ms, 0)) END),
        'system_identifier', system_identifier, 'node_name', node_name, 'now_ms', now_ms, 'epoch_ms', epoch_ms, 'layout', layout)::text
$$;
CREATE FUNCTION public.answer(
    answer json, OUT status text, OUT worker_id integer, OUT floor_ms bigint, OUT reserved_until_ms bigint, OUT registry_ms bigint,
    OUT detail text, OUT ahead_ms bigint, OUT max_skew_ms bigint)
LANGUAGE sql AS $$
    SELECT coalesce(answer #>> '{answer,outcome,Err}', 'granted'), ok.worker_id, ok.floor_ms, ok.reserved_until_ms,
        (answer #>> '{answer,registry_ms}')::bigint, nullif(answer ->> 'detail', ''),
        (answer #>> '{answer,ahead_ms}')::bigint, (answer #>> '{answer,max_skew_ms}')::bigint
    FROM json_to_record(coalesce(answer #> '{answer,outcome,Ok}', '{}'))
        ok (worker_id integer, floor_ms bigint, reserved_until_ms bigint)
$$;
\set terms 'public.now_ms(), 1288834974657, ''41/10/12'''
\set rows 'SELECT (SELECT count(*) FROM leaf_id.leaf_worker) + (SELECT count(*) FROM leaf_id.leaf_registry) AS rows;'
CREATE ROLE leaf_id_x;
CREATE ROLE leaf_id_y;
CREATE ROLE leaf_id_monitor IN ROLE pg_monitor;

-- Not in a transaction block, in several statements or where an error is caught.
BEGIN;
SELECT token FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', NULL, 2, NULL, NULL, NULL, :terms));
\echo :SQLSTATE
ROLLBACK;
SELECT token FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', NULL, 2, NULL, NULL, NULL, :terms)) \; SELECT 1;
\echo :SQLSTATE
\set claim 'SELECT token FROM ts_parse(''leaf_id.leaf_worker_lease'', public.message(4711, ''n'', NULL, 2, NULL, NULL, NULL, ' :terms '))'
SELECT sqlstate, message FROM refusal(:'claim');
:rows

-- Arguments that no server sends leave nothing behind. Each in the place of a usual one.
CREATE TABLE usual (n int, argument text, value text);
INSERT INTO usual VALUES
    (1, 'system_identifier', '1'), (2, 'node_name', '''a'''), (3, 'token', 'NULL'), (4, 'next_token', '5'),
    (5, 'held', 'NULL'), (6, 'floor_ms', 'NULL'), (7, 'until_ms', 'NULL'), (8, 'now_ms', :'now'),
    (9, 'epoch_ms', '1288834974657'), (10, 'layout', '''41/10/12''');
CREATE TABLE absurd (n int GENERATED ALWAYS AS IDENTITY, changes jsonb);
INSERT INTO absurd (changes)
SELECT jsonb_build_object(argument, 'NULL') FROM usual
WHERE argument NOT IN ('token', 'held', 'floor_ms', 'until_ms') ORDER BY n;
INSERT INTO absurd (changes)
SELECT jsonb_build_object(argument, value)
FROM (VALUES ('node_name', '{"repeat(''x'', 64)","E''a\\nb''"}'::text[]),
             ('next_token', '{0}'),
             ('held', '{-1,1024,65536,2147483647,-2147483648}'),
             ('now_ms', '{-9223372036854775808,9223372036854775807,-1,253402300800000}'),
             ('layout', '{"''''","''41/10''","''41/10/13''","''41/10/12 ''","U&''\\00e4''"}')) a (argument, vals),
     unnest(vals) value;
INSERT INTO absurd (changes)
SELECT jsonb_build_object('held', '1', argument, value)
FROM unnest('{floor_ms,until_ms}'::text[]) argument, unnest('{-1,253402300800000}'::text[]) value;
INSERT INTO absurd (changes) VALUES ('{"token": "6", "next_token": "6"}');
CREATE VIEW calls AS
SELECT absurd.n, format('SELECT token FROM ts_parse(''leaf_id.leaf_worker_lease'', public.message(%s))',
    string_agg(coalesce(changes ->> argument, value), ', ' ORDER BY usual.n)) AS call
FROM absurd, usual GROUP BY absurd.n;
\set VERBOSITY sqlstate
SELECT call FROM calls ORDER BY n \gexec
\set VERBOSITY default
:rows
-- In words.
SELECT call FROM calls WHERE n IN (1, 7) ORDER BY n \gexec
DROP VIEW calls;
DROP TABLE usual, absurd;
-- These are possible, if strange: another epoch is refused, and a clock that is off, unless the worker id is held.
\set what 'status, worker_id, floor_ms, reserved_until_ms - registry_ms AS reserved, left(detail, 12) AS detail'
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(-9223372036854775808, 'a', NULL, 101, 9, 0, 253402300799999, public.now_ms() + 900, 1288834974657, '41/10/12')) \gset
SELECT :what FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(-9223372036854775808, 'a', 101, 102, NULL, NULL, NULL, 253402300799999, 9223372036854775807, '41/10/12')) \gset
SELECT :what FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(9223372036854775807, 'a', NULL, 103, NULL, NULL, NULL, 0, 1288834974657, '41/10/12')) \gset
SELECT :what FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(9223372036854775807, 'a', NULL, 103, NULL, NULL, NULL, 253402300799999, 1288834974657, '41/10/12')) \gset
SELECT :what FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(-9223372036854775808, 'a', 101, -9223372036854775808, NULL, NULL, NULL, 253402300799999, 1288834974657, '41/10/12')) \gset
SELECT :what FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(-9223372036854775808, 'a', -9223372036854775808, 7, NULL, NULL, NULL, 0, 1288834974657, '41/10/12')) \gset
SELECT status, worker_id, reserved_until_ms > registry_ms AS kept FROM public.answer(:'answer');
SELECT count(*) FROM leaf_id.fleet WHERE kind = 'member';
:forget_workers
-- Rows stay: without them, a registry would forget leases, or that leases may be forgotten.
SELECT statement, sqlstate, message, hint
FROM (VALUES ('DELETE FROM leaf_id.leaf_registry'), ('TRUNCATE leaf_id.leaf_registry'),
             ('DELETE FROM leaf_id.leaf_worker WHERE worker_id = 7'), ('TRUNCATE leaf_id.leaf_worker')) s (statement), refusal(statement);
UPDATE leaf_id.leaf_registry SET max_skew_ms = DEFAULT, grant_ahead_ms = DEFAULT, max_ids_per_role = DEFAULT;
:forget_registry

-- EXECUTE is needed, and nothing else is given with it.
SET ROLE leaf_id_x;
SELECT token FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, :terms));
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
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 987654321, NULL, NULL, NULL, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 987654321, 987654322, NULL, NULL, NULL, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
RESET search_path;
DROP TABLE pg_temp.leaf_worker, pg_temp.leaf_registry;
SELECT statement, sqlstate, message
FROM (VALUES ('SELECT leaf_id.leaf_worker_retire(0)'),
             ('SELECT leaf_id.leaf_worker_set_aside(0, now())'),
             ('SELECT * FROM leaf_id.leaf_worker'),
             ('SELECT * FROM leaf_id.leaf_registry'),
             ('SELECT * FROM leaf_id.fleet'),
             ('DELETE FROM leaf_id.leaf_worker'),
             ('UPDATE leaf_id.leaf_registry SET epoch_ms = 0')) s (statement), refusal(statement);
SET ROLE leaf_id_monitor;
SELECT name, role_name FROM leaf_id.fleet WHERE state = 'leased';
SELECT epoch_ms FROM leaf_id.leaf_registry;
SELECT sqlstate, message FROM refusal('SELECT * FROM leaf_id.leaf_worker');
SELECT token FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 2, 3, NULL, NULL, NULL, :terms));
RESET ROLE;
-- A role that sees a token can pass for its holder.
SELECT w::text LIKE '%98765432%' AS kept, s::text LIKE '%98765432%' AS shown FROM leaf_id.leaf_worker w, leaf_id.fleet s;
:forget_workers

-- Another role cannot take a name, though it knows the token.
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
RESET ROLE;
CREATE TABLE was AS SELECT w::text AS row FROM leaf_id.leaf_worker w;
CREATE VIEW as_before AS SELECT was.row = w::text AS as_before FROM was, leaf_id.leaf_worker w WHERE worker_id = 0;
GRANT SELECT ON as_before TO PUBLIC;
SET ROLE leaf_id_y;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 2, 3, 0, 0, 0, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 3, 4, NULL, NULL, NULL, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
TABLE as_before;
RESET ROLE;
-- To retire is for the owner, and where it is granted, for the role itself.
GRANT EXECUTE ON FUNCTION leaf_id.leaf_worker_retire, leaf_id.leaf_worker_set_aside TO leaf_id_x, leaf_id_y;
SET ROLE leaf_id_y;
SELECT call, r.*
FROM (VALUES ('leaf_id.leaf_worker_retire(0)'), ('leaf_id.leaf_worker_set_aside(0, now())')) c (call),
     refusal('SELECT ' || call) r \gx
TABLE as_before;
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 2, 3, NULL, NULL, NULL, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
SELECT leaf_id.leaf_worker_retire(0);
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 3, 4, NULL, NULL, NULL, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
RESET ROLE;
-- After SET ROLE, the current role counts.
GRANT leaf_id_x TO leaf_id_y;
SET SESSION AUTHORIZATION leaf_id_y;
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 4, 5, NULL, NULL, NULL, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
RESET SESSION AUTHORIZATION;
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 5, 6, NULL, NULL, NULL, :terms)) \gset
SELECT status, worker_id FROM public.answer(:'answer');
RESET ROLE;
SELECT worker_id, state, role_name FROM leaf_id.fleet ORDER BY 1;
-- Back in service, it has no holder.
SELECT leaf_id.leaf_worker_retire(0, false);
SELECT state, name, since IS NOT NULL AS since, lease_until > now() AS later, role_name FROM leaf_id.fleet WHERE worker_id = 0;
DROP VIEW as_before;
DROP TABLE was;
:forget_workers

-- Time is granted by the earlier of both clocks.
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, public.now_ms() + 900, 1288834974657, '41/10/12')) \gset
SELECT status, ahead_ms, max_skew_ms, reserved_until_ms - registry_ms AS reserved FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 2, 3, NULL, NULL, NULL, public.now_ms() + 86400000, 1288834974657, '41/10/12')) \gset
SELECT status, ahead_ms, reserved_until_ms - registry_ms AS reserved FROM public.answer(:'answer');
SELECT worker_id, floor_ms, reserved_until_ms FROM public.answer(:'answer') \gset
RESET ROLE;
SELECT state, lease_until = to_timestamp(:reserved_until_ms / 1000.0) AS until FROM leaf_id.fleet;
-- After a promotion, only those go on that hold what they show, until nothing forgotten is left.
UPDATE leaf_id.leaf_registry SET timeline = 0;
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'new', 1, 2, NULL, NULL, NULL, :terms)) \gset
SELECT status, regexp_replace(detail, 'until .* it', 'until ... it') AS detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 3, 4, NULL, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'new', 3, 4, :worker_id, :floor_ms, :reserved_until_ms, :terms)) \gset
SELECT status FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 3, 4, :worker_id + 1, :floor_ms, :reserved_until_ms, :terms)) \gset
SELECT status FROM public.answer(:'answer');
SET ROLE leaf_id_y;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 3, 4, :worker_id, :floor_ms, :reserved_until_ms, :terms)) \gset
SELECT status FROM public.answer(:'answer');
SET ROLE leaf_id_x;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', NULL, 7, :worker_id, :floor_ms, :reserved_until_ms, :terms)) \gset
SELECT status, worker_id, floor_ms, reserved_until_ms >= :reserved_until_ms AS goes_on FROM public.answer(:'answer');
RESET ROLE;
SELECT moved_floor_ms - (extract(epoch FROM moved_at) * 1000)::bigint AS moved_floor FROM leaf_id.leaf_registry;
-- If the clock was far ahead then, the owner says so.
UPDATE leaf_id.leaf_registry SET moved_at = now(), moved_floor_ms = public.now_ms() - 1000;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'new', 1, 2, NULL, NULL, NULL, :terms)) \gset
SELECT status, worker_id, a.floor_ms = r.moved_floor_ms AS above FROM public.answer(:'answer') a, leaf_id.leaf_registry r;
:forget_workers
:forget_registry

-- Servers of one name were rebooted or copied; three have a worker id each. A clock is off.
CREATE VIEW of_members AS
SELECT severity, regexp_replace(what, '-?\d+ ms', '... ms') AS what, since IS NOT NULL AS since, remedy, advice
FROM leaf_id.problems WHERE what LIKE '%node "%';
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', NULL, 2, NULL, NULL, NULL, :terms)) \gset
TABLE of_members;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', NULL, 3, NULL, NULL, NULL, :terms)) \gset
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', NULL, 4, NULL, NULL, NULL, :terms)) \gset
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', NULL, 5, NULL, NULL, NULL, :terms)) \gset
SELECT status, regexp_replace(detail, 'after .*', 'after ...') AS detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4712, 'n', NULL, 5, NULL, NULL, NULL, public.now_ms() - 900, 1288834974657, '41/10/12')) \gset
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4712, 'n', 5, 6, NULL, NULL, NULL, public.now_ms() - 2000, 1288834974657, '41/10/12')) \gset
-- What began less than two seconds ago is not shown.
UPDATE leaf_id.leaf_worker SET leased_at = leased_at - interval '2 s';
TABLE of_members \gx
-- What has ended or is out of service is no problem.
UPDATE leaf_id.leaf_worker SET reserved_until_ms = 1700000000000 WHERE worker_id IN (1, 3);
SELECT leaf_id.leaf_worker_retire(2);
TABLE of_members;
SELECT worker_id, state, extract(epoch FROM lease_until)::bigint AS until FROM leaf_id.fleet WHERE state <> 'leased' AND worker_id <> 2;
UPDATE leaf_id.leaf_registry SET max_skew_ms = 3000;
UPDATE leaf_id.leaf_worker SET reserved_until_ms = public.now_ms() + 60000 WHERE worker_id = 3;
TABLE of_members;
DROP VIEW of_members;
:forget_workers
:forget_registry

-- The registry's row is as its owner would insert it.
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
CREATE VIEW bounds AS SELECT max_skew_ms, grant_ahead_ms, max_ids_per_role FROM leaf_id.leaf_registry;
TABLE bounds;
:forget_registry
INSERT INTO leaf_id.leaf_registry DEFAULT VALUES;
TABLE bounds;
DROP VIEW bounds;
-- It was created here, so nothing is forgotten.
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'b', 1, 2, NULL, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
-- NULL is any number.
UPDATE leaf_id.leaf_registry SET max_ids_per_role = 1;
SET ROLE leaf_id_y;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'c', 1, 2, NULL, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'd', 1, 2, NULL, NULL, NULL, :terms)) \gset
SELECT status, detail FROM public.answer(:'answer');
RESET ROLE;
UPDATE leaf_id.leaf_registry SET max_ids_per_role = NULL;
SET ROLE leaf_id_y;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'd', 1, 2, NULL, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
RESET ROLE;
SELECT change, sqlstate, message
FROM unnest('{max_skew_ms = -1,grant_ahead_ms = 999,grant_ahead_ms = 86400001,max_ids_per_role = 32769,
              moved_floor_ms = -1,layout = '''',layout = ''41/10/13'',layout = ''41/10/12 '',layout = ''37/10/12'',
              layout = ''41/16/6'',layout = ''41/10/0'',"layout = E''41/10/12\\n''"}'::text[]) change,
     refusal('UPDATE leaf_id.leaf_registry SET ' || change);

-- How far a clock may be off.
UPDATE leaf_id.leaf_registry SET max_skew_ms = 200;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'e', 1, 2, NULL, NULL, NULL, public.now_ms() + 900, 1288834974657, '41/10/12')) \gset
SELECT status, max_skew_ms FROM public.answer(:'answer');

-- The epoch is the owner's to say, and not the first member's.
:forget_workers
:forget_registry
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, public.now_ms(), 0, '41/10/12')) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, public.now_ms(), 1288834974656, '41/10/12')) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, public.now_ms(), 1288834974658, '41/10/12')) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
:forget_workers
:forget_registry
INSERT INTO leaf_id.leaf_registry (epoch_ms) VALUES (7);
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, :terms)) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, public.now_ms(), 7, '41/10/12')) \gset
SELECT status, floor_ms FROM public.answer(:'answer');

-- So is the layout, which says how many worker ids there are.
:forget_workers
:forget_registry
\set small 'public.now_ms(), 1288834974657, ''41/6/6'''
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, :small)) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, :terms)) \gset
SELECT status FROM public.answer(:'answer');
SELECT layout FROM leaf_id.leaf_registry;
:forget_workers
:forget_registry
INSERT INTO leaf_id.leaf_registry (layout) VALUES ('41/6/6');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, :terms)) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT count(leaf_id.leaf_worker_retire(n)) FROM generate_series(0, 62) n;
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 1, 2, NULL, NULL, NULL, :small)) \gset
SELECT * FROM refusal('SELECT leaf_id.leaf_worker_retire(64)') \gx
SELECT status, worker_id FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 2, 3, 63, 0, 0, :small)) \gset
SELECT status FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'n', 2, 3, 63, 0, 0, :terms)) \gset
SELECT status, detail FROM public.answer(:'answer');
SELECT token AS answer FROM ts_parse('leaf_id.leaf_worker_lease', public.message(4711, 'm', 1, 2, NULL, NULL, NULL, :small)) \gset
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
SELECT leaf_id.leaf_worker_retire(5, false);
DROP FUNCTION follow() CASCADE;

:forget_workers
:forget_registry
DROP OWNED BY leaf_id_x, leaf_id_y, leaf_id_monitor;
DROP ROLE leaf_id_x, leaf_id_y, leaf_id_monitor;
DROP FUNCTION public.now_ms(), public.message, public.answer;
