-- What an ordinary role may do.
CREATE ROLE leaf_id_visitor;
CREATE FUNCTION leak(text) RETURNS boolean COST 0.0000001 LANGUAGE plpgsql
    AS 'BEGIN RAISE NOTICE ''%'', $1; RETURN true; END';
SET ROLE leaf_id_visitor;
SELECT leaf_segment_next('orders') > 0 AS issued;
SELECT leaf_snowflake_next() > 0 AS issued;
TABLE leaf_id.leaf_alloc;
INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('mine');
UPDATE leaf_id.leaf_alloc SET step = 5;
DELETE FROM leaf_id.leaf_alloc;
SELECT leaf_tag_create('mine');
SELECT leaf_tag_drop('orders', forget => true);
SELECT leaf_tag_reset('orders', 1);
SELECT leaf_sync('orders');
SELECT leaf_check();
SELECT leaf_tag_grant('orders', 'public');
SELECT count(*) FROM leaf_id.tags;
SELECT count(*) FROM leaf_id.tags_detail;
SELECT count(*) FROM leaf_id.problems;
SELECT count(*) FROM leaf_id.fleet;
SELECT count(*) FROM leaf_id.fleet WHERE kind = 'member';
SELECT count(*) FROM leaf_id.server;
-- Her function sees nothing either.
SELECT count(*) FROM leaf_id.tags_detail WHERE leak(tag);
SELECT count(*) FROM leaf_id.tags WHERE leak(tag);
SELECT count(*) FROM leaf_id.fleet WHERE leak(name);
SELECT count(*) FROM leaf_id_internal.leaf_segment_slots();
SELECT count(*) FROM leaf_id_internal.leaf_central_connections();
SELECT count(*) FROM leaf_id_internal.leaf_server_problems();
RESET ROLE;

GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO leaf_id_visitor;
SET ROLE leaf_id_visitor;
SELECT leaf_tag_create('mine');
SELECT leaf_segment_next('mine');
SELECT leaf_tag_reset('mine', 100);
SELECT leaf_segment_next('mine');
SELECT leaf_tag_drop('mine', forget => true);
-- A manager of tags sees the tags of this database, and nothing of the server.
SELECT tag FROM leaf_id.tags;
SELECT count(*) FROM leaf_id.problems;
SELECT tag, action FROM leaf_check();
SELECT count(*) FROM leaf_id.fleet;
SELECT count(*) FROM leaf_id.server;
RESET ROLE;
REVOKE ALL ON leaf_id.leaf_alloc FROM leaf_id_visitor;

GRANT pg_monitor TO leaf_id_visitor;
SET ROLE leaf_id_visitor;
SELECT count(*) > 0 AS visible FROM leaf_id.tags_detail;
SELECT count(*) FROM leaf_id.fleet;
SELECT count(*) FROM leaf_id.server;
-- Who may read tags does not use them up.
SELECT leaf_id_internal.leaf_skip_ids('orders', 1000);
-- leaf_check needs no more, and says what it may not read.
SELECT tag, relation, action, detail FROM leaf_check();
RESET ROLE;

DROP TABLE orders;
REVOKE EXECUTE ON FUNCTION leaf_tag_create, leaf_tag_drop, leaf_tag_reset FROM leaf_id_visitor;
DROP ROLE leaf_id_visitor;
SELECT leaf_tag_drop('orders', forget => true);
DROP FUNCTION leak;
