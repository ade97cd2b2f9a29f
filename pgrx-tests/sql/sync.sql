-- leaf_check and leaf_sync: what they find in tables, and say and do about it.
\set SHOW_CONTEXT never
-- Of this test's tables: what leaf_check() says, then what leaf_sync() does, which is the same, and what is left to do.
CREATE SCHEMA sync;
SET search_path = sync, public;
CREATE VIEW found AS
SELECT * FROM leaf_check()
WHERE relation IN (SELECT oid FROM pg_class WHERE relnamespace = 'sync'::regnamespace) OR tag = 'full';
CREATE VIEW done AS
SELECT * FROM leaf_sync()
WHERE relation IN (SELECT oid FROM pg_class WHERE relnamespace = 'sync'::regnamespace) OR tag = 'full';
\set sync 'TABLE found; TABLE done; SELECT count(*) AS left FROM found WHERE action IN (''create'', ''raise'');'
-- Drops the tables, and the tags.
CREATE FUNCTION public.clean() RETURNS void LANGUAGE plpgsql SET client_min_messages = warning AS $$
BEGIN
    EXECUTE (SELECT format('DROP TABLE %s CASCADE', string_agg(oid::regclass::text, ', ')) FROM pg_class
             WHERE relnamespace = 'sync'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition);
    DELETE FROM leaf_id.leaf_alloc WHERE biz_tag NOT IN (SELECT biz_tag FROM before);
    DELETE FROM leaf_id.leaf_high_mark;
END $$;
CREATE TEMP TABLE before AS SELECT biz_tag FROM leaf_id.leaf_alloc;

-- A missing tag is created above the column.
SELECT leaf_tag_create('orders', step => 100);
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'));
CREATE TABLE parcels (id integer PRIMARY KEY DEFAULT leaf_segment_next('parcels'));
CREATE TABLE boxes (id smallint DEFAULT leaf_segment_next('boxes'));
INSERT INTO parcels VALUES (41), (7);
INSERT INTO boxes VALUES (-3), (NULL);
:sync
SELECT leaf_segment_next('parcels'), leaf_segment_next('boxes');
SELECT biz_tag, max_value FROM leaf_id.leaf_alloc WHERE biz_tag IN ('boxes', 'orders', 'parcels') ORDER BY 1;
DROP TABLE parcels, boxes;

-- An id inside the cached segment does not come again, nor one far above it.
INSERT INTO orders SELECT FROM generate_series(1, 4);
SELECT * FROM leaf_sync('orders');
INSERT INTO orders VALUES (50);
SELECT * FROM leaf_sync('orders');
SELECT leaf_segment_next('orders') FROM generate_series(1, 2);
INSERT INTO orders VALUES (5000);
TABLE done;
SELECT leaf_segment_next('orders');
-- What stands above is left alone.
TABLE done;
TABLE done;
SELECT leaf_segment_next('orders');

-- In the transaction of a migration.
SELECT leaf_tag_create('kept', step => 100);
CREATE TABLE kept (id bigint PRIMARY KEY DEFAULT leaf_segment_next('kept'));
BEGIN;
CREATE TABLE new (id bigint PRIMARY KEY DEFAULT leaf_segment_next('new'));
INSERT INTO new VALUES (7);
SELECT * FROM leaf_sync('new');
INSERT INTO new DEFAULT VALUES RETURNING id;
INSERT INTO new VALUES (20);
SELECT * FROM leaf_sync('new');
-- A tag that is there before, and a second call in the transaction.
INSERT INTO kept VALUES (30);
SELECT leaf_segment_next('kept');
SELECT * FROM leaf_sync('kept');
SELECT * FROM leaf_sync('kept');
COMMIT;
SELECT leaf_segment_next('new'), leaf_segment_next('kept');
-- Rolled back, nothing has happened.
BEGIN;
INSERT INTO kept VALUES (90000);
SELECT next_after FROM leaf_sync('kept');
ROLLBACK;
SELECT leaf_segment_next('kept');
SELECT clean();

