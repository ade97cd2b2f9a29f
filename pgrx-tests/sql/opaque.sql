-- Opaque ids: what is refused, and to whom the keys are hidden.
\set SHOW_CONTEXT never
SELECT leaf_tag_create('t', opaque => true, start => 10, max_value => 1000009), leaf_tag_create('plain');

-- A range is refused, of a tag that was used and one that was not, also in the transaction that creates it.
SELECT * FROM refusal($$SELECT leaf_segment_next_range('t', 3)$$) \gx
SELECT leaf_segment_next('t') BETWEEN 10 AND 1000009 AS issued;
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next_range('t', 3)$$);
BEGIN;
SELECT leaf_tag_create('new', opaque => true);
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next_range('new', 3)$$);
ROLLBACK;

-- What is outside is refused.
SELECT function, value, sqlstate, detail
FROM unnest('{encode,decode}'::text[]) function,
     unnest('{-9223372036854775808,-1,0,9,1000010,9223372036854775807}'::bigint[]) value,
     refusal(format('SELECT leaf_opaque_%s(''t'', ''%s'')', function, value));
SELECT function, r.*
FROM unnest('{encode,decode}'::text[]) function,
     unnest('{plain,missing}'::text[]) tag,
     refusal(format('SELECT leaf_opaque_%s(%L, 1)', function, tag)) r;
SELECT leaf_opaque_encode('t', NULL), leaf_opaque_decode('t', NULL);

-- Key and domain are final.
SELECT change, r.*
FROM (VALUES ('opaque_key = NULL, opaque_bounds = NULL'), ('opaque_key = 0'), ('opaque_key = opaque_key + 1'),
             ('opaque_bounds = ''{1,2000000}'''), ('opaque_bounds = ''{}'''), ('max_value = 1000008')) c (change),
     refusal(format('UPDATE leaf_id.leaf_alloc SET %s WHERE biz_tag = ''t''', change)) r \gx
SELECT sqlstate, message FROM refusal($$UPDATE leaf_id.leaf_alloc SET opaque_key = 0 WHERE biz_tag = 'plain'$$);
-- Nor by way of a DELETE, with which the key would go.
CREATE TEMP TABLE was AS SELECT * FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
BEGIN;
UPDATE was SET opaque_bounds = '{1,2000000}';
DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT sqlstate, message FROM refusal('INSERT INTO leaf_id.leaf_alloc SELECT * FROM was');
ROLLBACK;
BEGIN;
UPDATE was SET max_value = 1000008;
DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT sqlstate, message FROM refusal('INSERT INTO leaf_id.leaf_alloc SELECT * FROM was');
ROLLBACK;
BEGIN;
UPDATE was SET max_id = 9;
DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT sqlstate, message FROM refusal('INSERT INTO leaf_id.leaf_alloc SELECT * FROM was');
ROLLBACK;
DROP TABLE was;
SELECT sqlstate, message
FROM refusal($$WITH gone AS (DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 't' RETURNING *)
INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id, max_value, opaque_key, opaque_bounds)
SELECT biz_tag, max_id, max_value, opaque_key, '{1,2000000}' FROM gone$$);
-- Nobody shares a key, with which it would go when one is dropped.
SELECT sqlstate, message
FROM refusal($$INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id, max_value, opaque_key, opaque_bounds)
SELECT 'copy', max_id, max_value, opaque_key, opaque_bounds FROM leaf_id.leaf_alloc WHERE biz_tag = 't'$$);

