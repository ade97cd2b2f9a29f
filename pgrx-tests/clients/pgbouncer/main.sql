-- One client of the pooler: 100 transactions, two ids each, in the order in which it gets them.

SELECT format('INSERT INTO orders (item) VALUES (%L), (%L) RETURNING id', i, i) FROM generate_series(1, 100) i \gexec
