-- Would catch: batches that lose or repeat ids where one segment ends and the next begins, ranges
-- with a hole, and losses that no view shows.
\pset format unaligned

-- A batch crosses segments.
SELECT leaf_tag_create('batches', step => 10, max_step => 10);
SELECT array_agg(id) FROM leaf_segment_next_batch('batches', 25) id;
SELECT leaf_segment_next('batches');
SELECT count(DISTINCT id), min(id), max(id), bool_and(increases)
FROM (SELECT id, id > lag(id, 1, 26) OVER () AS increases FROM leaf_segment_next_batch('batches', 20000) id) batch;
-- Who stops in the middle leaves the rest to others.
SELECT count(*), min(id) > 20026 AS above, max(id) AS last FROM (SELECT leaf_segment_next_batch('batches', 1000) AS id LIMIT 5) few \gset
SELECT :count AS count, :'above' AS above, leaf_segment_next('batches') > :last AS goes_on;

-- A range is contiguous, and above what came before, whatever is cached.
SELECT leaf_tag_create('ranges', step => 10, max_step => 1000);
DO $$
DECLARE
    n int;
    range record;
    last bigint := 0;
BEGIN
    FOREACH n IN ARRAY ARRAY[1, 3, 10, 7, 25, 1, 999, 1000, 2, 500, 501] LOOP
        SELECT * INTO range FROM leaf_segment_next_range('ranges', n);
        ASSERT range.first_id > last AND range.last_id - range.first_id + 1 = n, range;
        last := leaf_segment_next('ranges');
        ASSERT last > range.last_id, last;
    END LOOP;
END $$;
SELECT r.* FROM unnest(ARRAY[1001, 2147483647]) n, refusal(format($$SELECT leaf_segment_next_range('ranges', %s)$$, n)) r;

-- What a range loses is counted: the rest of the segment in use does not hold it.
SELECT leaf_tag_create('lost', step => 10, max_step => 10);
SELECT take('lost', 5);
SELECT first_id > 5 AS above, last_id - first_id + 1 AS length FROM leaf_segment_next_range('lost', 10);
SELECT ids_lost >= 5 AS counted FROM leaf_id.tags_detail WHERE tag = 'lost';

-- A range that does not fit is not the end of the tag, whose ids can still be taken.
SELECT leaf_tag_create('short', max_value => 100);
SELECT take('short', 95);
SELECT r.* FROM refusal($$SELECT leaf_segment_next_range('short', 10)$$) r;
SELECT take('short', 5);
SELECT r.* FROM refusal($$SELECT leaf_segment_next_range('short', 10)$$) r;
BEGIN;
SELECT leaf_tag_create('short_here', max_value => 5);
SELECT r.* FROM refusal($$SELECT leaf_segment_next_range('short_here', 10)$$) r;
SELECT take('short_here', 5);
COMMIT;
-- At the end of a column's type.
SELECT leaf_tag_create('narrow', start => 2147483647, max_value => 2147483647);
SELECT leaf_segment_next('narrow');
SELECT r.* FROM refusal($$SELECT leaf_segment_next('narrow')$$) r;

-- A claim is never much longer than the ones before it: a long range takes several, and no more.
SELECT leaf_tag_create('long_1', step => 1), leaf_tag_create('long_1000', step => 1000), leaf_tag_create('longest', step => 200000000, max_step => 2147483647);
SELECT range.* FROM (VALUES ('long_1', 1000000), ('long_1000', 1000000), ('longest', 2147483647)) tags (tag, n), leaf_segment_next_range(tag, n) range;
SELECT tag, current_last - current_first + 1 AS held FROM leaf_id.tags_detail WHERE tag LIKE 'long%' ORDER BY tag;

-- It is no longer than a segment may be now, whatever that was when the last one came, and is not put
-- together of thousands of claims.
SELECT leaf_tag_create('lowered', step => 1);
SELECT leaf_segment_next('lowered'), wait_for_spare('lowered');
UPDATE leaf_id.leaf_alloc SET max_step = 1 WHERE biz_tag = 'lowered';
SELECT max_id AS before FROM leaf_id.leaf_alloc WHERE biz_tag = 'lowered' \gset
SELECT * FROM refusal($$SELECT leaf_segment_next_range('lowered', 1000000)$$);
SELECT max_id - :before < 10 AS few FROM leaf_id.leaf_alloc WHERE biz_tag = 'lowered';

-- A function of a later version, before the restart: the library knows two columns.
CREATE FUNCTION later(text, integer, OUT a bigint, OUT b bigint, OUT c bigint)
    LANGUAGE c STRICT AS '$libdir/leaf_id', 'leaf_segment_next_range_wrapper';
SELECT r.sqlstate, r.message FROM refusal($$SELECT later('long_1000', 1)$$) r;
DROP FUNCTION later;

SELECT count(leaf_tag_drop(biz_tag, forget => true)::text) FROM leaf_id.leaf_alloc
WHERE biz_tag IN ('batches', 'ranges', 'lost', 'lowered', 'short', 'short_here', 'narrow') OR biz_tag LIKE 'long%';
