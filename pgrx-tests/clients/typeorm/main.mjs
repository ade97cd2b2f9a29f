// TypeORM: a migration, then synchronize finds nothing to do; entities, many entities.
import assert from 'node:assert/strict';
import 'reflect-metadata';
import typeorm from 'typeorm';
import { Ids } from './checks.mjs';

const key = (call) => ({ type: 'bigint', primary: true, default: () => call });
const Order = new typeorm.EntitySchema({
  name: 'Order',
  tableName: 'orders',
  columns: { id: key("leaf_segment_next('orders')"), item: { type: 'text' } },
});
const Event = new typeorm.EntitySchema({
  name: 'Event',
  tableName: 'events',
  columns: { id: key('leaf_snowflake_next()'), what: { type: 'text' } },
});

class Tables1700000000000 {
  async up(queryRunner) {
    await queryRunner.query("SELECT leaf_tag_create('orders')");
    await queryRunner.query(`CREATE TABLE orders (
      id bigint DEFAULT leaf_segment_next('orders'), item text NOT NULL, PRIMARY KEY (id))`);
    await queryRunner.query(`CREATE TABLE events (
      id bigint DEFAULT leaf_snowflake_next(), what text NOT NULL, PRIMARY KEY (id))`);
  }

  async down(queryRunner) {
    await queryRunner.query('DROP TABLE events, orders');
    await queryRunner.query("SELECT leaf_tag_drop('orders')");
  }
}

const source = new typeorm.DataSource({
  type: 'postgres',
  url: process.env.DATABASE_URL,
  entities: [Order, Event],
  migrations: [Tables1700000000000],
});
await source.initialize();
await source.runMigrations();
await source.undoLastMigration();
await source.runMigrations();
const { upQueries } = await source.driver.createSchemaBuilder().log();
const names = upQueries.map(({ query }) => query).filter((query) => !query.includes('CONSTRAINT'));
assert.deepEqual(names, [], 'synchronize finds something to do');
await source.synchronize();

const segment = new Ids('string');
const snowflake = new Ids('string');
await source.transaction(async (manager) => {
  const tea = await manager.save(Order, { item: 'tea' });
  const many = await manager.save(Order, Array.from({ length: 500 }, (_, i) => ({ item: `cake ${i}` })));
  segment.ofSession([tea.id, ...many.map((order) => order.id)]);
  many.forEach((order, i) => assert.equal(order.item, `cake ${i}`));
  assert.equal((await manager.findOneByOrFail(Order, { id: many[7].id })).item, 'cake 7');
  const inserted = await manager.insert(Order, [{ item: 'a' }, { item: 'b' }]);
  segment.ofSession(inserted.identifiers.map(({ id }) => id));
  const events = await manager.save(Event, [{ what: 'a' }, { what: 'b' }]);
  snowflake.ofSession(events.map((event) => event.id));
});
await source.destroy();

// What synchronize would do to the key with another declaration of it.
async function changes(id) {
  const other = new typeorm.DataSource({
    type: 'postgres',
    url: process.env.DATABASE_URL,
    entities: [new typeorm.EntitySchema({ name: 'Order', tableName: 'orders', columns: { id, item: { type: 'text' } } })],
  });
  await other.initialize();
  const { upQueries } = await other.driver.createSchemaBuilder().log();
  await other.destroy();
  return upQueries.map(({ query }) => query).join('\n');
}
assert.match(await changes({ type: 'bigint', primary: true, generated: 'increment' }), /CREATE SEQUENCE[^]*nextval/);
assert.match(await changes(key("leaf_segment_next('orders'::text)")), /SET DEFAULT/);
segment.report();
snowflake.report();
