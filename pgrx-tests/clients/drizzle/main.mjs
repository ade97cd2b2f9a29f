// Drizzle: a row, many rows, an upsert.
import assert from 'node:assert/strict';
import { eq } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/node-postgres';
import { bigint, pgTable, text } from 'drizzle-orm/pg-core';
import { Ids } from './checks.mjs';
import { events, orders } from './schema.js';

const db = drizzle(process.env.DATABASE_URL);
const segment = new Ids('bigint');
const snowflake = new Ids('bigint');
await db.transaction(async (tx) => {
  const [{ id }] = await tx.insert(orders).values({ item: 'tea' }).returning({ id: orders.id });
  const items = Array.from({ length: 500 }, (_, i) => ({ item: `cake ${i}` }));
  const many = await tx.insert(orders).values(items).returning();
  segment.ofSession([id, ...many.map((row) => row.id)]);
  await tx.insert(orders).values({ id, item: 'tea' }).onConflictDoUpdate({ target: orders.id, set: { item: 'coffee' } });
  const [row] = await tx.select().from(orders).where(eq(orders.id, id));
  assert.equal(row.item, 'coffee');
});
const rows = await db.insert(events).values([{ what: 'a' }, { what: 'b' }]).returning();
snowflake.ofSession(rows.map((row) => row.id));
const [found] = await db.select().from(events).where(eq(events.id, rows[1].id));
assert.equal(found.what, 'b');
// The trap: numbers are exact up to 2^53 only.
const rounded = pgTable('events', { id: bigint({ mode: 'number' }), what: text() });
const numbers = await db.select().from(rounded);
assert.equal(typeof numbers[0].id, 'number');
assert.ok(numbers[0].id > Number.MAX_SAFE_INTEGER);
await db.$client.end();
segment.report();
snowflake.report();
