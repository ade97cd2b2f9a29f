-- Would catch: an id that a rolled back (sub)transaction got being issued again (I2), and a migration
-- that creates tag, table and rows in one transaction failing, or sharing its ids with others.
-- (\c is for another session.)
\pset format unaligned
\set VERBOSITY sqlstate

-- A failed statement.
SELECT leaf_tag_create('t');
CREATE TABLE seen (id bigint);
INSERT INTO seen SELECT 1 / (5 - leaf_segment_next('t')) FROM generate_series(1, 9);
SELECT leaf_segment_next('t');
DROP TABLE seen;
SELECT leaf_tag_drop('t', forget => true);

-- A migration in one transaction is rolled back, then committed.
BEGIN;
SELECT leaf_tag_create('t', step => 100);
CREATE TABLE migrated (id bigint PRIMARY KEY DEFAULT leaf_segment_next('t'), note text);
INSERT INTO migrated (note) SELECT 'row ' || i FROM generate_series(1, 10000) i;
ROLLBACK;
SELECT leaf_segment_next('t');
\c
SELECT leaf_segment_next('t');
BEGIN;
SELECT leaf_tag_create('t', step => 100);
CREATE TABLE migrated (id bigint PRIMARY KEY DEFAULT leaf_segment_next('t'), note text);
INSERT INTO migrated (note) SELECT 'row ' || i FROM generate_series(1, 10000) i;
COMMIT;
SELECT count(*), max(id) AS last FROM migrated \gset
\c
SELECT :count AS count, leaf_segment_next('t') > :last AS above;
DROP TABLE migrated;
SELECT leaf_tag_drop('t', forget => true);

-- Savepoints.
BEGIN;
SELECT leaf_tag_create('t', step => 10);
SELECT take('t', 5);
SAVEPOINT a;
SELECT take('t', 25);
SAVEPOINT b;
SELECT take('t', 25);
ROLLBACK TO b;
SELECT take('t', 25);
ROLLBACK TO a;
SELECT take('t', 7);
SAVEPOINT c;
SELECT take('t', 25);
RELEASE c;
COMMIT AND CHAIN;
SELECT take('t', 25);
ROLLBACK;
SELECT take('t', 25);
\c
SELECT take('t', 25);
SELECT leaf_tag_drop('t', forget => true);

-- Exception blocks, in the transaction that makes the tag and after it.
CREATE FUNCTION draw() RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    id bigint;
BEGIN
    FOR i IN 1..300 LOOP
        BEGIN
            id := leaf_segment_next('t');
            RAISE EXCEPTION 'undo';
        EXCEPTION WHEN raise_exception THEN
            RETURN NEXT id;
        END;
    END LOOP;
END $$;
BEGIN;
SELECT leaf_tag_create('t', step => 10);
SELECT count(DISTINCT id), min(id), max(id) FROM draw() id;
COMMIT;
SELECT count(DISTINCT id), min(id), max(id) FROM draw() id;
\c
SELECT count(DISTINCT id), min(id), max(id) FROM draw() id;
DROP FUNCTION draw;
SELECT leaf_tag_drop('t', forget => true);

-- A tag that an undone savepoint has created is gone. It can come again, and goes on above: its ids
-- may have been seen. So it does although nothing was issued of the row that stands.
BEGIN;
SAVEPOINT a;
SELECT leaf_tag_create('t', step => 10);
SELECT take('t', 25);
ROLLBACK TO a;
SELECT leaf_segment_next('t');
ROLLBACK TO a;
SELECT leaf_tag_create('t', step => 10);
SELECT take('t', 25);
COMMIT;
SELECT take('t', 25);
\c
SELECT take('t', 25);
BEGIN;
SAVEPOINT a;
SELECT leaf_tag_create('u');
SELECT take('u', 3);
ROLLBACK TO a;
SELECT leaf_tag_create('u');
COMMIT;
SELECT leaf_segment_next('u');
-- A reset issues nothing before it is committed, and takes back nothing that its transaction has issued.
BEGIN;
SELECT leaf_tag_create('v', step => 10);
SELECT take('v', 3);
SELECT leaf_tag_reset('v', 1);
SAVEPOINT a;
SELECT take('v', 3);
ROLLBACK TO a;
COMMIT;
SELECT leaf_segment_next('v');
SELECT leaf_tag_drop('t', forget => true), leaf_tag_drop('u', forget => true), leaf_tag_drop('v', forget => true);

-- Limits hold inside the transaction that made the tag.
BEGIN;
SELECT leaf_tag_create('t', step => 10, max_value => 15);
SELECT take('t', 15);
SAVEPOINT a;
SELECT leaf_segment_next('t');
ROLLBACK TO a;
COMMIT;
SELECT leaf_segment_next('t');
SELECT leaf_tag_drop('t', forget => true);

-- A rename keeps the row, and with it what was issued. Nothing is issued of it before it is committed.
BEGIN;
SELECT leaf_tag_create('t');
SELECT take('t', 5);
SAVEPOINT a;
UPDATE leaf_id.leaf_alloc SET biz_tag = 'u' WHERE biz_tag = 't';
SELECT take('u', 5);
ROLLBACK TO a;
SELECT take('t', 5);
UPDATE leaf_id.leaf_alloc SET biz_tag = 'u' WHERE biz_tag = 't';
COMMIT;
SELECT take('u', 5);
SELECT leaf_tag_drop('u', forget => true), leaf_tag_drop('t', forget => true);

-- A transaction that ends read only keeps its new tag.
BEGIN;
SELECT leaf_tag_create('t');
SELECT take('t', 5);
SET TRANSACTION READ ONLY;
COMMIT;
SELECT take('t', 5);
SELECT leaf_tag_drop('t', forget => true);

-- The rows of a held cursor and of a deferred trigger are made when the transaction commits, but
-- before its tags are.
BEGIN;
SELECT leaf_tag_create('t', step => 10);
DECLARE c CURSOR WITH HOLD FOR SELECT leaf_segment_next('t') FROM generate_series(1, 30);
CREATE TABLE late (id bigint);
CREATE FUNCTION take_one() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO late SELECT leaf_segment_next('t'); RETURN NULL; END $$;
CREATE TABLE item (i int);
CREATE CONSTRAINT TRIGGER c AFTER INSERT ON item DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION take_one();
INSERT INTO item SELECT generate_series(1, 20);
FETCH 5 FROM c;
COMMIT;
FETCH ALL FROM c;
SELECT count(DISTINCT id), min(id), max(id) FROM late;
SELECT take('t', 50);
\c
SELECT take('t', 50);
DROP TABLE item, late;
DROP FUNCTION take_one;
SELECT leaf_tag_drop('t', forget => true);
