-- Who may issue the ids of a tag, and who may manage tags.
\set SHOW_CONTEXT never

CREATE ROLE leaf_id_app;
CREATE ROLE leaf_id_mallory NOINHERIT;
CREATE ROLE leaf_id_staff;
CREATE ROLE leaf_id_monitor IN ROLE pg_monitor;
-- What a superuser does while the session is another role's.
CREATE FUNCTION as_admin(statement text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN EXECUTE statement; END';
SELECT leaf_tag_create('t'), leaf_tag_grant('t', 'public');
CREATE TABLE things (id bigint PRIMARY KEY DEFAULT leaf_segment_next('t'));
GRANT INSERT ON things TO public;
-- All ways to ask for ids of tag t, and how each is answered.
CREATE VIEW answers AS
SELECT way, r.sqlstate, r.message
FROM (VALUES (1, 'SELECT leaf_segment_next(''t'')'),
             (2, 'SELECT leaf_segment_next(tag) FROM (SELECT ''t'' AS tag OFFSET 0) t'),
             (3, 'SELECT leaf_segment_next_batch(''t'', 3)'),
             (4, 'SELECT leaf_segment_next_range(''t'', 3)'),
             (5, 'INSERT INTO things DEFAULT VALUES')) w (n, way),
     refusal(way) r
ORDER BY n;
GRANT SELECT ON answers TO public;
\set may 'SELECT count(*), sqlstate, message FROM answers GROUP BY 2, 3;'

-- A tag that is PUBLIC's, until it is taken away.
SET ROLE leaf_id_app;
TABLE answers;
SELECT as_admin($$SELECT leaf_tag_grant('t', 'leaf_id_app')$$);
RESET ROLE;
SET ROLE leaf_id_mallory;
:may
SELECT as_admin($$SELECT leaf_tag_revoke('t', 'public')$$);
TABLE answers;
RESET ROLE;
SET ROLE leaf_id_app;
:may
SELECT as_admin($$SELECT leaf_tag_revoke('t', 'leaf_id_app')$$);
:may
RESET ROLE;
:may
SELECT leaf_tag_grant('t', 'public');
SET ROLE leaf_id_app;
:may
SET ROLE leaf_id_mallory;
:may
RESET ROLE;

-- Rights are those of the current user: of a function's owner in it, and after SET ROLE.
GRANT leaf_id_app TO leaf_id_mallory;
CREATE FUNCTION for_app() RETURNS boolean LANGUAGE sql SECURITY DEFINER AS 'SELECT leaf_segment_next(''t'') > 0';
ALTER FUNCTION for_app() OWNER TO leaf_id_app;
SELECT leaf_tag_revoke('t', 'public'), leaf_tag_grant('t', 'leaf_id_app');
SET SESSION AUTHORIZATION leaf_id_mallory;
:may
SELECT for_app();
:may
SET ROLE leaf_id_app;
:may
RESET ROLE;
:may
SELECT for_app();
:may
RESET SESSION AUTHORIZATION;

-- In parallel workers, too.
CREATE TABLE numbers AS SELECT i FROM generate_series(1, 50000) i;
GRANT SELECT ON numbers TO public;
ANALYZE numbers;
SET max_parallel_workers_per_gather = 2;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
DO $$ DECLARE line text; BEGIN
    FOR line IN EXPLAIN SELECT count(leaf_segment_next('t')) FROM numbers LOOP
        IF line LIKE '%Parallel%' THEN RETURN; END IF;
    END LOOP;
    RAISE 'not in parallel';
END $$;
SET ROLE leaf_id_app;
SELECT count(leaf_segment_next('t')) FROM numbers;
SET ROLE leaf_id_mallory;
SELECT sqlstate FROM refusal($$SELECT count(leaf_segment_next('t')) FROM numbers$$);
RESET ROLE;
RESET max_parallel_workers_per_gather;
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
DROP TABLE numbers;

-- Rights follow memberships.
SELECT leaf_tag_revoke('t', 'leaf_id_app'), leaf_tag_grant('t', 'leaf_id_staff');
SET ROLE leaf_id_app;
:may
SELECT as_admin('GRANT leaf_id_staff TO leaf_id_app');
:may
SELECT as_admin('REVOKE leaf_id_staff FROM leaf_id_app');
:may
RESET ROLE;

-- A claim for another server takes the tag as well as EXECUTE.
SELECT leaf_tag_grant('t', 'leaf_id_app');
GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim TO leaf_id_app, leaf_id_mallory;
SET ROLE leaf_id_mallory;
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 10}');
\echo :SQLSTATE
SET ROLE leaf_id_app;
SELECT token::json ->> 'len' AS claimed FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 10}');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION leaf_id.leaf_claim FROM leaf_id_app, leaf_id_mallory;