-- As it was, it is the same tag with the same key; and so it is with another name and another step.
CREATE TABLE ids AS SELECT n, leaf_segment_next('t') AS id FROM generate_series(1, 10) n;
SELECT leaf_opaque_decode('t', id) BETWEEN 10 AND 2000 AS number FROM ids WHERE n = 1;
SELECT leaf_opaque_decode('t', id) AS number FROM ids WHERE n = 1 \gset
WITH gone AS (DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 't' RETURNING *)
INSERT INTO leaf_id.leaf_alloc SELECT * FROM gone;
SELECT leaf_opaque_decode('t', id) = :number AS same FROM ids WHERE n = 1;
UPDATE leaf_id.leaf_alloc SET biz_tag = 'renamed', step = 7 WHERE biz_tag = 't';
INSERT INTO ids SELECT n, leaf_segment_next('renamed') FROM generate_series(11, 20) n;
SELECT count(DISTINCT id), count(DISTINCT leaf_opaque_decode('renamed', id)), min(leaf_opaque_decode('renamed', id)) = :number AS same FROM ids;
DROP TABLE ids;
UPDATE leaf_id.leaf_alloc SET biz_tag = 't' WHERE biz_tag = 'renamed';

-- A range that is added is not too small, and there are not too many.
SELECT * FROM refusal('UPDATE leaf_id.leaf_alloc SET max_value = 2000008 WHERE biz_tag = ''t''') \gx
-- A reset stays in the domain.
SELECT next_id, r.*
FROM unnest('{9,1000011}'::bigint[]) next_id, refusal(format('SELECT leaf_tag_reset(''t'', %s)', next_id)) r \gx
SELECT leaf_tag_reset('t', 1000010);
SELECT sqlstate, message FROM refusal($$SELECT leaf_segment_next('t')$$);
UPDATE leaf_id.leaf_alloc SET max_value = 2500000 WHERE biz_tag = 't';
UPDATE leaf_id.leaf_alloc SET max_value = 3500000 WHERE biz_tag = 't';
UPDATE leaf_id.leaf_alloc SET max_value = 4500000 WHERE biz_tag = 't';
UPDATE leaf_id.leaf_alloc SET max_value = 5500000 WHERE biz_tag = 't';
UPDATE leaf_id.leaf_alloc SET max_value = 6500000 WHERE biz_tag = 't';
UPDATE leaf_id.leaf_alloc SET max_value = 7500000 WHERE biz_tag = 't';
UPDATE leaf_id.leaf_alloc SET max_value = 8500000 WHERE biz_tag = 't';
SELECT * FROM refusal('UPDATE leaf_id.leaf_alloc SET max_value = 100000000 WHERE biz_tag = ''t''') \gx
SELECT leaf_tag_drop('t');

-- What a tag is created with.
SELECT arguments, sqlstate, message
FROM unnest('{max_value => 999999,"start => 9, max_value => 1000007"}'::text[]) arguments,
     refusal(format('SELECT leaf_tag_create(''v'', opaque => true, %s)', arguments));
SELECT leaf_tag_create('v', opaque => true, start => 9, max_value => 1000008), leaf_tag_create('t', opaque => true);
SELECT biz_tag, max_value, opaque_bounds FROM leaf_id.leaf_alloc WHERE biz_tag IN ('plain', 't', 'v') ORDER BY 1;
SELECT leaf_opaque_decode('v', leaf_segment_next('v')) FROM generate_series(1, 3);
-- By hand, and again where it exists. Two tags have two keys.
INSERT INTO leaf_id.leaf_alloc (biz_tag, opaque_key) VALUES ('hand', 0);
SELECT count(*) AS before FROM leaf_id.leaf_opaque_key \gset
SELECT leaf_tag_create('t', opaque => true, if_not_exists => true);
SELECT count(*) = :before AS keys FROM leaf_id.leaf_opaque_key;
SELECT count(DISTINCT k.key) FROM leaf_id.leaf_opaque_key k JOIN leaf_id.leaf_alloc a ON a.opaque_key = k.id
WHERE a.biz_tag IN ('hand', 't', 'v');
SELECT leaf_opaque_decode('hand', leaf_segment_next('hand')) FROM generate_series(1, 3);
SELECT leaf_opaque_encode('hand', n) <> leaf_opaque_encode('t', n) AS apart FROM generate_series(1, 2) n;

