// Prisma: a row, many rows, a transaction, an upsert.
import assert from 'node:assert/strict';
import { PrismaPg } from '@prisma/adapter-pg';
import { Ids } from './checks.mjs';
import client from './generated/index.js';

const prisma = new client.PrismaClient({
  adapter: new PrismaPg({ connectionString: process.env.DATABASE_URL }),
});
const segment = new Ids('bigint');
const snowflake = new Ids('bigint');
const tea = await prisma.order.create({ data: { item: 'tea' } });
const data = Array.from({ length: 500 }, (_, i) => ({ item: `cake ${i}` }));
const many = await prisma.order.createManyAndReturn({ data });
segment.ofSession([tea.id, ...many.map((order) => order.id)]);
many.forEach((order, i) => assert.equal(order.item, `cake ${i}`));
assert.throws(() => JSON.stringify(tea), /BigInt/);
await prisma.$transaction(async (tx) => {
  const order = await tx.order.upsert({ where: { id: 0n }, create: { item: 'water' }, update: {} });
  segment.ofSession([order.id]);
});
const events = await prisma.event.createManyAndReturn({ data: [{ what: 'a' }, { what: 'b' }] });
snowflake.ofSession(events.map((event) => event.id));
const found = await prisma.event.findUniqueOrThrow({ where: { id: events[1].id } });
assert.equal(found.what, 'b');
await prisma.$disconnect();
segment.report();
snowflake.report();