-- A grant takes a role, a tag and the right to grant.
SELECT call, r.*
FROM (VALUES ('leaf_tag_grant(''t'', ''leaf_id_outsider'')'),
             ('leaf_tag_grant(''none'', ''leaf_id_app'')'),
             ('leaf_tag_revoke(''none'', ''leaf_id_app'')')) c (call), refusal('SELECT ' || call) r \gx
SET ROLE leaf_id_app;
SELECT call, r.*
FROM (VALUES ('leaf_tag_grant(''t'', ''leaf_id_app'')'), ('leaf_tag_revoke(''t'', ''public'')')) c (call),
     refusal('SELECT ' || call) r \gx
RESET ROLE;
GRANT EXECUTE ON FUNCTION leaf_tag_grant TO leaf_id_app;
SET ROLE leaf_id_app;
SELECT * FROM refusal($$SELECT leaf_tag_grant('t', 'leaf_id_app')$$) \gx
RESET ROLE;
REVOKE EXECUTE ON FUNCTION leaf_tag_grant FROM leaf_id_app;

-- A dropped role leaves its rights to no role, also not to another one of its name.
DROP FUNCTION for_app();
SELECT * FROM refusal('DROP ROLE leaf_id_app') \gx
SELECT leaf_tag_create('u');
DROP OWNED BY leaf_id_app;
DROP ROLE leaf_id_app;
CREATE ROLE leaf_id_app;
SELECT leaf_tag_grant('u', 'leaf_id_app');
SET ROLE leaf_id_app;
SELECT leaf_segment_next('u');
:may
RESET ROLE;
-- Written by hand, without the grant that goes with it: PUBLIC's USAGE on the schema names no role.
DROP OWNED BY leaf_id_app;
UPDATE leaf_id.leaf_alloc SET granted_to = '{leaf_id_app}' WHERE biz_tag = 't';
SELECT has_schema_privilege('leaf_id_app', 'leaf_id', 'USAGE');
SET ROLE leaf_id_app;
:may
SELECT as_admin($$SELECT leaf_tag_grant('t', 'leaf_id_app')$$);
:may
RESET ROLE;
-- PUBLIC in any case, as in GRANT, unless there is a role of that name.
SELECT leaf_tag_drop('u', forget => true), leaf_tag_grant('t', 'PUBLIC');
SELECT granted_to FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT leaf_tag_revoke('t', 'Public');
CREATE ROLE "PUBLIC";
SELECT leaf_tag_grant('t', 'PUBLIC');
SELECT granted_to FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT leaf_tag_revoke('t', 'PUBLIC');
REVOKE USAGE ON SCHEMA leaf_id FROM "PUBLIC";
DROP ROLE "PUBLIC";
SELECT leaf_tag_grant('t', 'public');

