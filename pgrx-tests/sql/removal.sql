-- Nothing stays behind.
DROP EXTENSION leaf_id;
SELECT oid::regclass FROM pg_class WHERE relname LIKE 'leaf\_%';
SELECT oid::regprocedure FROM pg_proc WHERE proname LIKE 'leaf\_%';
CREATE EXTENSION leaf_id;
SELECT leaf_segment_next('orders');
SELECT leaf_tag_create('orders');
SELECT leaf_segment_next('orders');
DROP EXTENSION leaf_id;
