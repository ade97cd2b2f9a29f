-- A serial column becomes a tag's, and goes back.

CREATE TABLE invoices (id serial PRIMARY KEY, total numeric);
INSERT INTO invoices (total) SELECT i FROM generate_series(1, 10) i;
SELECT leaf_adopt('invoices', 'id');
INSERT INTO invoices (total) SELECT i FROM generate_series(1, 10) i;
SELECT leaf_release('invoices', 'id');
INSERT INTO invoices (total) SELECT i FROM generate_series(1, 10) i;
SELECT count(*) = 30 AND max(id) >= 30 AS good FROM invoices \gset
\if :good
\else
    SELECT 1 / 0;
\endif
