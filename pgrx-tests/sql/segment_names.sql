-- Would catch: a tag that is cut in the middle of a letter, another tag's ids, and a message or
-- a hint that a name breaks.
\pset format unaligned

-- Letters of one to four bytes in UTF-8.
CREATE TABLE letters AS SELECT unnest(ARRAY['x', U&'\00E4', U&'\20AC', U&'\+01F343']) AS letter;
CREATE TABLE names AS SELECT unnest(ARRAY[
    ' ', '  two spaces  ', 'it''s', '''''', '"quoted"', 'back\slash', '\', '\''', 'E''\\x41''', E'new\nline',
    E'\r\n\t', E'\x01\x7f', '$$', '$1', '%s %d %n %%', '{} {0}', '''; DROP TABLE leaf_id.leaf_alloc; --', 'NULL',
    'a/../b', U&'\202E\FEFF']) AS name;

-- Creates each tag of a query, uses it across segments, finds it in the view and drops it.
CREATE PROCEDURE use_tags(query text) LANGUAGE plpgsql AS $$
DECLARE
    each text;
    ids bigint[];
BEGIN
    FOR each IN EXECUTE query LOOP
        PERFORM leaf_tag_create(each, step => 2);
        COMMIT;
        ids := '{}';
        FOR i IN 1..4 LOOP
            ids := ids || leaf_segment_next(each) || ARRAY(SELECT leaf_segment_next_batch(each, 2))
                || (leaf_segment_next_range(each, 2)).first_id;
        END LOOP;
        ASSERT ids[1] = 1 AND cardinality(ids) = 16, ids;
        ASSERT ids = ARRAY(SELECT DISTINCT id FROM unnest(ids) id ORDER BY id), ids;
        ASSERT (SELECT ids_issued > 16 FROM leaf_id.tags_detail s WHERE s.tag = each), each;
        PERFORM leaf_tag_drop(each, forget => true);
        COMMIT;
    END LOOP;
END $$;
-- That a tag is refused wherever it can be named.
CREATE FUNCTION refuse_tag(tag text) RETURNS TABLE (sqlstate text, message text, detail text) LANGUAGE sql AS $$
    SELECT DISTINCT r.sqlstate, r.message, CASE r.sqlstate WHEN '22023' THEN r.detail END
    FROM unnest(ARRAY[
        'SELECT leaf_segment_next(%L)', 'SELECT leaf_segment_next_batch(%L, 2)', 'SELECT leaf_segment_next_range(%L, 2)',
        'SELECT leaf_tag_create(%L)', 'INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES (%L)',
        'UPDATE leaf_id.leaf_alloc SET biz_tag = %L WHERE biz_tag = ''good''']) call, refusal(format(call, tag)) r
$$;

-- 1 to 128 bytes: just in, and with something that is cut by the limit.
SELECT leaf_tag_create('good');
CALL use_tags('SELECT letter FROM letters');
CALL use_tags($$
    SELECT start || repeat(letter, (128 - length(start)) / octet_length(letter))
    FROM letters, unnest(ARRAY['', 'a', 'ab', 'abc']) start$$);
SELECT octet_length(letter) AS width, length(start) AS start, r.*
FROM letters, unnest(ARRAY['', 'a', 'ab', 'abc']) start,
    refuse_tag(start || repeat(letter, (128 - length(start)) / octet_length(letter) + 1)) r
ORDER BY 1, 2, 3, 4;
SELECT * FROM refuse_tag('') ORDER BY 1, 2;
-- Much longer than anything that is copied, and stored out of line, compressed.
SELECT * FROM refuse_tag(repeat('x', 10000000)) ORDER BY 1, 2;
CREATE TABLE long_tag AS SELECT repeat('x', 10000000) AS tag;
SELECT r.* FROM refusal('SELECT leaf_segment_next(tag) FROM long_tag') r;
-- The first 128 bytes are another tag.
SELECT leaf_tag_create(repeat('y', 128)), leaf_tag_create(repeat(U&'\00E4', 64));
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next(repeat('y', 129))$$);
SELECT leaf_segment_next(repeat('y', 128)), leaf_segment_next(repeat(U&'\00E4', 64)), leaf_segment_next('good');
SELECT leaf_tag_drop(repeat('y', 128), forget => true), leaf_tag_drop(repeat(U&'\00E4', 64), forget => true), leaf_tag_drop('good', forget => true);

-- Names are taken as they are.
SELECT r.sqlstate, message = format('tag "%s" does not exist', name) AS says, count(*)
FROM names, refusal(format('SELECT leaf_segment_next(%L)', name)) r GROUP BY 1, 2;
SELECT count(*) FROM names, leaf_tag_create(name);
SELECT array_agg(leaf_segment_next(name)) FROM names;
-- What the allocator says, with this transaction in its way. (Of a few: it takes a moment.)
CREATE TABLE refused (sqlstate text, says boolean);
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT names.name FROM names WHERE names.name IN ('it''s', '%s %d %n %%', E'new\nline') LOOP
        PERFORM FROM leaf_id.leaf_alloc WHERE biz_tag = name FOR UPDATE;
        INSERT INTO refused
            SELECT r.sqlstate, message = format('tag "%s" is locked by this transaction', name)
            FROM refusal(format('SELECT leaf_segment_next_batch(%L, 5000)', name)) r;
        COMMIT;
    END LOOP;
END $$;
SELECT *, count(*) FROM refused GROUP BY 1, 2;
SELECT count(DISTINCT (name, id)) FROM names, leaf_segment_next_batch(name, 5000) id;
-- A refused edit.
SELECT count(wait_for_spare(name)::text) FROM names;
CREATE TABLE lowered AS
    SELECT name, r.* FROM names, refusal(format('UPDATE leaf_id.leaf_alloc SET max_id = 1 WHERE biz_tag = %L', name)) r;
SELECT sqlstate, starts_with(message, format('cannot lower "max_id" of tag "%s" from ', name)) AS says, count(*)
FROM lowered GROUP BY 1, 2;
-- The way out that a hint shows can be run.
DO $$
DECLARE
    hint text;
BEGIN
    FOR hint IN SELECT lowered.hint FROM lowered LOOP
        EXECUTE regexp_replace(hint, '^[^:]*: ', '');
    END LOOP;
END $$;
SELECT array_agg(leaf_segment_next(name)) FROM names;
SELECT count(leaf_tag_drop(name, forget => true)::text) FROM names;
CALL use_tags('SELECT name FROM names');
SELECT count(*) FROM leaf_id.leaf_alloc WHERE biz_tag IN (SELECT name FROM names);

DROP TABLE letters, names, long_tag, refused, lowered;
DROP PROCEDURE use_tags;
DROP FUNCTION refuse_tag;