-- Tags are read from defaults of all forms.
CREATE SCHEMA "Sales and ''more";
CREATE DOMAIN key AS bigint CHECK (value > 0);
CREATE DOMAIN own AS bigint DEFAULT leaf_segment_next('of a domain');
CREATE TABLE "Sales and ''more"."T 1" ("I d" bigint DEFAULT leaf_segment_next('it''s "one"'));
CREATE TABLE t2 (id bigint DEFAULT leaf_segment_next(E'back\\slash ''and\nline'));
CREATE TABLE t3 (id int DEFAULT leaf_segment_next('cast'::varchar)::int);
CREATE TABLE t4 (id key DEFAULT leaf_segment_next('domain'::name));
CREATE TABLE t5 (id own);
CREATE TABLE t6 (id bigint DEFAULT public.leaf_segment_next(U&'\00fcn\00efc\00f6d\00e9'));
CREATE TABLE t7 (id bigint DEFAULT leaf_segment_next('leaf_segment_next(''x''::text)'));
CREATE TABLE u1 (id bigint DEFAULT 1000 + leaf_segment_next('computed'));
CREATE TABLE u2 (id bigint DEFAULT leaf_segment_next('a' || current_user));
CREATE TABLE u3 (id text DEFAULT leaf_segment_next('text'));
CREATE TABLE u4 (id bigint DEFAULT (leaf_segment_next_range('range', 1)).first_id);
CREATE TABLE other (id bigint DEFAULT leaf_snowflake_next(), n int DEFAULT 3);
\set mine 'relation IN (SELECT oid FROM pg_class WHERE relnamespace IN (\'sync\'::regnamespace, to_regnamespace(\'"Sales and \'\'\'\'more"\')))'
SELECT relation, replace(tag, U&'\00fcn\00efc\00f6d\00e9', 'not ascii') AS tag, action
FROM leaf_sync() WHERE :mine AND action = 'create' ORDER BY relation::text;
INSERT INTO "Sales and ''more"."T 1" DEFAULT VALUES RETURNING "I d";
INSERT INTO t2 DEFAULT VALUES RETURNING id;
INSERT INTO t3 DEFAULT VALUES RETURNING id;
INSERT INTO t4 DEFAULT VALUES RETURNING id;
INSERT INTO t5 DEFAULT VALUES RETURNING id;
INSERT INTO t6 DEFAULT VALUES RETURNING id;
INSERT INTO t7 DEFAULT VALUES RETURNING id;
SELECT relation, tag, action, split_part(detail, ':', 1) AS detail FROM leaf_sync() WHERE :mine AND action <> 'none' ORDER BY relation::text;
-- Whatever the session's settings.
BEGIN;
CALL set_escaping_strings();
SET LOCAL search_path = pg_catalog;
SELECT count(*) FROM public.leaf_check() WHERE :mine AND action = 'create';
COMMIT;
DROP SCHEMA "Sales and ''more" CASCADE;
SELECT clean();
DROP DOMAIN key, own;

-- Partitions and children are read.
CREATE TABLE p (id bigint DEFAULT leaf_segment_next('p'), k int) PARTITION BY LIST (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2) PARTITION BY LIST (id);
CREATE TABLE p2a PARTITION OF p2 DEFAULT;
CREATE TABLE attached (k int, gone int, id bigint);
ALTER TABLE attached DROP gone;
ALTER TABLE p ATTACH PARTITION attached FOR VALUES IN (3);
INSERT INTO p VALUES (5, 1), (9, 2), (12, 3);
CREATE TABLE parent (id bigint DEFAULT leaf_segment_next('parent'));
CREATE TABLE child (id bigint DEFAULT leaf_segment_next('child')) INHERITS (parent);
INSERT INTO parent VALUES (3);
INSERT INTO child VALUES (8);
CREATE TABLE empty (id bigint DEFAULT leaf_segment_next('empty')) PARTITION BY RANGE (id);
:sync
SELECT clean();

-- The maximum is found by an index, in all its forms, or without one.
CREATE FUNCTION public.maxima(index text, kind text, OUT high bigint, OUT low bigint) LANGUAGE plpgsql AS $$
BEGIN
    SET LOCAL client_min_messages = warning;
    DROP TABLE IF EXISTS t;
    EXECUTE format('CREATE TABLE t (n int, id %s DEFAULT leaf_segment_next(''t''))', kind);
    INSERT INTO t SELECT i, i FROM generate_series(-50, 200) i;
    INSERT INTO t VALUES (1, NULL), (2, NULL), (0, 300);
    EXECUTE index;
    DELETE FROM t WHERE id = 300;
    high := (SELECT max_in_column FROM leaf_check('t'));
    DELETE FROM t WHERE id > -50;
    low := (SELECT max_in_column FROM leaf_check('t'));