-- All roles issue ids, and no other role manages tags.
SET ROLE leaf_id_mallory;
SELECT count(*) FROM leaf_segment_next_batch('t', 15);
SELECT last_id - first_id AS further FROM leaf_segment_next_range('t', 5);
SELECT worker_id, leaf_snowflake_min(now()) > 0 AS min
FROM leaf_snowflake_next() id, leaf_snowflake_decode(id);
SELECT statement, sqlstate, message
FROM (VALUES ('SELECT * FROM leaf_id.leaf_alloc'),
             ('INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES (''mine'')'),
             ('UPDATE leaf_id.leaf_alloc SET step = 20'),
             ('DELETE FROM leaf_id.leaf_alloc'),
             ('TRUNCATE leaf_id.leaf_alloc'),
             ('SELECT leaf_tag_create(''mine'')'),
             ('SELECT leaf_tag_reset(''mine'', 1)'),
             ('SELECT leaf_tag_drop(''mine'')'),
             ('SELECT leaf_id.leaf_snowflake_reset(now())'),
             ('SELECT * FROM leaf_id.tags_detail'),
             ('SELECT * FROM leaf_id.server'),
             ('SELECT * FROM leaf_id_internal.leaf_segment_slots()'),
             ('SELECT * FROM leaf_id_internal.leaf_server_state()')) s (statement), refusal(statement);
RESET ROLE;
REVOKE EXECUTE ON FUNCTION leaf_segment_next(text) FROM PUBLIC;
SET ROLE leaf_id_mallory;
SELECT sqlstate, message FROM refusal($$SELECT leaf_segment_next('t')$$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION leaf_segment_next(text) TO PUBLIC;
-- The functions without the table are not enough.
GRANT EXECUTE ON FUNCTION leaf_tag_create, leaf_tag_drop, leaf_tag_reset, leaf_id.leaf_snowflake_reset TO leaf_id_mallory;
SET ROLE leaf_id_mallory;
SELECT statement, sqlstate, message
FROM (VALUES ('SELECT leaf_tag_create(''mine'')'),
             ('SELECT leaf_tag_reset(''mine'', 1)'),
             ('SELECT leaf_tag_drop(''mine'')'),
             ('SELECT leaf_id.leaf_snowflake_reset(now())')) s (statement), refusal(statement);
RESET ROLE;
REVOKE EXECUTE ON FUNCTION leaf_tag_create, leaf_tag_drop, leaf_tag_reset, leaf_id.leaf_snowflake_reset FROM leaf_id_mallory;
-- The views are for monitors, and the table to read.
SET ROLE leaf_id_monitor;
SELECT count(*) FROM leaf_id.tags_detail WHERE tag = 't';
SELECT count(*) FROM leaf_id.server;
SELECT count(*) FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT sqlstate, message FROM refusal('UPDATE leaf_id.leaf_alloc SET step = step');
RESET ROLE;

-- INSERT alone is enough for a migration, and for ids in its transaction.
GRANT USAGE ON SCHEMA leaf_id TO leaf_id_mallory;
GRANT INSERT (biz_tag, step) ON leaf_id.leaf_alloc TO leaf_id_mallory;
CREATE TABLE issued (id bigint PRIMARY KEY);
GRANT INSERT ON issued TO leaf_id_mallory;
SET ROLE leaf_id_mallory;
BEGIN;
INSERT INTO leaf_id.leaf_alloc (biz_tag, step) VALUES ('mine', 10);
INSERT INTO issued SELECT leaf_segment_next('mine') FROM generate_series(1, 500);
COMMIT;
INSERT INTO issued SELECT leaf_segment_next('mine') FROM generate_series(1, 500);
RESET ROLE;
INSERT INTO issued SELECT leaf_segment_next('mine') FROM generate_series(1, 500);
SELECT count(*) FROM issued;
SELECT leaf_tag_drop('mine', forget => true);
TRUNCATE issued;

-- Nothing of the caller's runs in a claim, which has the rights of the table's owner.
GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO leaf_id_mallory;
CREATE SCHEMA evil AUTHORIZATION leaf_id_mallory;
SET ROLE leaf_id_mallory;
CREATE FUNCTION evil.trap() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN RAISE EXCEPTION ''run as %'', current_user; END';
CREATE FUNCTION evil.plus(bigint, integer) RETURNS bigint LANGUAGE plpgsql
    AS 'BEGIN RAISE EXCEPTION ''run as %'', current_user; END';
CREATE OPERATOR evil.+ (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = evil.plus);
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE plpgsql
    AS 'BEGIN RAISE EXCEPTION ''run as %'', current_user; END';
CREATE TEMP TABLE leaf_alloc (biz_tag text, max_id bigint, step int);
CREATE TRIGGER trap AFTER INSERT ON leaf_id.leaf_alloc FOR EACH ROW EXECUTE FUNCTION evil.trap();
CREATE TRIGGER trap AFTER UPDATE ON leaf_id.leaf_alloc FOR EACH ROW EXECUTE FUNCTION evil.trap();
SET search_path = evil, pg_temp, pg_catalog, public;
BEGIN;
INSERT INTO leaf_id.leaf_alloc (biz_tag, step) VALUES ('mine', 10);
INSERT INTO issued SELECT leaf_segment_next('mine') FROM generate_series(1, 100);
COMMIT;
INSERT INTO issued SELECT leaf_segment_next('mine') FROM generate_series(1, 100);
SELECT count(DISTINCT leaf_segment_next('t')) FROM generate_series(1, 100);
RESET search_path;
DROP TABLE pg_temp.leaf_alloc;

-- A manager of tags, by the one GRANT that is documented, in all that is a manager's.
SELECT leaf_tag_reset('mine', 700);
SELECT leaf_segment_next('mine') > 699 AS again;
UPDATE leaf_id.leaf_alloc SET max_id = 5000 WHERE biz_tag = 'mine';
SELECT leaf_segment_next('mine') >= 5000 AS raised;
SELECT leaf_tag_drop('mine', forget => true);
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('mine')$$);
SELECT leaf_tag_create('mine', if_not_exists => true);
SELECT leaf_tag_create('mine', if_not_exists => true);
CREATE TABLE evil.mine (id bigint PRIMARY KEY DEFAULT leaf_segment_next('mine'));
INSERT INTO evil.mine VALUES (40);
SELECT * FROM leaf_sync() WHERE tag = 'mine';
SELECT * FROM leaf_check() WHERE tag = 'mine';
UPDATE leaf_id.leaf_alloc SET step = 20 WHERE biz_tag = 'mine';
-- A role by name takes the grant option: nothing is changed without it.
SELECT * FROM refusal($$SELECT leaf_tag_grant('mine', 'leaf_id_monitor')$$) \gx
SET ROLE leaf_id_monitor;
SELECT sqlstate, message FROM refusal($$SELECT leaf_segment_next('mine')$$);
RESET ROLE;
SELECT leaf_tag_grant('mine', 'leaf_id_mallory');
SET ROLE leaf_id_mallory;
INSERT INTO evil.mine DEFAULT VALUES RETURNING id;
SELECT leaf_tag_reset('mine', 90), leaf_tag_drop('mine', forget => true, force => true);
-- And nothing else.
SELECT statement, sqlstate, message
FROM (VALUES ('TRUNCATE leaf_id.leaf_alloc'),
             ('SELECT * FROM leaf_id.leaf_registry'),
             ('SELECT * FROM leaf_id.leaf_worker'),
             ('SELECT token FROM ts_parse(''leaf_id.leaf_claim'', ''{"version": 1, "tag": "t", "n": 1}'')'),
             ('SELECT leaf_id.leaf_worker_retire(1)'),
             ('CREATE TABLE leaf_id.mine ()')) s (statement), refusal(statement);
