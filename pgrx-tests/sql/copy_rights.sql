-- Would catch: a role that gets ids by COPY which it may not have by a call; SQL that reaches what COPY
-- calls in its place; and a COPY that fails because a right to that was taken away.
\pset format unaligned
\set SHOW_CONTEXT never
SELECT leaf_tag_create('a'), leaf_tag_grant('a', 'public');
CREATE TABLE t (id bigint DEFAULT leaf_segment_next('a'), i int);
CREATE TABLE u (id bigint DEFAULT leaf_snowflake_next(), i int);
CREATE ROLE leaf_id_app;
CREATE ROLE leaf_id_other;
GRANT ALL ON t, u TO leaf_id_app, leaf_id_other;
GRANT pg_read_server_files, pg_execute_server_program TO leaf_id_app, leaf_id_other;

-- EXECUTE that was revoked holds in COPY, before there are any rows, and in a session that has copied
-- before. The caller's right counts, not that of the role that has connected.
SET ROLE leaf_id_app;
COPY t (i) FROM STDIN;
1
2
3
\.
COPY u (i) FROM STDIN;
1
2
3
\.
RESET ROLE;
REVOKE EXECUTE ON FUNCTION leaf_segment_next(text), leaf_snowflake_next() FROM public;
GRANT EXECUTE ON FUNCTION leaf_segment_next(text), leaf_snowflake_next() TO leaf_id_other;
SET ROLE leaf_id_app;
SELECT r.* FROM unnest(ARRAY['t', 'u']) name, refusal(format($$COPY %I (i) FROM '/dev/null'$$, name)) r;
SET SESSION AUTHORIZATION leaf_id_app;
SELECT r.* FROM unnest(ARRAY['t', 'u']) name, refusal(format($$COPY %I (i) FROM '/dev/null'$$, name)) r;
SET SESSION AUTHORIZATION leaf_id_other;
COPY t (i) FROM PROGRAM 'seq 3';
COPY u (i) FROM PROGRAM 'seq 3';
RESET SESSION AUTHORIZATION;
COPY t (i) FROM PROGRAM 'seq 3';
COPY u (i) FROM PROGRAM 'seq 3';
SELECT count(DISTINCT t.id), count(DISTINCT u.id) FROM t FULL JOIN u ON false;

-- Constraints of a domain are planned once in a session, and used by all its roles.
CREATE DOMAIN d AS int CHECK (VALUE < leaf_segment_next('a') + 1000);
CREATE DOMAIN e AS int CHECK (VALUE < leaf_snowflake_next());
SELECT 1::d, 1::e;
SELECT i::d, i::e FROM generate_series(1, 3) i;
SET ROLE leaf_id_app;
SELECT r.* FROM unnest(ARRAY['d', 'e']) domain, refusal(format('SELECT i::%I FROM generate_series(1, 3) i', domain)) r;
RESET ROLE;
DROP DOMAIN d, e;

-- A definer's function copies with the rights of its owner.
CREATE FUNCTION add_key(i int) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS
'BEGIN EXECUTE format($$ALTER TABLE t ADD c%s bigint DEFAULT leaf_segment_next(''a'')$$, i); END';
SET ROLE leaf_id_app;
SELECT add_key(1);
RESET ROLE;
SELECT count(*) = count(DISTINCT c1) AS distinct FROM t;
ALTER FUNCTION add_key OWNER TO leaf_id_app;
GRANT CREATE ON SCHEMA public TO leaf_id_app;
ALTER TABLE t OWNER TO leaf_id_app;
SELECT * FROM refusal('SELECT add_key(2)');
SET ROLE leaf_id_other;
SELECT * FROM refusal('SELECT add_key(2)');
RESET ROLE;
DROP FUNCTION add_key;
ALTER TABLE t OWNER TO CURRENT_USER;
ALTER TABLE t DROP c1;
GRANT ALL ON t TO leaf_id_app;
REVOKE EXECUTE ON FUNCTION leaf_segment_next(text), leaf_snowflake_next() FROM leaf_id_other;
GRANT EXECUTE ON FUNCTION leaf_segment_next(text), leaf_snowflake_next() TO public;

