-- Would catch: a formatted id that cannot be used where its column is (a generated column, an index, a
-- view, a parallel query), and an error without what the reader needs. What the patterns mean is
-- tested in the core.
\pset format unaligned

-- Whether a plan has such a node.
CREATE FUNCTION plan_has(query text, node text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    line text;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN ' || query LOOP
        IF strpos(line, node) > 0 THEN RETURN true; END IF;
    END LOOP;
    RETURN false;
END $$;

-- Ids are shown, and found by what is shown.
CREATE TABLE invoices (
    id bigint PRIMARY KEY,
    number text GENERATED ALWAYS AS (leaf_format(id, 'INV-{YYYY}-{N:6}')) STORED UNIQUE,
    public_id uuid GENERATED ALWAYS AS (leaf_format(id, '{UUID}')::uuid) STORED UNIQUE,
    CHECK (leaf_parse(number, 'INV-{YYYY}-{N:6}') = id AND leaf_parse(public_id::text, '{UUID}') = id));
INSERT INTO invoices SELECT 2026000000 + n FROM generate_series(1, 1000) n;
CREATE INDEX ON invoices (leaf_format(id, 'inv_{BASE32}{CHECK}'));
CREATE VIEW shown AS SELECT leaf_format(id, 'inv_{BASE32}{CHECK}') AS id, number FROM invoices;
ANALYZE invoices;
SELECT * FROM invoices WHERE id = 2026000123;
SELECT id FROM shown WHERE number = 'INV-2026-000123' \gset
SELECT id, number FROM shown WHERE id = :'id';
SELECT plan_has(format('SELECT number FROM shown WHERE id = %L', :'id'), 'Index Scan') AS by_index;
SELECT leaf_format(2026000123, '{UUID}'), leaf_format(2026000123, '{UUID}')::uuid;
SELECT leaf_parse(public_id::text, '{UUID}') FROM invoices WHERE public_id = '00000000-0000-8000-8000-000078c24efb';

-- In parallel workers.
CREATE TABLE numbers AS SELECT n AS id FROM generate_series(1, 10000) n;
ANALYZE numbers;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
\set query 'SELECT count(*) FROM numbers WHERE leaf_parse(leaf_format(id, \'a{N}\'), \'a{N}\') = id AND leaf_parse(leaf_format(id, \'{UUID}\'), \'{UUID}\') = id'
SELECT plan_has(:'query', 'Gather') AS parallel;
:query;

-- The DETAIL says what is wrong.
SELECT statement, r.* FROM unnest(ARRAY[
    $$SELECT leaf_format(1, 'INV')$$,
    $$SELECT leaf_parse('1', '{N')$$,
    $$SELECT leaf_format(-1, '{N}')$$,
    $$SELECT leaf_format(1000, '{N:3}')$$,
    $$SELECT leaf_format(123, '{YYYY}-{N:6}')$$,
    $$SELECT leaf_parse('a', '{N}')$$,
    $$SELECT leaf_parse('ord_16JC', 'ord_{BASE32}{CHECK}')$$,
    $$SELECT leaf_parse('9223372036854775808', '{N}')$$,
    $$SELECT leaf_format(-1, '{UUID}')$$,
    $$SELECT leaf_parse('01890a5d-ac96-774b-bcce-b302099a8057', '{UUID}')$$
]) statement, refusal(statement) r;
SELECT leaf_format(NULL, '{N}') IS NULL AS id, leaf_format(1, NULL) IS NULL AS pattern;

-- Texts with more than a short header, stored out of line and compressed.
CREATE TABLE long (pattern text, formatted text);
INSERT INTO long SELECT repeat('x', 100000) || '{N}';
UPDATE long SET formatted = leaf_format(7, pattern);
SELECT leaf_parse(formatted, pattern), length(formatted) FROM long;

DROP TABLE long, numbers, invoices CASCADE;
DROP FUNCTION plan_has;
