-- Counts every id that was handed out, in rows and in transactions that were rolled
-- back. Ends in an error if one was handed out twice. Wants :seconds.

SET work_mem = '128MB';
CREATE TEMP TABLE issued AS
    SELECT 'orders' AS kind, id, true AS kept FROM orders
    UNION ALL SELECT 'orders', order_id, false FROM rolled_back
    UNION ALL SELECT 'lines', id, true FROM order_lines
    UNION ALL SELECT 'lines', unnest(line_ids), false FROM rolled_back;
CREATE TEMP TABLE counted AS
    SELECT kind,
           count(*) FILTER (WHERE kept) AS kept,
           count(*) FILTER (WHERE NOT kept) AS rolled_back,
           count(*) AS ids,
           count(DISTINCT id) AS different
    FROM issued GROUP BY GROUPING SETS ((kind), ());

CREATE FUNCTION pg_temp.line(label text, figure text) RETURNS text LANGUAGE sql AS $$
    SELECT format('  %-28s %15s %15s %15s', label,
        max(n) FILTER (WHERE kind = 'orders'), max(n) FILTER (WHERE kind = 'lines'),
        max(n) FILTER (WHERE kind IS NULL))
    FROM (
        SELECT kind, to_char((to_jsonb(counted) ->> figure)::numeric, 'FM999,999,999,999,990') AS n
        FROM (
            SELECT *, ids - different AS duplicates,
                   round(ids / current_setting('demo.seconds')::numeric) AS per_second
            FROM counted
        ) counted
    ) figures
$$;

SELECT set_config('demo.seconds', :'seconds', false) \g /dev/null
\pset tuples_only on
\pset format unaligned
SELECT format('  %-28s %15s %15s %15s', '', 'orders', 'order_lines', 'together');
SELECT format('  %-28s %15s %15s %15s', 'the ids come from', 'leaf_segment', 'leaf_snowflake', '');
SELECT pg_temp.line('rows in the table', 'kept');
SELECT pg_temp.line('ids in rolled back work', 'rolled_back');
SELECT pg_temp.line('ids issued', 'ids');
SELECT pg_temp.line('different ids', 'different');
SELECT pg_temp.line('DUPLICATES', 'duplicates');
SELECT pg_temp.line('ids per second', 'per_second');
\echo

DO $$
BEGIN
    IF (SELECT sum(ids - different) FROM counted) > 0 THEN
        RAISE EXCEPTION 'ids were issued more than once';
    END IF;
    IF (SELECT count(*) FROM counted WHERE kept > 0 AND rolled_back > 0) < 3 THEN
        RAISE EXCEPTION 'too little happened to count anything';
    END IF;
END
$$;

ALTER TABLE orders ADD PRIMARY KEY (id);
ALTER TABLE order_lines ADD PRIMARY KEY (id), ADD FOREIGN KEY (order_id) REFERENCES orders;
\echo '  Both primary keys and the foreign key were then added: PostgreSQL agrees.'
\echo

-- Without the inserts, what one session gets.
CREATE FUNCTION pg_temp.calls(expression text, n int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz := clock_timestamp();
    seconds numeric;
BEGIN
    EXECUTE format('SELECT count(%s) FROM generate_series(1, %s)', expression, n);
    seconds := extract(epoch FROM clock_timestamp() - began);
    RETURN format('  %-28s %15s ids in %6s ms, %s ns each', expression,
        to_char(n, 'FM999,999,999'), round(seconds * 1000), round(seconds * 1e9 / n));
END
$$;
\echo 'Calls alone, in one session'
SELECT pg_temp.calls('leaf_segment_next(''calls'')', 1000000);
SELECT pg_temp.calls('leaf_snowflake_next()', 1000000);
\echo

\pset tuples_only off
\pset format aligned
\pset footer off
\pset null '-'
\echo 'SELECT * FROM leaf_id.tags'
SELECT * FROM leaf_id.tags ORDER BY tag;
\echo 'SELECT * FROM leaf_id.problems: empty means well'
SELECT * FROM leaf_id.problems;
\echo 'SELECT * FROM leaf_id.server'
\pset expanded on
SELECT * FROM leaf_id.server;
