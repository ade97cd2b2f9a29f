-- Opaque ids: what is refused, and to whom the keys are hidden.
\set SHOW_CONTEXT never
SELECT leaf_id.leaf_opaque_create('t', max_value => 1000000), leaf_tag_create('plain');
SELECT tag, last, octet_length(key) FROM leaf_id.leaf_opaque_key;
SELECT biz_tag, max_id, step, max_step, max_value, server FROM leaf_id.leaf_alloc ORDER BY 1;

-- A number is no id, and an id takes a key.
SELECT call, r.*
FROM (VALUES ('leaf_segment_next(''t'')'), ('leaf_segment_next_batch(''t'', 3)'), ('leaf_segment_next_range(''t'', 3)'),
             ('leaf_opaque_next(''plain'')'), ('leaf_id.leaf_opaque_key(''plain'')'),
             ('leaf_opaque_next(''missing'')'), ('leaf_id.leaf_opaque_key(''missing'')'), ('leaf_opaque_next(repeat(''x'', 129))')) c (call),
     refusal('SELECT ' || call) r \gx
SELECT leaf_opaque_next(NULL), leaf_id.leaf_opaque_key(NULL);
SELECT leaf_opaque_next('t') BETWEEN 1 AND 1000000 AS issued;
SELECT leaf_id.leaf_opaque_decode('t', leaf_opaque_next('t')), leaf_id.leaf_opaque_encode('t', leaf_id.leaf_opaque_decode('t', 77));

-- What is outside is refused.
SELECT function, value, sqlstate, detail
FROM unnest('{encode,decode}'::text[]) function,
     unnest('{-9223372036854775808,-1,0,1000001,9223372036854775807}'::bigint[]) value,
     refusal(format('SELECT leaf_id.leaf_opaque_%s(''t'', ''%s'')', function, value));
SELECT function, r.*
FROM unnest('{encode,decode}'::text[]) function,
     unnest('{plain,missing}'::text[]) tag,
     refusal(format('SELECT leaf_id.leaf_opaque_%s(%L, 1)', function, tag)) r;
SELECT leaf_id.leaf_opaque_encode('t', NULL), leaf_id.leaf_opaque_decode('t', NULL);

