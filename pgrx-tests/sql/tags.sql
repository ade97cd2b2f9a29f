-- Tags as rows: how they are made, and what an edit of one does to its ids.
\set SHOW_CONTEXT never

-- A migration can run twice, and changes nothing.
SELECT leaf_tag_create('t', start => 5, if_not_exists => true);
SELECT leaf_segment_next('t') FROM generate_series(1, 3);
CREATE TABLE t_before AS SELECT * FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT leaf_tag_create('t', start => 900, step => 7, description => 'other', if_not_exists => true);
SELECT t_before::text = a::text AS unchanged FROM t_before, leaf_id.leaf_alloc a WHERE a.biz_tag = 't';
DROP TABLE t_before;
-- Nothing that is cached is dropped, not even within the transaction.
BEGIN;
SELECT leaf_tag_create('t', if_not_exists => true);
SELECT leaf_segment_next('t') FROM generate_series(1, 3);
COMMIT;
SELECT * FROM refusal($$SELECT leaf_tag_create('t', if_not_exists => false)$$) \gx

-- So do wrong arguments, and nothing of our statements is shown.
\set SHOW_CONTEXT errors
SELECT leaf_tag_create('t');
SELECT leaf_tag_create('u', step => 0);
\set SHOW_CONTEXT never
SELECT call, sqlstate, message, detail
FROM (VALUES ('leaf_tag_create('''')'),
             ('leaf_tag_create(repeat(''x'', 129))'),
             ('leaf_tag_create(''u'', start => 0)'),
             ('leaf_tag_create(''u'', start => 101, max_value => 100)'),
             ('leaf_tag_create(''u'', step => 10, max_step => 9)'),
             ('leaf_tag_create(''u'', max_value => 0)'),
             ('leaf_tag_create(''u'', max_value => 9223372036854775807)'),
             ('leaf_tag_create(''u'', server => ''nowhere'')'),
             ('leaf_tag_reset(''t'', 0)')) c (call),
     refusal('SELECT ' || call);

-- A tag that does not exist.
CREATE TABLE missing (id bigint DEFAULT leaf_segment_next('missing'::text));
INSERT INTO missing VALUES (41);
SELECT call, message, hint
FROM (VALUES ('INSERT INTO missing DEFAULT VALUES'),
             ('SELECT leaf_segment_next(''It''''s new'')'),
             ('SET LOCAL search_path = pg_catalog; SELECT public.leaf_segment_next(''other'')')) c (call),
     refusal(call);
SELECT * FROM leaf_sync('missing');
INSERT INTO missing DEFAULT VALUES RETURNING id;
DROP TABLE missing;
SELECT leaf_tag_drop('missing', forget => true);

-- A null has words of its own; nothing is changed by it.
SELECT call, sqlstate, message
FROM (VALUES ('leaf_tag_create(NULL)'),
             ('leaf_tag_create(''u'', step => NULL)'),
             ('leaf_tag_create(''u'', start => NULL)'),
             ('leaf_tag_create(''u'', if_not_exists => NULL)'),
             ('leaf_tag_drop(NULL)'),
             ('leaf_tag_reset(NULL, 1)'),
             ('leaf_tag_reset(''t'', NULL)'),
             ('leaf_tag_grant(NULL, ''public'')'),
             ('leaf_tag_revoke(NULL, ''public'')')) c (call),
     refusal('SELECT ' || call);
SELECT leaf_tag_create('u', max_step => NULL, max_value => NULL, description => NULL, server => NULL);
SELECT * FROM leaf_sync(NULL) WHERE tag IN ('t', 'u');
SELECT * FROM leaf_check(NULL) WHERE tag IN ('t', 'u');
SELECT leaf_tag_drop('u', forget => true);

-- max_id is raised, never lowered; a reset is the way back.
-- (From what depends on how fast it was used.)
SELECT sqlstate, regexp_replace(message, 'from \d+', 'from ...') AS message, detail, hint
FROM refusal($$UPDATE leaf_id.leaf_alloc SET max_id = 1 WHERE biz_tag = 't'$$) \gx
SELECT leaf_segment_next('t');
UPDATE leaf_id.leaf_alloc SET description = 'kept' WHERE biz_tag = 't';
SELECT leaf_tag_reset('t', 5);
SELECT leaf_segment_next('t') FROM generate_series(1, 2);
SELECT leaf_tag_reset('t', 9000);
SELECT leaf_segment_next('t') FROM generate_series(1, 2);
SELECT description FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT * FROM refusal($$SELECT leaf_tag_reset('nope', 1)$$) \gx

