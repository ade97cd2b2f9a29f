-- The ids of psql's user: RETURNING, \gset, a session's order, an upsert, a read-only request.

INSERT INTO orders (item) VALUES ('tea') RETURNING id \gset first_
INSERT INTO orders (item) SELECT 'cake ' || i FROM generate_series(1, 10) i;
INSERT INTO orders (item) VALUES ('tea') RETURNING id \gset last_
SELECT :last_id = max(id) AND :first_id = min(id) AND count(*) = 12 AS good FROM orders \gset
\if :good
\else
    \warn the ids of one session do not increase
    SELECT 1 / 0;
\endif

-- A value that is given is kept, and what conflicts gets no row.
INSERT INTO orders (id, item) VALUES (:last_id, 'coffee')
    ON CONFLICT (id) DO UPDATE SET item = excluded.item;
PREPARE one AS INSERT INTO orders (item) VALUES ($1) RETURNING id;
EXECUTE one ('water') \gset prepared_
-- There is no sequence behind the column.
SELECT :prepared_id > :last_id AND pg_get_serial_sequence('orders', 'id') IS NULL AS good \gset
\if :good
\else
    SELECT 1 / 0;
\endif

-- What an HTTP interface does with a GET: a function in a schema of its own, in a read-only transaction.
CREATE SCHEMA api;
CREATE FUNCTION api.next_order_id() RETURNS bigint LANGUAGE sql VOLATILE
    RETURN leaf_segment_next('orders');
BEGIN READ ONLY;
SELECT api.next_order_id() > :prepared_id AS good \gset
COMMIT;
\if :good
\else
    SELECT 1 / 0;
\endif
