-- What psql shows people: the functions that they call, the views, the tags at a glance. Would catch: a function
-- for operators or for leaf_id itself among them, a view in public, tags that do not fit 100 columns, and a
-- problem that is not shown, or shown without the statement that helps.
\df leaf_*
\dvm leaf_*
\dvm leaf_id.*
\d leaf_id.tags
-- What is called elsewhere, and by whom it may be called, is in "extension".
SELECT count(*) AS public FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass
WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leaf_id')
    AND p.pronamespace <> 'leaf_id'::regnamespace;

-- All is well.
SELECT * FROM leaf_id.problems;

-- How fast ids are used, how long the cached ones last, and who had to wait differ from run to run.
SET intervalstyle = 'postgres';
SELECT leaf_tag_create('idle'), leaf_tag_create('invoices', start => 123019), leaf_tag_create('orders') \g /dev/null
SELECT count(leaf_segment_next('invoices')) FROM generate_series(1, 3) \g /dev/null
SELECT count(leaf_segment_next('orders')) FROM generate_series(1, 150) \g /dev/null
SELECT wait_for_spare('orders'), wait_for_rate('orders', 200), wait_for_rate('invoices') \g /dev/null
SELECT * FROM leaf_id.tags ORDER BY tag \g | sed -E 's/\| *[0-9.]+ \| [0-9]{2}:[0-9]{2}:[0-9]{2} \|/|  1204 | 00:00:02 |/; s/[0-9] \| +\| ok/6 |     | ok/'
SELECT * FROM leaf_id.tags \g | awk 'length > 100'

-- The end of a tag is that of its narrowest column, in the views and for leaf_check.
CREATE TABLE small (id integer DEFAULT leaf_segment_next('orders'));
CREATE TABLE smaller (id smallint DEFAULT leaf_segment_next('orders'), "Id" integer DEFAULT leaf_segment_next('idle'));
SELECT tag, max_value, last_id, narrow_relation, narrow_column FROM leaf_id.tags_detail ORDER BY tag;
UPDATE leaf_id.leaf_alloc SET max_id = 30000 WHERE biz_tag = 'orders';
UPDATE leaf_id.leaf_alloc SET max_id = 2147483640 WHERE biz_tag = 'idle';
SELECT tag, next_id, used_percent, health FROM leaf_id.tags ORDER BY tag;
SELECT tag, relation, column_name, action, detail FROM leaf_check();
SELECT severity, regexp_replace(what, '[0-9]{4}-[0-9]{2}-[0-9]{2}', '...') AS what, since, remedy FROM leaf_id.problems \gx
SELECT remedy FROM leaf_id.problems \gexec
SELECT * FROM leaf_id.problems;
SELECT tag, last_id, narrow_column, health FROM leaf_id.tags_detail JOIN leaf_id.tags USING (tag) ORDER BY tag;
DROP TABLE small, smaller;
-- Not that of a stranger's column, who may not issue the tag; and if so, its owner changes it.
CREATE ROLE leaf_id_stranger;
CREATE SCHEMA theirs AUTHORIZATION leaf_id_stranger;
SET ROLE leaf_id_stranger;
CREATE TEMP TABLE small (id smallint DEFAULT leaf_segment_next('orders'));
CREATE TABLE theirs.small (id smallint DEFAULT leaf_segment_next('orders'));
RESET ROLE;
SELECT tag, last_id, narrow_relation FROM leaf_id.tags_detail WHERE tag = 'orders';
SELECT * FROM leaf_id.problems;
SELECT leaf_tag_grant('orders', 'leaf_id_stranger');
SELECT tag, last_id, narrow_relation FROM leaf_id.tags_detail WHERE tag = 'orders';
SELECT severity, regexp_replace(what, ', at this rate on [0-9-]{10}', '') AS what, remedy FROM leaf_id.problems;
-- Nor where one of the partitions is a stranger's.
DROP TABLE theirs.small;
CREATE TABLE parts (id integer DEFAULT leaf_segment_next('orders'), k int) PARTITION BY LIST (k);
CREATE TABLE part PARTITION OF parts FOR VALUES IN (1);
UPDATE leaf_id.leaf_alloc SET max_id = 2147483640 WHERE biz_tag = 'orders';
SELECT remedy IS NOT NULL AS has_remedy FROM leaf_id.problems;
ALTER TABLE part OWNER TO leaf_id_stranger;
SELECT remedy IS NOT NULL AS has_remedy FROM leaf_id.problems;
DROP TABLE parts;
SELECT leaf_tag_revoke('orders', 'leaf_id_stranger');
DROP OWNED BY leaf_id_stranger;
DROP ROLE leaf_id_stranger;

-- A tag with an end of its own: at 80, 90 and 95 %, and when it is reached; and what has no remedy.
SELECT leaf_tag_create('at ' || percent, start => 1000 * percent + 1, max_value => 100000)
FROM unnest(ARRAY[79, 80, 90, 95]) percent \g /dev/null
SELECT leaf_tag_create('ended', max_value => 10), leaf_tag_create('the end', start => 9223372036854775800),
    leaf_id.leaf_opaque_create('opaque', max_value => 1000000) \g /dev/null
SELECT * FROM leaf_segment_next_range('ended', 10);
UPDATE leaf_id.leaf_alloc SET max_id = 990001 WHERE biz_tag = 'opaque';
SELECT tag, next_id, used_percent, health FROM leaf_id.tags WHERE health <> 'ok' ORDER BY tag;
SELECT * FROM leaf_id.problems \gx
-- These ends were chosen, and a person has to say whether they may go.
UPDATE leaf_id.leaf_alloc SET max_value = 9223372036854775806 WHERE biz_tag LIKE 'at %' OR biz_tag = 'ended';
SELECT leaf_tag_drop('the end', forget => true), leaf_tag_drop('opaque', forget => true) \g /dev/null
DELETE FROM leaf_id.leaf_opaque_key WHERE tag = 'opaque';
SELECT * FROM leaf_id.problems;

-- It is used so fast that it ends within a month.
SELECT leaf_tag_create('soon', max_value => 1000000) \g /dev/null
SELECT count(leaf_segment_next('soon')) FROM generate_series(1, 500) \g /dev/null
-- Two ids in a millisecond are no rate.
SELECT ids_per_s FROM leaf_id.tags WHERE tag = 'soon';
SELECT wait_for_rate('soon') \g /dev/null
SELECT severity, regexp_replace(what, '[0-9]{4}-[0-9]{2}-[0-9]{2}', '...') AS what, remedy FROM leaf_id.problems \gx
SELECT leaf_tag_drop('soon', forget => true) \g /dev/null

SELECT count(leaf_tag_drop(tag, forget => true)) FROM leaf_id.tags;