-- Not by another role's trigger after ours, either.
CREATE FUNCTION lower_it() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.max_id := 1; RETURN NEW; END';
CREATE TRIGGER zz BEFORE UPDATE ON leaf_id.leaf_alloc FOR EACH ROW EXECUTE FUNCTION lower_it();
SELECT sqlstate, regexp_replace(message, 'from \d+', 'from ...') AS message
FROM refusal($$UPDATE leaf_id.leaf_alloc SET step = step + 1 WHERE biz_tag = 't'$$);
DROP TRIGGER zz ON leaf_id.leaf_alloc;
DROP FUNCTION lower_it();
SELECT leaf_segment_next('t');

-- What no trigger has seen takes no id back either: claims go on above the mark of the name.
UPDATE leaf_id.leaf_alloc SET max_value = 1000000000 WHERE biz_tag = 't';
ALTER TABLE leaf_id.leaf_alloc DISABLE TRIGGER ALL;
UPDATE leaf_id.leaf_alloc SET max_id = 1 WHERE biz_tag = 't';
ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_stamp,
    ENABLE ALWAYS TRIGGER leaf_alloc_edit, ENABLE ALWAYS TRIGGER leaf_alloc_truncate, ENABLE ALWAYS TRIGGER leaf_alloc_mark,
    ENABLE ALWAYS TRIGGER leaf_alloc_mark_truncate, ENABLE TRIGGER leaf_alloc_tell_delete, ENABLE TRIGGER leaf_alloc_tell_rename;
SELECT leaf_segment_next('t') > 9000 AS above;
UPDATE leaf_id.leaf_alloc SET max_id = 100000 WHERE biz_tag = 't';
SELECT leaf_segment_next('t');

-- A limit holds at once, and can be lifted. What was said of it is taken back.
UPDATE leaf_id.leaf_alloc SET max_value = 100 WHERE biz_tag = 't';
SELECT * FROM refusal($$SELECT leaf_segment_next('t')$$) \gx
SELECT last_error IS NOT NULL AS shown FROM leaf_id.tags_detail WHERE tag = 't';
UPDATE leaf_id.leaf_alloc SET max_value = 1000000000 WHERE biz_tag = 't';
SELECT last_error IS NOT NULL AS shown FROM leaf_id.tags_detail WHERE tag = 't';
SELECT leaf_segment_next('t') > 100000 AS goes_on;
SELECT leaf_tag_create('limited', max_value => 10);
SELECT max(leaf_segment_next('limited')) FROM generate_series(1, 10);
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('limited')$$);
SELECT last_error IS NOT NULL AS shown FROM leaf_id.tags_detail WHERE tag = 'limited';
UPDATE leaf_id.leaf_alloc SET max_value = 1000 WHERE biz_tag = 'limited';
SELECT last_error IS NOT NULL AS shown FROM leaf_id.tags_detail WHERE tag = 'limited';
SELECT leaf_segment_next('limited');
SELECT leaf_tag_drop('limited', forget => true);
SELECT leaf_tag_drop('t', forget => true);
SELECT * FROM refusal($$SELECT leaf_tag_drop('t', forget => true)$$) \gx

-- Renamed, it goes on under its new name only.
SELECT leaf_tag_create('old');
SELECT leaf_segment_next('old') FROM generate_series(1, 2);
UPDATE leaf_id.leaf_alloc SET biz_tag = 'new' WHERE biz_tag = 'old';
SELECT sqlstate, message FROM refusal($$SELECT leaf_segment_next('old')$$);
SELECT leaf_segment_next('new') > 2 AS goes_on;
-- Names exchanged: each goes on where its row is, and above what its name had.
INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('old', 1000000);
SELECT leaf_segment_next('old');
UPDATE leaf_id.leaf_alloc SET biz_tag = CASE biz_tag WHEN 'old' THEN 'x' ELSE 'y' END WHERE biz_tag IN ('old', 'new');
UPDATE leaf_id.leaf_alloc SET biz_tag = CASE biz_tag WHEN 'x' THEN 'new' ELSE 'old' END WHERE biz_tag IN ('x', 'y');
SELECT leaf_segment_next('new') > 1000000 AS high, leaf_segment_next('old') > 1000000 AS high_too;
SELECT leaf_tag_drop('new', forget => true), leaf_tag_drop('old', forget => true);