-- A tag that was revoked is not copied from.
SELECT leaf_tag_revoke('a', 'public');
SET ROLE leaf_id_app;
SELECT * FROM refusal($$COPY t (i) FROM PROGRAM 'seq 3'$$);
RESET ROLE;
SELECT leaf_tag_grant('a', 'leaf_id_app');
SET ROLE leaf_id_app;
COPY t (i) FROM PROGRAM 'seq 3';
RESET ROLE;
BEGIN;
SELECT leaf_tag_revoke('a', 'leaf_id_app');
COMMIT;
SET ROLE leaf_id_app;
SELECT * FROM refusal($$COPY t (i) FROM PROGRAM 'seq 3'$$);
RESET ROLE;
SELECT leaf_tag_grant('a', 'public');
SELECT count(*), count(DISTINCT id) FROM t;

-- Who hardens a database with a REVOKE from PUBLIC, and grants what is used, copies as before.
TRUNCATE t, u;
BEGIN;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA leaf_id FROM public;
SET LOCAL ROLE leaf_id_app;
COPY t (i) FROM PROGRAM 'seq 3';
COPY u (i) FROM PROGRAM 'seq 3';
SELECT count(DISTINCT t.id), count(DISTINCT u.id) FROM t FULL JOIN u ON false;
ROLLBACK;

-- SQL does not reach the twins. There is no value of type internal, not even a NULL, but for
-- outer_joined() below. (Up to 16.14 and its fellows there are casts, and the type's input function
-- refuses: 0A000.)
GRANT USAGE ON SCHEMA leaf_id TO leaf_id_app;
CREATE TABLE calls AS SELECT unnest(ARRAY[
    $$leaf_id_internal.leaf_segment_next_stable('a')$$,
    $$leaf_id_internal.leaf_segment_next_stable('a', NULL)$$,
    $$leaf_id_internal.leaf_segment_next_stable('a', 0, NULL::internal)$$,
    $$leaf_id_internal.leaf_segment_next_stable('a', 0, 0)$$,
    $$leaf_id_internal.leaf_segment_next_stable('a', 0, '0'::internal)$$,
    $$leaf_id_internal.leaf_snowflake_next_stable(0, NULL)$$,
    $$leaf_id_internal.leaf_snowflake_next_stable(0, 1259::oid::internal)$$,
    $$leaf_id_internal.leaf_next_support(NULL)$$]) AS call;
