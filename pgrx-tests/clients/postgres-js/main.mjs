// postgres.js: a row, many rows, a transaction, pipelined statements; ids as strings and as BigInt.
import assert from 'node:assert/strict';
import postgres from 'postgres';
import { Ids } from './checks.mjs';

const orders = new Ids('string');
const sql = postgres(process.env.DATABASE_URL, { max: 4 });
await sql.begin(async (sql) => {
  const [{ id }] = await sql`INSERT INTO orders (item) VALUES ('tea') RETURNING id`;
  const items = Array.from({ length: 500 }, (_, i) => ({ item: `cake ${i}` }));
  const many = await sql`INSERT INTO orders ${sql(items)} RETURNING id`;
  orders.ofSession([id, ...many.map((row) => row.id)]);
});
// In the pipeline of one connection.
await sql.begin(async (sql) => {
  const rows = await Promise.all(
    Array.from({ length: 100 }, (_, i) => sql`INSERT INTO orders (item) VALUES (${`piped ${i}`}) RETURNING id`),
  );
  orders.ofSession(rows.map(([row]) => row.id));
});
await sql.end();

const exact = postgres(process.env.DATABASE_URL, { types: { bigint: postgres.BigInt } });
const events = new Ids('bigint');
const rows = await exact`INSERT INTO events (what) SELECT i::text FROM generate_series(1, 100) i RETURNING id`;
events.ofSession(rows.map((row) => row.id));
const [last] = rows.slice(-1);
assert.ok(last.id > Number.MAX_SAFE_INTEGER);
assert.equal((await exact`SELECT what FROM events WHERE id = ${last.id}`)[0].what, '100');
await exact.end();
orders.report();
events.report();
