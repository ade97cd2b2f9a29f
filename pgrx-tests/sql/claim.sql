-- leaf_claim: ids of a tag for another server.
\set SHOW_CONTEXT never
\set what 'first_id, last_id, max_step, max_value, skipped'
SELECT leaf_tag_create('t', step => 10, max_step => 1000, max_value => 1400);
SELECT incarnation FROM leaf_id.leaf_alloc WHERE biz_tag = 't' \gset
-- The row's step; fewer; at most eight times the largest so far; as much as max_step; what is left.
SELECT :what, incarnation = :incarnation AS same FROM leaf_claim('t', 0);
SELECT :what, incarnation = :incarnation AS same FROM leaf_claim('t', 3);
SELECT :what, incarnation = :incarnation AS same FROM leaf_claim('t', 5000);
SELECT :what, incarnation = :incarnation AS same FROM leaf_claim('t', 640);
SELECT :what, incarnation = :incarnation AS same FROM leaf_claim('t', 1);
SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT :what, incarnation = :incarnation AS same FROM leaf_claim('t', 1000);
SELECT :what FROM leaf_claim('t', 1);
\echo :SQLSTATE
SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
-- Cut by max_step.
UPDATE leaf_id.leaf_alloc SET max_value = 10000, max_step = 20 WHERE biz_tag = 't';
SELECT :what FROM leaf_claim('t', 100);
SELECT leaf_tag_reset('t', 5);
SELECT first_id, incarnation <> :incarnation AS another FROM leaf_claim('t', 1);
SELECT leaf_claim('t', -1);
\echo :SQLSTATE
SELECT leaf_claim('T', 1);
\echo :SQLSTATE
SELECT leaf_claim('', 1);
\echo :SQLSTATE
SELECT first_id FROM leaf_claim('t', NULL);
SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 't';

-- Not where it could be undone after it was answered.
CREATE FUNCTION wrapper() RETURNS bigint LANGUAGE sql AS 'SELECT first_id FROM leaf_claim(''t'', 10)';
BEGIN;
SELECT leaf_claim('t', 10);
\echo :SQLSTATE
ROLLBACK;
SELECT leaf_claim('t', 10) \; SELECT 1;
\echo :SQLSTATE
SELECT 1 \; SELECT leaf_claim('t', 10);
\echo :SQLSTATE
SELECT * FROM refusal('SELECT wrapper()') \gx
SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT wrapper();
-- What goes wrong after it takes it back, and tells the caller nothing.
SELECT c.*, 1 / (c.first_id - 16) FROM leaf_claim('t', 10) c;
SELECT first_id FROM leaf_claim('t', 10);
SET default_transaction_read_only = on;
SELECT first_id FROM leaf_claim('t', 1);
\echo :SQLSTATE
RESET default_transaction_read_only;
DROP FUNCTION wrapper();
SELECT leaf_tag_drop('t', forget => true);

-- Not of a tag that the same statement has created, whose ids are counted in the session.
CREATE FUNCTION mixed(OUT issued bigint, OUT claimed bigint) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM leaf_tag_create('t');
    issued := leaf_segment_next('t');
    claimed := (leaf_claim('t', 10)).first_id;
END $$;
SELECT mixed();
\echo :SQLSTATE
DROP FUNCTION mixed();
-- Nor of one that is itself sourced from another server.
CREATE EXTENSION dblink;
CREATE SERVER leaf_central FOREIGN DATA WRAPPER dblink_fdw OPTIONS (host '/nowhere');
SELECT leaf_tag_create('t', server => 'leaf_central');
SELECT leaf_claim('t', 10);
\echo :SQLSTATE
SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT leaf_tag_drop('t', forget => true);
DROP SERVER leaf_central;
DROP EXTENSION dblink;

-- EXECUTE is needed, and nothing else.
SELECT leaf_tag_create('t', step => 10);
CREATE ROLE leaf_id_member;
SET ROLE leaf_id_member;
SET search_path = nowhere;
SELECT first_id FROM public.leaf_claim('t', 10);
\echo :SQLSTATE
RESET ROLE;
GRANT EXECUTE ON FUNCTION public.leaf_claim TO leaf_id_member;
SET ROLE leaf_id_member;
SELECT first_id FROM public.leaf_claim('t', 10);
SELECT sqlstate, message FROM public.refusal('SELECT * FROM leaf_id.leaf_alloc');
SELECT sqlstate, message FROM public.refusal('UPDATE leaf_id.leaf_alloc SET max_id = 1000');
SELECT first_id FROM public.leaf_claim('t', 10);
RESET ROLE;
RESET search_path;
SELECT leaf_tag_drop('t', forget => true);
DROP OWNED BY leaf_id_member;
DROP ROLE leaf_id_member;
