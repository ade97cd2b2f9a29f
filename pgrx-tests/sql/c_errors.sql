-- Every error that one session can cause, as a user reads it. (The SQLSTATEs are in
-- tests/behavior/segment/errors.rs.)
\set SHOW_CONTEXT never
SELECT leaf_segment_next('nope');
SELECT leaf_segment_next('it''s');
SELECT leaf_segment_next('');
SELECT leaf_segment_next(repeat('x', 129));
SELECT leaf_segment_next_batch('orders', -1);
SELECT leaf_segment_next_range('orders', -1);
SELECT leaf_segment_next_range('orders', 1000001);
SELECT leaf_snowflake_next_batch(-1);
SELECT leaf_snowflake_decode(-1);
SELECT leaf_snowflake_decode(1, 0, '41/10/13');
SELECT leaf_snowflake_compose(now(), 1024, 0);
SELECT leaf_snowflake_compose(now(), 900, 4096);
SELECT leaf_snowflake_compose('1970-01-01', 900, 0);
SELECT leaf_tag_create('orders');
-- (The DETAIL of these has the time in it.)
\set VERBOSITY terse
SELECT leaf_tag_create('x', step => 0);
SELECT leaf_tag_create('x', step => 10, max_step => 9);
SELECT leaf_tag_create(repeat('x', 129));
\set VERBOSITY default
SELECT leaf_tag_drop('nope');
SELECT leaf_tag_reset('nope', 1);
UPDATE leaf_id.leaf_alloc SET max_id = 1 WHERE biz_tag = 'orders';

-- A tag that the transaction has changed.
BEGIN;
UPDATE leaf_id.leaf_alloc SET max_id = 5000 WHERE biz_tag = 'orders';
SELECT leaf_segment_next('orders');
ROLLBACK;

-- The end.
SELECT leaf_tag_create('small', step => 2, max_value => 3);
SELECT leaf_segment_next('small') FROM generate_series(1, 3);
SELECT leaf_segment_next('small');
SELECT leaf_tag_create('large', start => 9223372036854775806);
SELECT leaf_segment_next('large');
SELECT leaf_segment_next('large');

-- Settings.
ALTER SYSTEM SET leaf_id.worker_id = '1024';
ALTER SYSTEM SET leaf_id.epoch = 'tomorrow';
ALTER SYSTEM SET leaf_id.snowflake_layout = '41/10/13';
SET leaf_id.max_tags = 5;
-- The words differ between versions.
\set VERBOSITY sqlstate
SET leaf_id.refill_timeout = 0;
\set VERBOSITY default
SET leaf_id.misspelt = 1;