-- What looks at columns leaves it alone.
CREATE TABLE t (id bigint PRIMARY KEY DEFAULT leaf_segment_next('t'));
INSERT INTO t SELECT FROM generate_series(1, 50);
CREATE TABLE small (id integer DEFAULT leaf_segment_next('t'));
CREATE TABLE serial (id bigserial PRIMARY KEY);
SELECT max_id AS before FROM leaf_id.leaf_alloc WHERE biz_tag = 't' \gset
SELECT relation, action, detail FROM leaf_sync('t') ORDER BY relation::text;
SELECT relation, action, detail FROM leaf_check('t') ORDER BY relation::text;
SELECT relation, action FROM leaf_sync() WHERE tag = 't' ORDER BY relation::text;
DROP TABLE small;
SELECT relation, action, detail FROM leaf_check() WHERE tag = 't';
SELECT max_id = :before AS unchanged FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT call, r.*
FROM (VALUES ('leaf_adopt(''serial'', ''id'', ''t'')'), ('leaf_release(''t'', ''id'')')) c (call), refusal('SELECT ' || call) r \gx
DROP TABLE t, serial;

-- No role reads a key without the right.
CREATE ROLE leaf_id_manager;
CREATE ROLE leaf_id_member;
CREATE ROLE leaf_id_app;
CREATE ROLE leaf_id_monitor IN ROLE pg_monitor;
GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO leaf_id_manager;
GRANT EXECUTE ON FUNCTION leaf_claim TO leaf_id_member;
GRANT EXECUTE ON FUNCTION leaf_opaque_encode, leaf_opaque_decode TO leaf_id_app;
CREATE VIEW ways AS
SELECT current_user AS role, way, sqlstate
FROM (VALUES (1, 'SELECT * FROM leaf_id.leaf_opaque_key'),
             (2, 'SELECT leaf_id.leaf_key_of(''t'')'),
             (3, 'INSERT INTO leaf_id.leaf_opaque_key VALUES (1, sha256(''x''))'),
             (4, 'DELETE FROM leaf_id.leaf_opaque_key'),
             (5, 'SELECT leaf_opaque_encode(''t'', 1)'),
             (6, 'SELECT leaf_opaque_decode(''t'', 1)'),
             (7, 'SELECT leaf_segment_next(''t'')')) w (n, way), refusal(way)
ORDER BY n;
GRANT SELECT ON ways TO PUBLIC;
\set refused 'SELECT leaf_claim(''t'', 10); COPY leaf_id.leaf_opaque_key TO STDOUT;'
SET ROLE leaf_id_manager;
TABLE ways;
:refused
-- A manager creates, resets and drops without ever seeing one.
SELECT leaf_tag_create('own', opaque => true);
CREATE TEMP TABLE own AS SELECT leaf_segment_next('own') AS id FROM generate_series(1, 3);
SELECT leaf_tag_reset('own', 100);
INSERT INTO own SELECT leaf_segment_next('own') FROM generate_series(1, 3);
SELECT count(DISTINCT id) FROM own;
DROP TABLE own;
SELECT leaf_tag_drop('own');
SET ROLE leaf_id_member;
TABLE ways;
:refused
SET ROLE leaf_id_monitor;
TABLE ways;
:refused
SET ROLE leaf_id_app;
TABLE ways;
:refused
RESET ROLE;
-- Whoever may not issue the ids does not decode them either.
SELECT leaf_tag_revoke('t', 'public');
SET ROLE leaf_id_app;
SELECT way, sqlstate FROM ways WHERE way ~ 'encode|decode|next';
RESET ROLE;
SELECT leaf_tag_grant('t', 'leaf_id_app');
SET ROLE leaf_id_app;
SELECT way, sqlstate FROM ways WHERE way ~ 'encode|decode|next';
RESET ROLE;
DROP VIEW ways;
SELECT leaf_tag_drop('t'), leaf_tag_drop('v'), leaf_tag_drop('hand'), leaf_tag_drop('plain');
DROP OWNED BY leaf_id_manager, leaf_id_member, leaf_id_app, leaf_id_monitor;
DROP ROLE leaf_id_manager, leaf_id_member, leaf_id_app, leaf_id_monitor;
