-- A customer orders one to five things.
\set lines random(1, 5)
BEGIN;
INSERT INTO orders (customer) VALUES ('customer ' || :client_id) RETURNING id AS order_id \gset
INSERT INTO order_lines (order_id, product, quantity)
    SELECT :order_id, 'product ' || n, n FROM generate_series(1, :lines) n;
COMMIT;