-- The open transaction cannot issue ids of a tag that it has edited: an error without a wait (which would end with 57014).
SELECT leaf_tag_create('t');
SET leaf_id.refill_timeout = '60s';
SET statement_timeout = '30s';
\set refused 'SELECT r.* FROM refusal($$SELECT leaf_segment_next(''t'')$$) r;'
\set issue 'SELECT leaf_segment_next(''t'') BETWEEN 2 AND 5000 AS issued;'
BEGIN;
SELECT leaf_segment_next('t');
UPDATE leaf_id.leaf_alloc SET max_id = max_id + 5000 WHERE biz_tag = 't';
:refused
ROLLBACK;
:issue
BEGIN;
UPDATE leaf_id.leaf_alloc SET max_value = 1000000 WHERE biz_tag = 't';
:refused
ROLLBACK;
:issue
BEGIN;
UPDATE leaf_id.leaf_alloc SET biz_tag = 'new' WHERE biz_tag = 't';
:refused
SELECT r.* FROM refusal($$SELECT leaf_segment_next('new')$$) r;
ROLLBACK;
:issue
BEGIN;
DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
:refused
ROLLBACK;
:issue
BEGIN;
SELECT leaf_tag_drop('t', forget => true);
:refused
ROLLBACK;
:issue
BEGIN;
SET LOCAL leaf_id.allow_truncate = on;
TRUNCATE leaf_id.leaf_alloc;
:refused
ROLLBACK;
:issue
-- Not with a snapshot that may be older than rows that go.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL leaf_id.allow_truncate = on;
TRUNCATE leaf_id.leaf_alloc;
ROLLBACK;

-- An edit that a savepoint has undone is forgotten.
SELECT leaf_segment_next('t') AS last \gset
BEGIN;
SAVEPOINT s;
UPDATE leaf_id.leaf_alloc SET max_id = 50000 WHERE biz_tag = 't';
SAVEPOINT nested;
:refused
ROLLBACK TO nested;
RELEASE nested;
:refused
ROLLBACK TO s;
SELECT leaf_segment_next('t') - :last AS further;
COMMIT;
BEGIN;
SAVEPOINT s;
UPDATE leaf_id.leaf_alloc SET max_id = 50000 WHERE biz_tag = 't';
RELEASE s;
:refused
ROLLBACK;
SELECT leaf_segment_next('t') - :last AS further;

-- Step and description are no such edit: no cache is dropped.
BEGIN;
UPDATE leaf_id.leaf_alloc SET step = 50 WHERE biz_tag = 't';
SELECT leaf_segment_next('t') - :last AS further;
COMMIT;
SELECT leaf_segment_next('t') - :last AS further;
BEGIN;
UPDATE leaf_id.leaf_alloc SET step = 70, description = 'y' WHERE biz_tag = 't';
SELECT leaf_segment_next('t') - :last AS further;
COMMIT;
SELECT leaf_segment_next('t') - :last AS further;

-- An INSERT that writes nothing is no edit, though BEFORE triggers fire for it.
SELECT leaf_segment_next('t') AS last \gset
BEGIN;
INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('t') ON CONFLICT DO NOTHING;
SELECT leaf_segment_next('t') - :last AS further;
COMMIT;
BEGIN;
INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('t') ON CONFLICT (biz_tag) DO UPDATE SET step = 7 WHERE false;
SELECT leaf_segment_next('t') - :last AS further;
COMMIT;
CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER skip BEFORE INSERT ON leaf_id.leaf_alloc FOR EACH ROW EXECUTE FUNCTION skip();
BEGIN;
INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('t');
SELECT leaf_segment_next('t') - :last AS further;
COMMIT;
DROP TRIGGER skip ON leaf_id.leaf_alloc;
DROP FUNCTION skip();

-- Nor is a tag issued that the open transaction has reset: a savepoint would take back how far it was issued, not the ids.
BEGIN;
SELECT leaf_tag_reset('t', 100000);
SAVEPOINT s;
SELECT leaf_segment_next('t');
\echo :SQLSTATE
ROLLBACK TO s;
COMMIT;
SELECT leaf_segment_next('t') FROM generate_series(1, 2);
DO $$
BEGIN
    PERFORM leaf_tag_reset('t', 200000);
    BEGIN
        RAISE division_by_zero USING MESSAGE = leaf_segment_next('t') || ' was issued';
    EXCEPTION WHEN division_by_zero OR object_not_in_prerequisite_state THEN
        RAISE NOTICE '%: %', SQLSTATE, SQLERRM;
    END;
END $$;
SELECT leaf_segment_next('t') FROM generate_series(1, 2);
RESET leaf_id.refill_timeout;
RESET statement_timeout;
SELECT leaf_tag_drop('t', forget => true);

-- Thousands of edits in one transaction are all noticed.
INSERT INTO leaf_id.leaf_alloc (biz_tag) SELECT 'many' || i FROM generate_series(1, 5000) i;
SELECT leaf_segment_next('many' || i) FROM unnest('{1,2500,5000}'::int[]) i;
UPDATE leaf_id.leaf_alloc SET max_id = 1000000 WHERE biz_tag LIKE 'many%';
SELECT leaf_segment_next('many' || i) FROM unnest('{1,2500,5000}'::int[]) i;
DELETE FROM leaf_id.leaf_alloc WHERE biz_tag LIKE 'many%';
SELECT sqlstate, message
FROM unnest('{1,2500,5000}'::int[]) i, refusal(format('SELECT leaf_segment_next(%L)', 'many' || i));

