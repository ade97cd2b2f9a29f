// node-postgres: a row, many rows, a pool; ids as strings, as BigInt, and as numbers below 2^53.
import assert from 'node:assert/strict';
import pg from 'pg';
import { Ids } from './checks.mjs';

const INSERT = 'INSERT INTO orders (item) VALUES ($1) RETURNING id';
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 4 });
const orders = new Ids('string');

const client = await pool.connect();
let ids = [(await client.query(INSERT, ['tea'])).rows[0].id];
const many = await client.query('INSERT INTO orders (item) SELECT unnest($1::text[]) RETURNING id', [
  Array.from({ length: 500 }, (_, i) => `cake ${i}`),
]);
ids.push(...many.rows.map((row) => row.id));
for (let i = 0; i < 10; i += 1) {
  const { rows } = await client.query({ name: 'insert', text: INSERT, values: [`prepared ${i}`] });
  ids.push(rows[0].id);
}
orders.ofSession(ids);

// Snowflake ids: exact as strings and as BigInt, and not as numbers.
const { rows: [{ id }] } = await client.query("INSERT INTO events (what) VALUES ('started') RETURNING id");
assert.ok(BigInt(id) > Number.MAX_SAFE_INTEGER);
assert.notEqual(String(Number(id) | 0), id);
const asBigInt = { getTypeParser: (oid, format) => (oid === 20 ? BigInt : pg.types.getTypeParser(oid, format)) };
const { rows: [found] } = await client.query({ text: 'SELECT id FROM events WHERE id = $1', values: [BigInt(id)], types: asBigInt });
assert.equal(found.id, BigInt(id));
// A bigint in JSON is a number, which JavaScript rounds when it reads it.
const { rows: [{ json }] } = await client.query('SELECT json_build_object($1::text, id)::text AS json FROM events', ['id']);
assert.ok(json.includes(id));

// The layout 41/6/6 keeps them below: the largest worker id and sequence, ten years from now.
const { rows: [{ small }] } = await client.query(
  `SELECT leaf_snowflake_compose(now() + interval '10 years', 63, 63,
          current_setting('leaf_id.epoch')::bigint, '41/6/6') AS small`,
);
assert.ok(Number.isSafeInteger(Number(small)));
assert.equal(String(Number(small)), small);
client.release();

const sessions = Array.from({ length: 8 }, async (_, session) => {
  const own = [];
  for (let i = 0; i < 100; i += 1) own.push((await pool.query(INSERT, [`of ${session}`])).rows[0].id);
  return own;
});
for (const own of await Promise.all(sessions)) orders.ofSession(own);
await pool.end();
orders.report();