END $$;
SELECT index, kind, maxima.*
FROM unnest('{SELECT,
              CREATE UNIQUE INDEX ON t (id),
              CREATE INDEX ON t (id DESC),
              CREATE INDEX ON t (id NULLS FIRST),
              "CREATE INDEX ON t (id DESC NULLS LAST, n)",
              "CREATE INDEX ON t (n, id)",
              CREATE INDEX ON t (id) WHERE id < 10,
              CREATE INDEX ON t USING hash (id),
              CREATE INDEX ON t ((id + 1))}'::text[]) WITH ORDINALITY i (index, n),
     unnest('{smallint,integer,bigint}'::text[]) kind,
     maxima(index, kind)
ORDER BY n, kind;
DROP FUNCTION public.maxima(text, text);
DROP TABLE t;
-- Also where it stands in no row.
CREATE TABLE t (n int);
INSERT INTO t VALUES (1);
ALTER TABLE t ADD id bigint DEFAULT 77;
ALTER TABLE t ALTER id SET DEFAULT leaf_segment_next('t');
TABLE found;
SELECT clean();

-- Several columns of one tag.
CREATE TABLE a (id bigint DEFAULT leaf_segment_next('both'));
CREATE TABLE b (id bigint DEFAULT leaf_segment_next('both'), n int DEFAULT leaf_segment_next('both'));
INSERT INTO a VALUES (5);
INSERT INTO b VALUES (70, 6);
:sync
DELETE FROM b;
INSERT INTO a VALUES (300);
:sync
SELECT clean();

-- The end of a tag is reported, and never passed.
SELECT leaf_tag_create('small', max_value => 1000, step => 10);
SELECT leaf_tag_create('full', max_value => 100, start => 101);
SELECT leaf_tag_create('plenty', start => 1000);
CREATE TABLE small (id bigint DEFAULT leaf_segment_next('small'));
CREATE TABLE wide (id smallint DEFAULT leaf_segment_next('wide'));
INSERT INTO wide VALUES (26300);
INSERT INTO small VALUES (850);
TABLE done;
INSERT INTO small VALUES (899);
SELECT * FROM leaf_sync('small');
INSERT INTO small VALUES (1000);
SELECT * FROM leaf_sync('small');
UPDATE leaf_id.leaf_alloc SET max_value = 100000 WHERE biz_tag IN ('small', 'wide');
INSERT INTO wide VALUES (32000);
SELECT * FROM leaf_sync('wide');
INSERT INTO small VALUES (9223372036854775807);
SELECT * FROM leaf_check('small');
-- Nor does that keep other tags from being raised.
INSERT INTO wide VALUES (32500);
TABLE done;
SELECT leaf_tag_drop('small', forget => true, force => true);
SELECT * FROM leaf_sync('small');
SELECT * FROM leaf_check('plenty');
SELECT * FROM refusal($$SELECT leaf_sync('nope')$$) \gx
SELECT clean();

