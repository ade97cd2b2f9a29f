-- What an ordinary role may do.
CREATE ROLE leaf_id_visitor;
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
SELECT count(*) FROM leaf_segment_status;
SELECT count(*) FROM leaf_slot_status;
SELECT count(*) FROM leaf_central_status;
SELECT count(*) FROM leaf_snowflake_status;
RESET ROLE;

GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO leaf_id_visitor;
SET ROLE leaf_id_visitor;
SELECT leaf_tag_create('mine');
SELECT leaf_segment_next('mine');
SELECT leaf_tag_reset('mine', 100);
SELECT leaf_segment_next('mine');
SELECT leaf_tag_drop('mine', forget => true);
RESET ROLE;
REVOKE ALL ON leaf_id.leaf_alloc FROM leaf_id_visitor;

GRANT pg_monitor TO leaf_id_visitor;
SET ROLE leaf_id_visitor;
SELECT count(*) > 0 AS visible FROM leaf_segment_status;
SELECT count(*) FROM leaf_slot_status;
SELECT count(*) FROM leaf_central_status;
SELECT count(*) FROM leaf_snowflake_status;
RESET ROLE;

DROP TABLE orders;
REVOKE EXECUTE ON FUNCTION leaf_tag_create, leaf_tag_drop, leaf_tag_reset FROM leaf_id_visitor;
DROP ROLE leaf_id_visitor;
SELECT leaf_tag_drop('orders', forget => true);
