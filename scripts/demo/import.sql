-- A hundred orders arrive at once, three lines each, in one statement.
WITH arrived AS (
    INSERT INTO orders (customer) SELECT 'import ' || n FROM generate_series(1, 100) n RETURNING id
)
INSERT INTO order_lines (order_id, product, quantity)
    SELECT arrived.id, 'product ' || n, n FROM arrived, generate_series(1, 3) n;
