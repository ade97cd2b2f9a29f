-- The first page of the README.
SELECT leaf_tag_create('orders', description => 'numbers of orders');
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'), item text);
INSERT INTO orders (item) VALUES ('tea'), ('coffee') RETURNING *;
INSERT INTO orders (item) VALUES ('milk') RETURNING *;
SELECT leaf_segment_next('orders');
SELECT * FROM leaf_segment_next_batch('orders', 3);
SELECT * FROM leaf_segment_next_range('orders', 10);
SELECT leaf_segment_next('orders');

-- Managed by SQL.
INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id, step) VALUES ('invoices', 500, 10);
SELECT leaf_segment_next('invoices') FROM generate_series(1, 3);
UPDATE leaf_id.leaf_alloc SET max_id = 700 WHERE biz_tag = 'invoices';
-- 700, unless a segment was being claimed just then: that one is a gap.
SELECT leaf_segment_next('invoices') >= 700 AS at_once;
UPDATE leaf_id.leaf_alloc SET biz_tag = 'bills' WHERE biz_tag = 'invoices';
SELECT leaf_segment_next('bills') > 700 AS goes_on;
SELECT leaf_tag_reset('bills', 42);
-- As above: 42, or a gap.
SELECT leaf_segment_next('bills') BETWEEN 42 AND 699 AS again;
SELECT leaf_tag_drop('bills');

-- Without use, no end is in sight.
SELECT leaf_tag_create('idle');
SELECT tag, exhausted_at, cached_for FROM leaf_id.tags_detail WHERE tag = 'idle';
SELECT leaf_tag_drop('idle');

-- Nothing in, nothing out.
SELECT leaf_segment_next(NULL), leaf_segment_next_range('orders', NULL);
SELECT * FROM leaf_segment_next_batch('orders', 0);

-- Snowflake: the id of this server's worker 5 at some time, and back.
SELECT id > 0 AS positive, decoded.worker_id, decoded.sequence BETWEEN 0 AND 4095 AS sequence,
       decoded.ts BETWEEN now() - interval '1 min' AND now() + interval '1 min' AS time
FROM leaf_snowflake_next() id, leaf_snowflake_decode(id) decoded;
SELECT count(*), count(DISTINCT id) FROM leaf_snowflake_next_batch(100) id;

-- What the views know of it.
SELECT tag, current_first, current_last, current_next, current_remaining, max_id, step,
       ids_issued, refills > 0 AS refilled, waits, ids_lost, last_error
FROM leaf_id.tags_detail ORDER BY tag;
SELECT worker_id FROM leaf_id.server;