GRANT SELECT ON leaf_id.leaf_alloc TO leaf_id_app;
SELECT has_table_privilege('leaf_id_app', 'leaf_id.leaf_alloc', 'SELECT');
RESET ROLE;

-- A tag of the open transaction has its rights, too.
GRANT USAGE ON SCHEMA leaf_id TO leaf_id_mallory WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION leaf_tag_create, leaf_tag_grant, leaf_tag_revoke TO leaf_id_mallory;
SET ROLE leaf_id_mallory;
BEGIN;
SELECT leaf_tag_create('mine', force => true);
SELECT leaf_segment_next('mine');
SET LOCAL ROLE leaf_id_app;
SELECT sqlstate, message FROM refusal($$SELECT leaf_segment_next('mine')$$);
ROLLBACK;
BEGIN;
SELECT leaf_tag_create('mine', force => true), leaf_tag_revoke('mine', 'leaf_id_mallory'), leaf_tag_grant('mine', 'leaf_id_mallory');
SELECT leaf_segment_next('mine');
COMMIT;
SELECT leaf_segment_next('mine');
SET ROLE leaf_id_app;
SELECT sqlstate, message FROM refusal($$SELECT leaf_segment_next('mine')$$);
RESET ROLE;

DROP VIEW answers;
DROP TABLE things, issued, evil.mine;
SELECT leaf_tag_drop('mine', forget => true), leaf_tag_drop('t', forget => true);
DROP FUNCTION as_admin(text);
DROP OWNED BY leaf_id_app, leaf_id_mallory, leaf_id_staff, leaf_id_monitor;
DROP ROLE leaf_id_app, leaf_id_mallory, leaf_id_staff, leaf_id_monitor;