GRANT SELECT ON calls TO leaf_id_app;
SELECT call, r.sqlstate IN ('42883', '42846', '0A000') AS refused FROM calls, refusal('SELECT ' || call) r;
SELECT sqlstate FROM refusal('SELECT * FROM t TABLESAMPLE leaf_id_internal.leaf_snowflake_next_stable(1)');
-- A call with a NULL of type internal, which some minor versions let SQL make. Others refuse it.
CREATE FUNCTION outer_joined(twin text, function text) RETURNS text LANGUAGE sql AS $$
    SELECT format('SELECT leaf_id.%s(%s%L::regprocedure::oid, x) FROM (VALUES (1)) v (a)
        LEFT JOIN xmltable(''/a'' PASSING (NULL::xml) COLUMNS x internal PATH ''b'') q ON false',
        twin, CASE WHEN twin ~ 'segment' THEN '''a'', ' END, function)
$$;
CREATE TABLE twins AS SELECT twin, function
FROM unnest(ARRAY['leaf_segment_next_stable', 'leaf_snowflake_next_stable']) twin,
    unnest(ARRAY['pi()', 'leaf_id_internal.leaf_next_support(internal)']) function;
GRANT SELECT ON twins TO leaf_id_app;
-- (42601 is how it would be if the query itself were wrong.)
SELECT twin, function, r.sqlstate NOT IN ('00000', '42601') AS refused FROM twins, refusal(outer_joined(twin, function)) r;

SET ROLE leaf_id_app;
SELECT call, r.sqlstate IN ('42883', '42846', '0A000') AS refused FROM calls, refusal('SELECT ' || call) r;
SELECT sqlstate FROM refusal('SELECT * FROM t TABLESAMPLE leaf_id_internal.leaf_snowflake_next_stable(1)');
SELECT twin, function, r.sqlstate NOT IN ('00000', '42601') AS refused FROM twins, refusal(outer_joined(twin, function)) r;
-- What a superuser may create is his own affair.
SELECT statement, r.sqlstate FROM unnest(ARRAY[
    $$CREATE FUNCTION f() RETURNS internal LANGUAGE sql AS 'SELECT NULL'$$,
    $$CREATE FUNCTION f(internal) RETURNS bigint LANGUAGE sql AS 'SELECT 1'$$,
    $$CREATE FUNCTION f(internal) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN END'$$,
    $$CREATE CAST (bigint AS internal) WITHOUT FUNCTION$$,
    $$CREATE FUNCTION f() RETURNS bigint LANGUAGE sql SUPPORT leaf_id_internal.leaf_next_support AS 'SELECT 1::bigint'$$,
    $$CREATE AGGREGATE f(bigint) (sfunc = int8_avg_accum, stype = internal, finalfunc = leaf_id_internal.leaf_snowflake_next_stable)$$
]) statement, refusal(statement) r;
RESET ROLE;

-- What only a superuser can make of one. As with outer_joined() it is all a twin's own doing.
CREATE FUNCTION planted(text, oid, int) RETURNS bigint STABLE LANGUAGE c AS '$libdir/leaf_id', 'leaf_segment_next_stable';
CREATE FUNCTION planted(oid, int) RETURNS bigint STABLE LANGUAGE c AS '$libdir/leaf_id', 'leaf_snowflake_next_stable';
SELECT call, r.* FROM unnest(ARRAY[
    $$(NULL, NULL, NULL)$$,
    $$('a', NULL, NULL)$$,
    $$(NULL, 'leaf_segment_next(text)'::regprocedure, 1)$$,
    $$(tag, 'leaf_segment_next(text)'::regprocedure, 1)$$,
    $$(NULL, NULL)$$,
    $$('a', 0, 1)$$,
    $$('a', 'pi()'::regprocedure, 1)$$,
    $$('a', 'upper(text)'::regprocedure, 1)$$,
    $$('a', 'leaf_snowflake_next()'::regprocedure, 1)$$,
    $$('a', 'planted(text, oid, int)'::regprocedure, 1)$$,
    $$(0, 1)$$,
    $$('pi()'::regprocedure, 1)$$,
    $$('leaf_segment_next(text)'::regprocedure, 1)$$,
    $$('leaf_snowflake_next_batch(int)'::regprocedure, 1)$$
]) call, refusal(format('SELECT planted%s FROM (SELECT NULLIF(i, 2)::text AS tag FROM generate_series(1, 3) i OFFSET 0) tags', call)) r;
-- Of the function itself no more than a call of that.
SET ROLE leaf_id_app;
SELECT planted('a', 'leaf_segment_next(text)'::regprocedure, 1) > 0 AS segment, planted('leaf_snowflake_next()'::regprocedure, 1) > 0 AS snowflake;
RESET ROLE;
REVOKE EXECUTE ON FUNCTION leaf_segment_next(text), leaf_snowflake_next() FROM public;
SET ROLE leaf_id_app;
SELECT r.* FROM unnest(ARRAY[
    $$SELECT planted('a', 'leaf_segment_next(text)'::regprocedure, 1)$$,
    $$SELECT planted('leaf_snowflake_next()'::regprocedure, 1)$$
]) statement, refusal(statement) r;
SELECT twin, r.sqlstate NOT IN ('00000', '42601') AS refused
FROM (VALUES ('leaf_segment_next_stable', 'leaf_segment_next(text)'), ('leaf_snowflake_next_stable', 'leaf_snowflake_next()')) twins (twin, function),
    refusal(outer_joined(twin, function)) r;
RESET ROLE;
GRANT EXECUTE ON FUNCTION leaf_segment_next(text), leaf_snowflake_next() TO public;

DROP TABLE t, u, calls, twins;
DROP FUNCTION planted(text, oid, int), planted(oid, int), outer_joined;
REVOKE USAGE ON SCHEMA leaf_id FROM leaf_id_app;
REVOKE CREATE ON SCHEMA public FROM leaf_id_app;
SELECT leaf_tag_drop('a', forget => true);
DROP ROLE leaf_id_app, leaf_id_other;