-- What a hostile owner can put into a table, and beside it: none of it runs for a superuser.
CREATE ROLE leaf_id_mallory;
CREATE ROLE leaf_id_manager;
CREATE ROLE leaf_id_app;
CREATE ROLE leaf_id_outsider;
GRANT USAGE, CREATE ON SCHEMA sync TO leaf_id_mallory, leaf_id_app;
GRANT USAGE ON SCHEMA sync TO leaf_id_manager, leaf_id_outsider;
GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO leaf_id_manager;
CREATE FOREIGN DATA WRAPPER nowhere;
GRANT USAGE ON FOREIGN DATA WRAPPER nowhere TO leaf_id_mallory;
SET ROLE leaf_id_mallory;
CREATE FUNCTION trap(n bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN IF current_user <> 'leaf_id_mallory' THEN RAISE EXCEPTION 'trap ran'; END IF; RETURN n; END $$;
CREATE FUNCTION is_so(n bigint) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN IF current_user <> 'leaf_id_mallory' THEN RAISE EXCEPTION 'is_so ran'; END IF; RETURN true; END $$;
CREATE FUNCTION more(a bigint, b integer) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN IF current_user <> 'leaf_id_mallory' THEN RAISE EXCEPTION 'more ran'; END IF; RETURN true; END $$;
CREATE OPERATOR >= (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = more);
CREATE DOMAIN checked AS bigint CHECK (is_so(value));
CREATE TABLE t (id checked DEFAULT leaf_segment_next('t'), n bigint);
CREATE INDEX ON t (id, trap(n));
CREATE INDEX ON t (trap(id));
CREATE INDEX ON t (id) WHERE is_so(id);
CREATE VIEW v AS SELECT trap(1) AS id;
ALTER VIEW v ALTER id SET DEFAULT leaf_segment_next('t');
CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere;
CREATE FOREIGN TABLE f (id bigint DEFAULT leaf_segment_next('t')) SERVER elsewhere;
CREATE FOREIGN TABLE child (id checked, n bigint) INHERITS (t) SERVER elsewhere;
CREATE TABLE r (id bigint DEFAULT leaf_segment_next('t'));
ALTER TABLE r ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY p ON r USING (is_so(id));
INSERT INTO t VALUES (1, 1), (5, 2);
INSERT INTO r VALUES (7);
RESET ROLE;
SELECT * FROM leaf_sync('t') ORDER BY relation::text;
SELECT count(*) FROM leaf_check('t');
-- Nor for a role that may read all of it.
GRANT pg_read_all_data TO leaf_id_manager;
SET ROLE leaf_id_manager;
SELECT * FROM leaf_sync('t') ORDER BY relation::text;
RESET ROLE;
REVOKE pg_read_all_data FROM leaf_id_manager;
-- It would have been noticed.
SELECT message FROM refusal('INSERT INTO t VALUES (9, 9)');
SELECT message FROM refusal('SELECT * FROM v');
SET client_min_messages = warning;
SELECT clean();
DROP DOMAIN checked CASCADE;
DROP FOREIGN DATA WRAPPER nowhere CASCADE;
DROP VIEW v;
RESET client_min_messages;
DROP OPERATOR sync.>= (bigint, integer);
DROP FUNCTION more, is_so, trap;

-- A number counts as far as its owner's rights go: the owner of a table can write any number into it.
SELECT leaf_tag_create('orders', step => 100);
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'));
INSERT INTO orders SELECT FROM generate_series(1, 3);
SET ROLE leaf_id_mallory;
CREATE TABLE mine (id bigint DEFAULT leaf_segment_next('orders'));
INSERT INTO mine VALUES (9000000000000000000);
RESET ROLE;
TABLE done;
-- Of a role that may issue the tag, what costs no more than the cache counts.
UPDATE mine SET id = 50;
TABLE done;
SELECT leaf_tag_grant('orders', 'leaf_id_mallory');
TABLE done;
SELECT leaf_tag_revoke('orders', 'leaf_id_mallory');
-- By the caller's explicit word.
UPDATE mine SET id = 7000;
SELECT * FROM leaf_sync('orders');
-- A tag that does not exist: of one role's tables alone, or of those who may edit tags.
DROP TABLE mine;
DROP TABLE orders;
SET ROLE leaf_id_mallory;
CREATE TABLE m1 (id bigint DEFAULT leaf_segment_next('gone'));
INSERT INTO m1 VALUES (900);
SET ROLE leaf_id_app;
CREATE TABLE a1 (id bigint DEFAULT leaf_segment_next('gone'));
INSERT INTO a1 VALUES (5);
RESET ROLE;
TABLE done;
GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO leaf_id_app;
TABLE done;
DROP TABLE a1;
SELECT leaf_tag_drop('gone', forget => true, force => true);
TABLE done;
SELECT * FROM leaf_sync('gone');
SELECT clean();
-- The role that wrote the default counts as well: the owner of a domain can name any tag in it.
SET ROLE leaf_id_mallory;
CREATE DOMAIN theirs AS bigint;
GRANT USAGE ON TYPE theirs TO PUBLIC;
RESET ROLE;
SELECT leaf_tag_create('orders', step => 100);
CREATE TABLE trusted (id theirs);
INSERT INTO trusted VALUES (9000000000000000000);
SET ROLE leaf_id_mallory;
ALTER DOMAIN theirs SET DEFAULT leaf_segment_next('orders');
RESET ROLE;
TABLE done;
SELECT * FROM leaf_sync('orders');
SELECT clean();
DROP DOMAIN theirs;

-- A right on a table is none in a schema that one may not use.
CREATE SCHEMA closed;
CREATE TABLE closed.t (id bigint);
INSERT INTO closed.t VALUES (7);
GRANT SELECT ON closed.t TO PUBLIC;
SET ROLE leaf_id_outsider;
SELECT m.* FROM pg_class c, leaf_id_internal.leaf_column_max(c.oid, 1::smallint) m WHERE c.relnamespace = 'closed'::regnamespace AND c.relkind = 'r';
RESET ROLE;
DROP SCHEMA closed CASCADE;

-- Columns that are not read are reported.
SELECT leaf_tag_create('orders', step => 100);
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'));
CREATE TABLE secret (id bigint DEFAULT leaf_segment_next('orders'), n int);
INSERT INTO secret VALUES (3000);
GRANT SELECT ON orders TO leaf_id_manager;
SET ROLE leaf_id_manager;
SELECT * FROM leaf_sync('orders');
RESET ROLE;
GRANT SELECT (id) ON secret TO leaf_id_manager;
SET ROLE leaf_id_manager;
SELECT * FROM leaf_check('orders');
SELECT * FROM leaf_sync('orders');
SELECT leaf_segment_next('orders') > 3000 AS above;
-- Who manages no tags.
SET ROLE leaf_id_outsider;
SELECT statement, sqlstate, message
FROM (VALUES ('SELECT leaf_sync()'), ('SELECT leaf_check()'),
             ('SELECT leaf_id_internal.leaf_tag_next(''orders'')'),
             ('SELECT leaf_id_internal.leaf_mark(''orders'')')) s (statement), refusal(statement);
SELECT * FROM leaf_id_internal.leaf_column_max('secret'::regclass, 1::smallint);
RESET ROLE;
SELECT clean();

-- No tag is created below what was not read. A partitioned table can always be read, and has no
-- rows: those of its partitions count.
CREATE TABLE p (id bigint DEFAULT leaf_segment_next('p'), k int) PARTITION BY LIST (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
INSERT INTO p VALUES (5, 1);
CREATE TABLE parent (id bigint DEFAULT leaf_segment_next('parent'));
INSERT INTO parent VALUES (2);
CREATE TABLE child () INHERITS (parent);
INSERT INTO child VALUES (7);
CREATE TABLE a (id bigint DEFAULT leaf_segment_next('both'));
INSERT INTO a VALUES (3);
CREATE TABLE b (id bigint DEFAULT leaf_segment_next('both'));
INSERT INTO b VALUES (9);
ALTER TABLE b ENABLE ROW LEVEL SECURITY;
GRANT SELECT ON p, parent, a, b TO leaf_id_manager;
GRANT SELECT ON found, done TO leaf_id_manager;
SET ROLE leaf_id_manager;
SELECT * FROM leaf_check() WHERE tag IN ('both', 'p', 'parent');
SELECT * FROM leaf_sync() WHERE tag IN ('both', 'p', 'parent');
SELECT * FROM leaf_sync('p');
RESET ROLE;
TABLE done;
-- Of a tag that exists, nothing is claimed about a partition that was not read.
SET ROLE leaf_id_manager;
SELECT * FROM leaf_sync('p');
RESET ROLE;
-- What is there is raised for all the same.
INSERT INTO parent VALUES (50);
SET ROLE leaf_id_manager;
SELECT * FROM leaf_sync('parent');
RESET ROLE;
-- A stranger's table, whose ids would not count either, keeps no tag from being created.
SELECT leaf_tag_drop('both', forget => true, force => true);
ALTER TABLE b DISABLE ROW LEVEL SECURITY;
SET ROLE leaf_id_mallory;
CREATE TABLE m (id bigint DEFAULT leaf_segment_next('both'));
INSERT INTO m VALUES (900);
SET ROLE leaf_id_manager;
SELECT * FROM leaf_sync() WHERE tag = 'both';
RESET ROLE;
SELECT clean();

-- A tag that no default names: what its ids are in, the call says.
SELECT leaf_tag_create('loose', step => 10), leaf_id.leaf_opaque_create('veiled');
CREATE TABLE loose (id integer, other text);
INSERT INTO loose VALUES (70);
CREATE TABLE loose_part (LIKE loose) INHERITS (loose);
INSERT INTO loose_part VALUES (90);
SELECT * FROM leaf_check() WHERE tag IN ('loose', 'veiled');
SELECT * FROM leaf_check('loose');
SELECT * FROM leaf_sync('loose', 'loose', 'id');
SELECT * FROM leaf_sync('loose', 'loose', 'id');
SELECT leaf_segment_next('loose');
SELECT * FROM leaf_sync('other', 'loose', 'id');
SELECT max_value FROM leaf_id.leaf_alloc WHERE biz_tag = 'other';
-- A stranger's column of a smaller type does not end it.
SET ROLE leaf_id_mallory;
CREATE TABLE tiny (id smallint DEFAULT leaf_segment_next('other'));
RESET ROLE;
SELECT tag, action, detail FROM leaf_sync() WHERE tag = 'other';
SELECT max_value FROM leaf_id.leaf_alloc WHERE biz_tag = 'other';
DROP TABLE tiny;
SELECT * FROM leaf_sync('veiled', 'loose', 'id');
SELECT call, sqlstate, message
FROM (VALUES ('leaf_sync(''other'', ''loose'', ''nothing'')'), ('leaf_sync(''other'', ''loose'', ''other'')')) c (call), refusal('SELECT ' || call);
SET ROLE leaf_id_manager;
SELECT sqlstate, message FROM refusal($$SELECT leaf_sync('other', 'sync.loose', 'id')$$);
RESET ROLE;
DROP TABLE loose_part;
SELECT clean();
DELETE FROM leaf_id.leaf_opaque_key;

-- What cannot be read is not taken for empty.
CREATE TABLE held (id bigint);
INSERT INTO held VALUES (1000000);
CREATE VIEW held_view AS SELECT id FROM held;
CREATE FOREIGN DATA WRAPPER elsewhere;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER elsewhere;
CREATE TABLE parts (id bigint, k int) PARTITION BY LIST (k);
CREATE FOREIGN TABLE far PARTITION OF parts FOR VALUES IN (2) SERVER elsewhere;
SELECT r.* FROM refusal($$SELECT leaf_sync('held', 'held_view', 'id')$$) r;
SELECT r.* FROM refusal($$SELECT leaf_sync('parts', 'parts', 'id')$$) r;
DROP TABLE parts;
DROP VIEW held_view;
DROP FOREIGN DATA WRAPPER elsewhere CASCADE;
-- A column with a smaller type does not end the tag.
SELECT leaf_tag_create('wide', max_value => 2147483647);
CREATE TABLE legacy (n smallint);
SELECT action, detail FROM leaf_sync('wide', 'legacy', 'n');
SELECT max_value FROM leaf_id.leaf_alloc WHERE biz_tag = 'wide';
DROP TABLE held, legacy;
SELECT clean();

-- Owners of tables are trusted with no missing tag, unless the call names it. One warning says how many
-- were left out, which is none where the tag exists: what does not count sounds no alarm.
SET SESSION AUTHORIZATION leaf_id_mallory;
CREATE TABLE restored (id bigint DEFAULT leaf_segment_next('restored'));
INSERT INTO restored VALUES (300);
RESET SESSION AUTHORIZATION;
TABLE done;
-- Nothing is granted: the detail has the statement.
SELECT action, detail FROM leaf_sync('restored');
SET ROLE leaf_id_mallory;
SELECT sqlstate FROM refusal('INSERT INTO restored DEFAULT VALUES');
RESET ROLE;
TABLE done;
SELECT leaf_tag_grant('restored', 'leaf_id_mallory');
SET ROLE leaf_id_mallory;
INSERT INTO restored DEFAULT VALUES RETURNING id;
RESET ROLE;
TABLE done;
SELECT clean();

DROP VIEW found, done;
DROP FUNCTION public.clean();
RESET search_path;
DROP SCHEMA sync;
DROP TABLE before;
DROP OWNED BY leaf_id_mallory, leaf_id_manager, leaf_id_app, leaf_id_outsider;
DROP ROLE leaf_id_mallory, leaf_id_manager, leaf_id_app, leaf_id_outsider;