-- A right that was rolled back is not remembered.
CREATE ROLE leaf_id_bob;
SELECT leaf_tag_create('theirs');
SELECT leaf_segment_next('theirs');
BEGIN;
SELECT leaf_tag_grant('theirs', 'public');
SET LOCAL ROLE leaf_id_bob;
SELECT leaf_segment_next('theirs'), leaf_segment_next(tag) FROM (SELECT 'theirs' AS tag OFFSET 0) t;
ROLLBACK;
SET ROLE leaf_id_bob;
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('theirs')$$);
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next(tag) FROM (SELECT 'theirs' AS tag OFFSET 0) t$$);
RESET ROLE;
SELECT leaf_tag_drop('theirs', forget => true);
DROP ROLE leaf_id_bob;

-- The right to set one column is none to set ids back.
CREATE ROLE leaf_id_clerk;
GRANT SELECT, UPDATE (description) ON leaf_id.leaf_alloc TO leaf_id_clerk;
SELECT leaf_tag_create('gone'), leaf_tag_drop('gone');
SET ROLE leaf_id_clerk;
SELECT leaf_id_internal.leaf_forget('gone');
RESET ROLE;
SELECT leaf_id_internal.leaf_forget('gone');
DROP OWNED BY leaf_id_clerk;
DROP ROLE leaf_id_clerk;
-- What takes EXECUTE on all functions from PUBLIC takes it on those that issue ids. Grants, moves and checks of tags
-- name the GRANT that helps.
BEGIN;
CREATE ROLE leaf_id_app;
SELECT leaf_tag_create('t'), leaf_id.leaf_opaque_create('o');
CREATE TABLE t (id bigint DEFAULT leaf_segment_next('t'));
CREATE TABLE s (id bigserial);
GRANT SELECT, INSERT ON s, t TO leaf_id_app;
GRANT USAGE ON SEQUENCE s_id_seq TO leaf_id_app;
SELECT leaf_tag_grant('t', 'leaf_id_app');
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC;
SELECT leaf_tag_grant('t', 'leaf_id_app');
SELECT leaf_tag_grant('o', 'leaf_id_app');
SELECT leaf_tag_grant('t', 'public');
SELECT * FROM refusal($$SELECT leaf_adopt('s', 'id')$$) \gx
SELECT tag, relation, action, detail FROM leaf_check('t') ORDER BY detail;
SELECT severity, what, advice, remedy FROM leaf_id.problems WHERE what LIKE '%may not execute%' \gx
SELECT remedy FROM leaf_id.problems WHERE what LIKE '%may not execute%' \gexec
SELECT count(*) FROM leaf_id.problems WHERE what LIKE '%may not execute%';
SELECT leaf_adopt('s', 'id');
-- Taken from PUBLIC, and granted to those that are to have it: that was meant.
REVOKE EXECUTE ON FUNCTION leaf_segment_next(text) FROM PUBLIC;
SELECT count(*) FROM leaf_id.problems WHERE what LIKE '%may not execute%';
SET LOCAL ROLE leaf_id_app;
INSERT INTO t DEFAULT VALUES RETURNING id;
INSERT INTO s DEFAULT VALUES RETURNING id;
ROLLBACK;
