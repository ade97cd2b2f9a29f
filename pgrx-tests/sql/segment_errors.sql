-- Would catch: an error without its SQLSTATE, fact or way out, a limit that is checked in only
-- one of the places where it can be broken, and ids beyond the end of a tag or of bigint (I8).
\pset format unaligned
SELECT leaf_tag_create('t', step => 10, max_step => 2000);
SELECT leaf_segment_next('t');
SELECT wait_for_spare('t');

-- Refused by leaf_id.
SELECT statement, r.* FROM unnest(ARRAY[
    $$SELECT leaf_segment_next('nope')$$,
    $$SELECT leaf_segment_next('it''s')$$,
    $$SELECT leaf_segment_next_batch('nope', 3)$$,
    $$SELECT leaf_segment_next_range('nope', 3)$$,
    $$SELECT leaf_segment_next('')$$,
    $$SELECT leaf_segment_next(repeat('x', 129))$$,
    $$SELECT leaf_segment_next(repeat(U&'\00E4', 65))$$,
    $$SELECT leaf_segment_next_batch('t', -1)$$,
    $$SELECT leaf_segment_next_batch('t', -2147483648)$$,
    $$SELECT leaf_segment_next_range('t', -1)$$,
    $$SELECT leaf_segment_next_range('t', -2147483648)$$,
    $$SELECT leaf_segment_next_range('t', 2001)$$,
    $$SELECT leaf_segment_next_range('t', 2147483647)$$,
    $$SELECT leaf_tag_create(NULL)$$,
    $$SELECT leaf_tag_create('u', step => NULL)$$,
    $$SELECT leaf_tag_create('u', start => NULL)$$,
    $$SELECT leaf_tag_drop('nope', forget => true)$$,
    $$SELECT leaf_tag_drop(NULL)$$,
    $$SELECT leaf_tag_reset('nope', 1)$$,
    $$SELECT leaf_tag_reset(NULL, 1)$$,
    $$SELECT leaf_tag_reset('t', NULL)$$,
    $$UPDATE leaf_id.leaf_alloc SET max_id = 1 WHERE biz_tag = 't'$$,
    $$UPDATE leaf_id.leaf_alloc SET max_id = 0 WHERE biz_tag = 't'$$,
    $$UPDATE leaf_id.leaf_alloc SET max_id = -9223372036854775808 WHERE biz_tag = 't'$$,
    $$SELECT leaf_id_internal.leaf_alloc_stamp()$$,
    $$SELECT leaf_id_internal.leaf_alloc_edit()$$
]) statement, refusal(statement) r;

-- Refused by the constraints of leaf_alloc. (Without DETAIL: it has the time in it.)
SELECT statement, r.sqlstate, r.message FROM unnest(ARRAY[
    $$SELECT leaf_tag_create('')$$,
    $$SELECT leaf_tag_create(repeat('x', 129))$$,
    $$SELECT leaf_tag_create('t')$$,
    $$SELECT leaf_tag_create('u', step => 0)$$,
    $$SELECT leaf_tag_create('u', step => -1)$$,
    $$SELECT leaf_tag_create('u', step => 10, max_step => 9)$$,
    $$SELECT leaf_tag_create('u', step => 2147483647, max_step => 2147483646)$$,
    $$SELECT leaf_tag_create('u', max_step => 0)$$,
    $$SELECT leaf_tag_create('u', max_step => 999)$$,
    $$SELECT leaf_tag_create('u', start => 0)$$,
    $$SELECT leaf_tag_create('u', start => -1)$$,
    $$SELECT leaf_tag_create('u', max_value => 0)$$,
    $$SELECT leaf_tag_create('u', max_value => 9223372036854775807)$$,
    $$SELECT leaf_tag_reset('t', 0)$$,
    $$SELECT leaf_tag_reset('t', -9223372036854775808)$$,
    $$INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('')$$,
    $$INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES (NULL)$$,
    $$INSERT INTO leaf_id.leaf_alloc (max_id) VALUES (5)$$,
    $$INSERT INTO leaf_id.leaf_alloc (biz_tag, step) VALUES ('u', 0)$$,
    $$INSERT INTO leaf_id.leaf_alloc (biz_tag, step, max_step) VALUES ('u', 2, 1)$$,
    $$INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('u', 0)$$,
    $$INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('u', NULL)$$
]) statement, refusal(statement) r;
SELECT assignment, r.sqlstate, r.message FROM unnest(ARRAY[
    'biz_tag = NULL', 'max_id = NULL', 'update_time = NULL, max_id = NULL',
    'step = 0', 'step = -1', 'step = -2147483648', 'step = NULL',
    'max_step = 9', 'max_step = -2147483648', 'max_step = NULL',
    'max_value = 0', 'max_value = -1', 'max_value = 9223372036854775807', 'max_value = NULL'
]) assignment, refusal(format('UPDATE leaf_id.leaf_alloc SET %s WHERE biz_tag = ''t''', assignment)) r;

-- Refused by PostgreSQL, in its own words.
SELECT statement, r.sqlstate FROM unnest(ARRAY[
    $$SELECT leaf_tag_create('u', step => 2147483648)$$,
    $$UPDATE leaf_id.leaf_alloc SET step = 2147483648$$,
    $$UPDATE leaf_id.leaf_alloc SET max_step = 2147483648$$,
    $$UPDATE leaf_id.leaf_alloc SET max_id = 9223372036854775808$$
]) statement, refusal(statement) r;

