-- What must hold in a client's database after its program, whatever the program says: leaf_id's
-- tables and views are still there, and in every column with a default of leaf_id's no id comes twice.

DO $$
DECLARE
    columns_of_leaf CURSOR FOR
        SELECT d.adrelid::regclass AS relation, a.attname AS name
        FROM pg_attrdef d
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE pg_get_expr(d.adbin, d.adrelid) ~ 'leaf_(segment|snowflake)_next';
    ids bigint;
    distinct_ids bigint;
    least bigint;
    total bigint := 0;
BEGIN
    IF to_regclass('leaf_id.leaf_alloc') IS NULL OR to_regclass('leaf_id.tags_detail') IS NULL THEN
        RAISE EXCEPTION 'the client has dropped leaf_alloc or the views';
    END IF;
    FOR found IN columns_of_leaf LOOP
        EXECUTE format('SELECT count(%1$I), count(DISTINCT %1$I), min(%1$I) FROM %2$s', found.name, found.relation)
            INTO ids, distinct_ids, least;
        IF ids <> distinct_ids OR least <= 0 THEN
            RAISE EXCEPTION '%.%: % ids, % different, the least is %',
                found.relation, found.name, ids, distinct_ids, least;
        END IF;
        total := total + ids;
    END LOOP;
    IF total = 0 THEN
        RAISE EXCEPTION 'no column has ids of leaf_id';
    END IF;
END
$$;
