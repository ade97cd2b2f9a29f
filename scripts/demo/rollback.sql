-- A customer changes their mind. What ids that used up is written down afterwards.
BEGIN;
INSERT INTO orders (customer) VALUES ('customer ' || :client_id) RETURNING id AS order_id \gset
WITH line AS (
    INSERT INTO order_lines (order_id, product, quantity)
        SELECT :order_id, 'product ' || n, n FROM generate_series(1, 3) n RETURNING id
)
SELECT array_agg(id) AS line_ids FROM line \gset
ROLLBACK;
INSERT INTO rolled_back VALUES (:order_id, ':line_ids');
