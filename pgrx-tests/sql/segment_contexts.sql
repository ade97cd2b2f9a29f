-- Would catch: ids that repeat, stop or come from the wrong tag because of the place in SQL where the
-- function stands: its caches live in statements, sessions and plans.
\pset format unaligned
SELECT leaf_tag_create('odd', step => 10), leaf_tag_create('even', step => 10, start => 1000000);

-- After DISCARD ALL ids go on in order.
CREATE TABLE drawn (id bigint, place serial);
\set ECHO none
SELECT unnest(ARRAY[$$INSERT INTO drawn SELECT leaf_segment_next('odd')$$, 'DISCARD ALL']) FROM generate_series(1, 50) \gexec
\set ECHO all
SELECT array_agg(id ORDER BY place) = ARRAY(SELECT generate_series(1, 50)::bigint) AS in_order FROM drawn;

-- A tag that changes from row to row: by turns ids of odd and of even, which increase.
CREATE TABLE tags AS SELECT CASE i % 2 WHEN 1 THEN 'odd' ELSE 'even' END AS tag FROM generate_series(1, 100) i;
CREATE FUNCTION id_of(tag text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE id bigint; BEGIN id := leaf_segment_next(tag); RETURN id; END $$;
CREATE FUNCTION inlined(tag text) RETURNS bigint LANGUAGE sql AS 'SELECT leaf_segment_next(tag)';
CREATE FUNCTION looped(n int) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    tag text;
BEGIN
    FOR i IN 1..n LOOP
        tag := CASE i % 2 WHEN 1 THEN 'odd' ELSE 'even' END;
        RETURN NEXT leaf_segment_next(tag);
        EXECUTE 'SELECT 1';
    END LOOP;
END $$;
CREATE FUNCTION alternates(query text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    id bigint;
    last bigint[] := '{0,999999}';
    place int := 0;
BEGIN
    FOR id IN EXECUTE query LOOP
        IF (id >= 1000000) <> (place % 2 = 1) OR id <= last[place % 2 + 1] THEN
            RETURN false;
        END IF;
        last[place % 2 + 1] := id;
        place := place + 1;
    END LOOP;
    RETURN place = 100;
END $$;
SELECT query, alternates(query) FROM unnest(ARRAY[
    $$SELECT leaf_segment_next(tag) FROM tags$$,
    $$SELECT leaf_segment_next(tag::name::text) FROM tags$$,
    $$SELECT id_of(tag) FROM tags$$,
    $$SELECT inlined(tag) FROM tags$$,
    $$SELECT looped(100)$$,
    $$SELECT unnest(ARRAY[leaf_segment_next('odd'), leaf_segment_next('even')]) FROM generate_series(1, 50)$$,
    $$SELECT unnest(ARRAY[id_of('odd'), id_of('even')]) FROM generate_series(1, 50)$$,
    $$SELECT id FROM tags, LATERAL leaf_segment_next(tag) AS id$$,
    $$SELECT id FROM tags, LATERAL leaf_segment_next_batch(tag, 1) AS id$$,
    $$SELECT first_id FROM tags, LATERAL leaf_segment_next_range(tag, 3)$$,
    -- The same bytes in the same place of memory, another length.
    $$SELECT leaf_segment_next(left(tag || 'xxxx', length(tag))) FROM tags$$
]) query;

-- PostgreSQL could remember the rows of a function in FROM for the next row with the same argument
-- (Memoize), once the table is analyzed. A batch of its own for each row:
CREATE TABLE parents AS SELECT i AS id, i % 5 + 1 AS n FROM generate_series(1, 1000) i;
ANALYZE parents;
SELECT count(*), count(DISTINCT c.id) FROM parents p, LATERAL leaf_segment_next_batch('odd', p.n) c (id);
SELECT count(*), count(DISTINCT c.id) FROM parents p, LATERAL leaf_snowflake_next_batch(p.n) c (id);
SELECT count(*), count(DISTINCT c.first_id), sum(c.last_id - c.first_id + 1) FROM parents p, LATERAL leaf_segment_next_range('odd', p.n) c;
SELECT count(*), count(DISTINCT id) FROM (SELECT leaf_segment_next_batch('odd', p.n) AS id FROM parents p) c;
DROP TABLE parents;

-- Triggers and defaults fill keys.
CREATE FUNCTION give_id() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.id := leaf_segment_next(TG_TABLE_NAME); RETURN NEW; END $$;
CREATE TABLE odd (id bigint PRIMARY KEY, i int);
CREATE TABLE even (LIKE odd INCLUDING ALL);
CREATE TRIGGER t BEFORE INSERT ON odd FOR EACH ROW EXECUTE FUNCTION give_id();
CREATE TRIGGER t BEFORE INSERT ON even FOR EACH ROW EXECUTE FUNCTION give_id();
CREATE FUNCTION insert_by_turns() RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..50 LOOP
        RETURN QUERY EXECUTE 'INSERT INTO odd DEFAULT VALUES RETURNING id';
        RETURN QUERY EXECUTE 'INSERT INTO even DEFAULT VALUES RETURNING id';
    END LOOP;
END $$;
SELECT alternates('SELECT insert_by_turns()');
CREATE TABLE item (id bigint PRIMARY KEY DEFAULT leaf_segment_next('odd'), i int);
INSERT INTO item (i) SELECT i FROM generate_series(1, 5000) i;
INSERT INTO item (i) VALUES (1), (2), (3);
UPDATE item SET id = DEFAULT WHERE i = 3;
COPY item (i) FROM PROGRAM 'seq 5003';
SELECT count(*), min(id) > 50 AS above FROM item;

DROP TABLE drawn, tags, odd, even, item;
DROP FUNCTION id_of, inlined, looped, alternates, give_id, insert_by_turns;
SELECT leaf_tag_drop('odd', forget => true), leaf_tag_drop('even', forget => true);
