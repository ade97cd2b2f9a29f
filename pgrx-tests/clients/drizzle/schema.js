import { sql } from 'drizzle-orm';
import { bigint, pgTable, text } from 'drizzle-orm/pg-core';

export const orders = pgTable('orders', {
  id: bigint({ mode: 'bigint' }).primaryKey().default(sql`leaf_segment_next('orders'::text)`),
  item: text().notNull(),
});

export const events = pgTable('events', {
  id: bigint({ mode: 'bigint' }).primaryKey().default(sql`leaf_snowflake_next()`),
  what: text().notNull(),
});