-- What a tag is created with. A name with a tag gets no key, and one with a key no other.
SELECT arguments, r.*
FROM (VALUES ('''v'', max_value => 999999'), ('''v'', max_value => 9223372036854775807'), ('''v'', max_value => NULL'),
             ('NULL'), ('''v'', step => NULL'), ('''v'', key => ''00'''), ('''v'', key => repeat(''xy'', 32)'),
             ('''v'', key => repeat(''é'', 32)'), ('''v'', server => ''nowhere'''), ('''t'''), ('''plain''')) a (arguments),
     refusal(format('SELECT leaf_id.leaf_opaque_create(%s)', arguments)) r \gx
SELECT count(*) FROM leaf_id.leaf_opaque_key;
SELECT leaf_tag_drop('t');
SELECT sqlstate, message, detail, hint FROM refusal($$SELECT leaf_id.leaf_opaque_create('t', max_value => 2000000)$$) \gx
SELECT leaf_id.leaf_opaque_key('t') ~ '^[0-9a-f]{64}$' AS still;
SELECT leaf_tag_create('t');
-- A key that is imported makes the same ids.
SELECT leaf_id.leaf_opaque_create('copy', max_value => 1000000, key => upper(leaf_id.leaf_opaque_key('t')));
SELECT leaf_id.leaf_opaque_key('copy') = leaf_id.leaf_opaque_key('t') AS key,
    bool_and(leaf_id.leaf_opaque_encode('copy', n) = leaf_id.leaf_opaque_encode('t', n)) AS ids FROM generate_series(1, 100) n;
SELECT leaf_id.leaf_opaque_create('fixed', key => repeat('0123456789abcdef', 4));
SELECT leaf_opaque_next('fixed') FROM generate_series(1, 3);

-- A key is no other name's.
SELECT change, r.*
FROM (VALUES ('t', 'u'), ('plain', 'copy')) c (tag, change),
     refusal(format('UPDATE leaf_id.leaf_alloc SET biz_tag = %L WHERE biz_tag = %L', change, tag)) r;
SELECT leaf_tag_drop('copy');
SELECT sqlstate, message FROM refusal($$UPDATE leaf_id.leaf_alloc SET biz_tag = 'copy' WHERE biz_tag = 'plain'$$);

-- What looks at columns leaves it alone.
CREATE TABLE t (id bigint PRIMARY KEY DEFAULT leaf_opaque_next('t'));
INSERT INTO t SELECT FROM generate_series(1, 50);
CREATE TABLE wrong (id bigint DEFAULT leaf_segment_next('t'));
CREATE TABLE lost (id bigint DEFAULT leaf_segment_next('copy'));
CREATE TABLE lost_key (id bigint DEFAULT leaf_opaque_next('keyless'));
CREATE TABLE serial (id bigserial PRIMARY KEY);
SELECT max_id AS before FROM leaf_id.leaf_alloc WHERE biz_tag = 't' \gset
SELECT relation, action, detail FROM leaf_sync('t') ORDER BY relation::text;
SELECT relation, action, detail FROM leaf_check('t') ORDER BY relation::text;
SELECT relation, action FROM leaf_sync() WHERE tag = 't' ORDER BY relation::text;
SELECT relation, action, detail FROM leaf_sync() WHERE tag = 'copy';
-- Neither the tag nor its key is there: no tag of plain ids is made for it.
SELECT relation, action, detail FROM leaf_sync() WHERE tag = 'keyless';
SELECT leaf_sync('keyless');
SELECT max_id = :before AS unchanged FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
SELECT call, r.*
FROM (VALUES ('leaf_adopt(''serial'', ''id'', ''t'')'), ('leaf_adopt(''serial'', ''id'', ''copy'')'), ('leaf_release(''t'', ''id'')')) c (call), refusal('SELECT ' || call) r \gx
DROP TABLE t, wrong, lost, lost_key, serial;

-- A tag that is gone, and its key is not.
SELECT leaf_id.leaf_opaque_create('gone');
SELECT leaf_tag_drop('gone');
SELECT * FROM refusal($$SELECT leaf_opaque_next('gone')$$) \gx
SELECT leaf_tag_drop('gone', forget => true);

-- No role reads a key, or learns the id of a number, without the right.
CREATE ROLE leaf_id_manager;
CREATE ROLE leaf_id_keeper IN ROLE leaf_id_manager;
CREATE ROLE leaf_id_member;
CREATE ROLE leaf_id_app;
CREATE ROLE leaf_id_monitor IN ROLE pg_monitor;
SELECT leaf_tag_grant('t', 'public');
GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO leaf_id_manager;
GRANT EXECUTE ON FUNCTION leaf_id.leaf_opaque_create TO leaf_id_keeper;
GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim TO leaf_id_member;
GRANT EXECUTE ON FUNCTION leaf_id.leaf_opaque_encode, leaf_id.leaf_opaque_decode TO leaf_id_app;
CREATE VIEW ways AS
SELECT current_user AS role, way, sqlstate
FROM (VALUES (1, 'SELECT * FROM leaf_id.leaf_opaque_key'),
             (2, 'SELECT leaf_id.leaf_opaque_key(''t'')'),
             (3, 'INSERT INTO leaf_id.leaf_opaque_key VALUES (''t'', 1000000, sha256(''x''))'),
             (4, 'UPDATE leaf_id.leaf_opaque_key SET last = 2000000'),
             (5, 'DELETE FROM leaf_id.leaf_opaque_key'),
             (6, 'SELECT leaf_id_internal.leaf_make_key(''squat'', 1000000, '''')'),
             (7, 'SELECT leaf_id.leaf_opaque_encode(''t'', 1)'),
             (8, 'SELECT leaf_id.leaf_opaque_decode(''t'', 1)'),
             (9, 'SELECT leaf_tag_reset(''t'', 5)'),
             (10, 'WITH gone AS (DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = ''t'' RETURNING *)
                  INSERT INTO leaf_id.leaf_alloc SELECT * FROM gone'),
             (11, 'INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES (''copy'', 5)'),
             (12, 'UPDATE leaf_id.leaf_alloc SET server = ''elsewhere'' WHERE biz_tag = ''t'''),
             (13, 'SELECT leaf_id.leaf_opaque_create(''new'')'),
             (14, 'UPDATE leaf_id.leaf_alloc SET max_id = max_id + 1 WHERE biz_tag = ''t'''),
             (15, 'SELECT leaf_opaque_next(''t'')')) w (n, way), refusal(way)
ORDER BY n;
GRANT SELECT ON ways TO PUBLIC;
CREATE EXTENSION dblink;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER dblink_fdw;
ALTER SERVER elsewhere OWNER TO leaf_id_manager;
SET ROLE leaf_id_manager;
TABLE ways;
COPY leaf_id.leaf_opaque_key TO STDOUT;
SELECT * FROM refusal($$SELECT leaf_tag_reset('t', 5)$$) \gx
SET ROLE leaf_id_member;
TABLE ways;
SET ROLE leaf_id_monitor;
TABLE ways;
SET ROLE leaf_id_app;
TABLE ways;
-- Who may make keys creates and drops, and does not see one.
SET ROLE leaf_id_keeper;
BEGIN;
TABLE ways;
ROLLBACK;
SELECT leaf_id.leaf_opaque_create('own');
SELECT sqlstate, hint FROM refusal($$SELECT leaf_tag_reset('own', 100)$$);
SELECT sqlstate FROM refusal($$SELECT leaf_tag_drop('own'), leaf_tag_create('own')$$);
-- A reset tells what the encoder does, so that right is asked for; and gives no id before it is committed.
RESET ROLE;
GRANT EXECUTE ON FUNCTION leaf_id.leaf_opaque_encode TO leaf_id_keeper;
SET ROLE leaf_id_keeper;
BEGIN;
SELECT leaf_tag_reset('own', 7);
SAVEPOINT s;
SELECT leaf_opaque_next('own');
ROLLBACK TO s;
SELECT leaf_opaque_next('own');
ROLLBACK;
SELECT leaf_tag_reset('own', 100);
SELECT leaf_tag_drop('own'), leaf_tag_create('own');
SELECT leaf_tag_drop('own');
RESET ROLE;
-- A role that may not issue the ids cannot decode them either.
SELECT leaf_tag_revoke('t', 'public');
SET ROLE leaf_id_app;
SELECT way, sqlstate FROM ways WHERE way ~ 'encode|decode|_next';
RESET ROLE;
SELECT leaf_tag_grant('t', 'leaf_id_app');
SET ROLE leaf_id_app;
SELECT way, sqlstate FROM ways WHERE way ~ 'encode|decode|_next';
RESET ROLE;
DROP VIEW ways;
DROP SERVER elsewhere;
DROP EXTENSION dblink;
SELECT leaf_tag_drop('t'), leaf_tag_drop('fixed'), leaf_tag_drop('plain');
DELETE FROM leaf_id.leaf_opaque_key;
DELETE FROM leaf_id.leaf_high_mark;
DROP OWNED BY leaf_id_manager, leaf_id_keeper, leaf_id_member, leaf_id_app, leaf_id_monitor;
DROP ROLE leaf_id_manager, leaf_id_keeper, leaf_id_member, leaf_id_app, leaf_id_monitor;
