-- leaf_claim: ids of a tag for another server.
\set SHOW_CONTEXT never
\set answer 'AS a (version integer, first bigint, len integer, incarnation bigint, max_step integer, max_value bigint, skipped bigint)'
\set what 'first, len, max_step, max_value, skipped'
SELECT leaf_tag_create('t', step => 10, max_step => 1000, max_value => 1400);
SELECT incarnation FROM leaf_id.leaf_alloc WHERE biz_tag = 't' \gset
-- The row's step; fewer; at most eight times the largest so far; as much as max_step; what is left.
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 0}') \gset
SELECT :what, incarnation = :incarnation AS same FROM json_to_record(:'token') :answer;
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 3}') \gset
SELECT :what, incarnation = :incarnation AS same FROM json_to_record(:'token') :answer;
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 5000}') \gset
SELECT :what, incarnation = :incarnation AS same FROM json_to_record(:'token') :answer;
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 640}') \gset
SELECT :what, incarnation = :incarnation AS same FROM json_to_record(:'token') :answer;
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 1}') \gset
SELECT :what, incarnation = :incarnation AS same FROM json_to_record(:'token') :answer;
SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 1000}') \gset
SELECT :what, incarnation = :incarnation AS same FROM json_to_record(:'token') :answer;
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 1}');
\echo :SQLSTATE
SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
-- Cut by max_step.
UPDATE leaf_id.leaf_alloc SET max_value = 10000, max_step = 20 WHERE biz_tag = 't';
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 100}') \gset
SELECT :what FROM json_to_record(:'token') :answer;
SELECT leaf_tag_reset('t', 5);
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 1}') \gset
SELECT first, incarnation <> :incarnation AS another FROM json_to_record(:'token') :answer;
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": -1}');
\echo :SQLSTATE
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "T", "n": 1}');
\echo :SQLSTATE
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "", "n": 1}');
\echo :SQLSTATE
SELECT count(*) FROM ts_parse('leaf_id.leaf_claim', NULL);
-- Another version, of which nothing else is read; and what is no message.
SELECT format('SELECT token FROM ts_parse(''leaf_id.leaf_claim'', %L)', message)
FROM unnest(ARRAY['{"version": 2, "tag": 5}', '{"version": 0}', '{"tag": "t", "n": 1}', '{"version": "1", "tag": "t", "n": 1}',
    '{"version": 1, "tag": "t"}', '{"version": 1, "tag": "t", "n": 1.5}', '{"version": 1, "tag": "t", "n": 4294967296}',
    '{"version": 1, "tag": null, "n": 1}', '{"version": 1, "tag": "\u20ac", "n": 1}', '{"version": 1, "tag": "t", "tag": "t", "n": 1}',
    '[1]', '1', 'null', '""']) message \gexec
SELECT token FROM ts_parse('leaf_id.leaf_claim', format('{"version": 1, "tag": "t", "n": 1, "more": "%s"}', repeat('x', 16384)));
SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 't';

-- Not where it could be undone after it was answered.
CREATE FUNCTION wrapper() RETURNS bigint LANGUAGE sql AS 'SELECT (token::json ->> ''first'')::bigint FROM ts_parse(''leaf_id.leaf_claim'', ''{"version": 1, "tag": "t", "n": 10}'')';
BEGIN;
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 10}');
\echo :SQLSTATE
ROLLBACK;
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 10}') \; SELECT 1;
\echo :SQLSTATE
SELECT 1 \; SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 10}');
\echo :SQLSTATE
SELECT * FROM refusal('SELECT wrapper()') \gx
SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
-- PostgreSQL 19 says "from a function or procedure".
\set VERBOSITY sqlstate
SELECT wrapper();
\set VERBOSITY default
-- What goes wrong after it takes it back, and tells the caller nothing.
SELECT 1 / ((token::json ->> 'first')::bigint - 6) FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 10}');
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 10}') \gset
SELECT first FROM json_to_record(:'token') :answer;
SET default_transaction_read_only = on;
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 1}');
\echo :SQLSTATE
RESET default_transaction_read_only;
DROP FUNCTION wrapper();
SELECT leaf_tag_drop('t', forget => true);

-- Not of one that is itself sourced from another server.
CREATE EXTENSION dblink;
CREATE SERVER leaf_central FOREIGN DATA WRAPPER dblink_fdw OPTIONS (host '/nowhere');
SELECT leaf_tag_create('t', server => 'leaf_central');
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 10}');
\echo :SQLSTATE
SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT leaf_tag_drop('t', forget => true);
DROP SERVER leaf_central;
DROP EXTENSION dblink;

-- EXECUTE is needed, and nothing else.
SELECT leaf_tag_create('t', step => 10);
CREATE ROLE leaf_id_member;
SELECT leaf_tag_grant('t', 'leaf_id_member');
SET ROLE leaf_id_member;
SET search_path = nowhere;
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 10}');
\echo :SQLSTATE
RESET ROLE;
GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim TO leaf_id_member;
SET ROLE leaf_id_member;
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 10}') \gset
SELECT first FROM json_to_record(:'token') :answer;
SELECT sqlstate, message FROM public.refusal('SELECT * FROM leaf_id.leaf_alloc');
SELECT sqlstate, message FROM public.refusal('UPDATE leaf_id.leaf_alloc SET max_id = 1000');
SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 10}') \gset
SELECT first FROM json_to_record(:'token') :answer;
RESET ROLE;
RESET search_path;
SELECT leaf_tag_drop('t', forget => true);
DROP OWNED BY leaf_id_member;
DROP ROLE leaf_id_member;