-- None of that has touched the tag.
SELECT leaf_segment_next('t');

-- NULL and zero are no mistakes, and nothing is issued.
SELECT leaf_segment_next(NULL) IS NULL AS single, leaf_segment_next_range(NULL, 3) IS NULL AS no_tag,
    leaf_segment_next_range('t', NULL) IS NULL AS no_number;
SELECT leaf_segment_next_batch('t', 0);
SELECT leaf_segment_next_batch('t', NULL);
SELECT leaf_segment_next_batch(NULL, 3);
SELECT leaf_segment_next('t');

-- A tag that the transaction has changed.
BEGIN;
UPDATE leaf_id.leaf_alloc SET max_id = 5000 WHERE biz_tag = 't';
SELECT * FROM refusal($$SELECT leaf_segment_next('t')$$);
ROLLBACK;

-- The last id of a tag is its max_value, however it was claimed. Another session gets the same error,
-- and no session waits for it.
SELECT leaf_tag_create('end' || step, step => step, max_value => 5) FROM unnest(ARRAY[1, 2, 5, 1000]) step;
SET leaf_id.refill_timeout = '1min';
SET statement_timeout = '30s';
SELECT take('end' || step, 5) FROM unnest(ARRAY[1, 2, 5, 1000]) step;
SELECT r.* FROM unnest(ARRAY[1, 2, 5, 1000]) step, refusal(format('SELECT leaf_segment_next(%L)', 'end' || step)) r;
\c
SET leaf_id.refill_timeout = '1min';
SET statement_timeout = '30s';
SELECT r.sqlstate FROM unnest(ARRAY[1, 2, 5, 1000]) step, refusal(format('SELECT leaf_segment_next(%L)', 'end' || step)) r;
UPDATE leaf_id.leaf_alloc SET max_value = 7 WHERE biz_tag LIKE 'end%';
SELECT take('end' || step, 2) FROM unnest(ARRAY[1, 2, 5, 1000]) step;
SELECT r.sqlstate FROM unnest(ARRAY[1, 2, 5, 1000]) step, refusal(format('SELECT leaf_segment_next(%L)', 'end' || step)) r;
RESET leaf_id.refill_timeout;
RESET statement_timeout;
SELECT leaf_tag_create('batch', step => 4, max_value => 6), leaf_tag_create('range', step => 4, max_value => 6);
SELECT * FROM refusal($$SELECT leaf_segment_next_batch('batch', 10)$$);
SELECT * FROM refusal($$SELECT leaf_segment_next_range('range', 10)$$);

-- The last id of all is below the end of bigint.
SELECT leaf_tag_create('last' || step, 9223372036854775803, step) FROM unnest(ARRAY[1, 3, 1000, 2147483647]) step;
SELECT take('last' || step, 4) FROM unnest(ARRAY[1, 3, 1000, 2147483647]) step;
SELECT r.* FROM unnest(ARRAY[1, 3, 1000, 2147483647]) step, refusal(format('SELECT leaf_segment_next(%L)', 'last' || step)) r;
\c
SELECT r.sqlstate FROM unnest(ARRAY[1, 3, 1000, 2147483647]) step, refusal(format('SELECT leaf_segment_next(%L)', 'last' || step)) r;

-- The longest range there is, twice until the end.
SELECT wait_for_spare('t');
BEGIN;
UPDATE leaf_id.leaf_alloc SET step = 2147483647, max_step = 2147483647 WHERE biz_tag = 't';
SELECT leaf_tag_reset('t', 9223372036854775806 - 2 * 2147483647::bigint);
COMMIT;
SELECT * FROM leaf_segment_next_range('t', 2147483647);
SELECT * FROM leaf_segment_next_range('t', 2147483647);
SELECT * FROM refusal($$SELECT leaf_segment_next_range('t', 2147483647)$$);
SELECT leaf_segment_next('t');
SELECT * FROM refusal($$SELECT leaf_segment_next('t')$$);
SELECT leaf_tag_reset('t', 9223372036854775807);
SELECT * FROM refusal($$SELECT leaf_segment_next('t')$$);

-- Settings that a session cannot change. (The words of the last differ between versions.)
SELECT statement, r.* FROM unnest(ARRAY['SET leaf_id.max_tags = 5', 'SET leaf_id.misspelt = 1']) statement, refusal(statement) r;
SELECT sqlstate FROM refusal('SET leaf_id.refill_timeout = 0');

-- What has no end has NULL in the views, and no infinity: drivers cannot read one, nor years above 9999.
SELECT leaf_tag_create('idle'), leaf_tag_create('slow'), leaf_tag_create('ends', max_value => 1000000);
SELECT take('slow', 3), take('ends', 3000);
-- Within a second there is no rate.
SELECT wait_for_rate('slow'), wait_for_rate('ends') \g /dev/null
SELECT tag, exhausted_at IS NULL AS endless,
       coalesce(isfinite(exhausted_at) AND exhausted_at < '9999-01-01', true) AND coalesce(cached_for < '1000 years', true) AS readable
FROM leaf_id.tags_detail WHERE tag IN ('idle', 'slow', 'ends') ORDER BY tag;

SELECT count(leaf_tag_drop(biz_tag, forget => true)::text) FROM leaf_id.leaf_alloc
WHERE biz_tag IN ('t', 'batch', 'range', 'idle', 'slow', 'ends') OR biz_tag ~ '^(end|last)\d';