-- A table that is not as the extension has made it is not written: every edit is refused.
SELECT leaf_tag_create('t');
BEGIN;
ALTER TABLE leaf_id.leaf_alloc ALTER update_time TYPE text;
SET LOCAL leaf_id.allow_truncate = on;
SELECT statement, r.*
FROM (VALUES ('UPDATE leaf_id.leaf_alloc SET step = 20'),
             ('INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES (''u'')'),
             ('DELETE FROM leaf_id.leaf_alloc'),
             ('TRUNCATE leaf_id.leaf_alloc')) s (statement), refusal(statement) r \gx
ROLLBACK;
BEGIN;
ALTER TABLE leaf_id.leaf_alloc ALTER update_time TYPE text;
-- An apply worker is not stopped.
SET LOCAL session_replication_role = replica;
UPDATE leaf_id.leaf_alloc SET description = 'from afar' WHERE biz_tag = 't' RETURNING description;
ROLLBACK;
SELECT leaf_tag_drop('t', forget => true);
-- Nor does the trigger's function touch another table.
CREATE TABLE mine (a text, b bigint);
CREATE TRIGGER mine BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_alloc_stamp();
SELECT * FROM refusal($$INSERT INTO mine VALUES ('t', 1)$$) \gx
DROP TABLE mine;

-- A new tag begins above the ids in its columns, which may be in partitions.
CREATE TABLE ev (id bigint DEFAULT leaf_segment_next('ev'), k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE ev1 PARTITION OF ev FOR VALUES IN (1);
INSERT INTO ev VALUES (5, 1);
SELECT * FROM refusal($$SELECT leaf_tag_create('ev', 5)$$) \gx
SELECT leaf_tag_create('ev', 6);
INSERT INTO ev (k) VALUES (1) RETURNING id;
SELECT leaf_tag_drop('ev', forget => true, force => true);
SELECT leaf_tag_create('ev', force => true), leaf_tag_drop('ev', forget => true, force => true);
-- Where a column is not read, that is said: for want of a right, or as it takes long.
CREATE ROLE leaf_id_caller;
GRANT SELECT, INSERT ON leaf_id.leaf_alloc TO leaf_id_caller;
SET ROLE leaf_id_caller;
SELECT leaf_tag_create('ev');
RESET ROLE;
SELECT leaf_tag_drop('ev', forget => true, force => true);
ALTER TABLE ev DROP CONSTRAINT ev_pkey;
UPDATE pg_class SET relpages = 100000 WHERE oid = 'ev1'::regclass;
SELECT leaf_tag_create('ev');
DROP TABLE ev;
SELECT leaf_tag_drop('ev', forget => true);
DROP OWNED BY leaf_id_caller;

-- A tag that is taken by hand from under a default gives one warning.
GRANT CREATE ON SCHEMA public TO leaf_id_caller;
SELECT leaf_tag_create('a'), leaf_tag_create('b'), leaf_tag_create('c'), leaf_tag_grant('c', 'leaf_id_caller') \g /dev/null
CREATE TABLE uses (a bigint DEFAULT leaf_segment_next('a'), b bigint DEFAULT 10 * leaf_segment_next('b'));
SET ROLE leaf_id_caller;
CREATE TABLE his (c bigint DEFAULT leaf_segment_next('c'), a bigint DEFAULT leaf_segment_next('a'));
RESET ROLE;
UPDATE leaf_id.leaf_alloc SET step = step + 1;
UPDATE leaf_id.leaf_alloc SET biz_tag = 'd' WHERE biz_tag = 'a';
BEGIN;
DELETE FROM leaf_id.leaf_alloc;
ROLLBACK;
DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 'd';
-- Not of what another server has deleted, and not where it was forced; and who may delete, and not read,
-- may go on to.
BEGIN;
SET LOCAL session_replication_role = replica;
DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 'b';
ROLLBACK;
SELECT leaf_tag_drop('b', forget => true, force => true);
GRANT DELETE ON leaf_id.leaf_alloc TO leaf_id_caller;
SET ROLE leaf_id_caller;
DELETE FROM leaf_id.leaf_alloc;
RESET ROLE;
DROP TABLE uses, his;
DROP OWNED BY leaf_id_caller;
DROP ROLE leaf_id_caller;
DELETE FROM leaf_id.leaf_high_mark;
