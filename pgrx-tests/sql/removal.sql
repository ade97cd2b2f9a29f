-- Nothing stays behind.
DROP TABLE orders;
REVOKE EXECUTE ON FUNCTION leaf_tag_create, leaf_tag_drop, leaf_tag_reset FROM leaf_id_visitor;
DROP ROLE leaf_id_visitor;
DROP EXTENSION leaf_id;
SELECT oid::regclass FROM pg_class WHERE relname LIKE 'leaf\_%';
SELECT oid::regprocedure FROM pg_proc WHERE proname LIKE 'leaf\_%';
CREATE EXTENSION leaf_id;
SELECT leaf_segment_next('orders');
SELECT leaf_tag_create('orders');
SELECT leaf_segment_next('orders');
DROP EXTENSION leaf_id;
