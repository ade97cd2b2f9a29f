// Sequelize 6: models of tables that are there, with a key of either kind.
import assert from 'node:assert/strict';
import { DataTypes, Sequelize, literal } from 'sequelize';
import { Ids } from './checks.mjs';

const sequelize = new Sequelize(process.env.DATABASE_URL, { logging: false, define: { timestamps: false } });
const Order = sequelize.define(
  'Order',
  { id: { type: DataTypes.BIGINT, primaryKey: true, autoIncrement: true }, item: DataTypes.TEXT },
  { tableName: 'orders' },
);
const Event = sequelize.define(
  'Event',
  { id: { type: DataTypes.BIGINT, primaryKey: true, defaultValue: literal('leaf_snowflake_next()') }, what: DataTypes.TEXT },
  { tableName: 'events' },
);
// The tables are there already.
await sequelize.sync();

const segment = new Ids('string');
const snowflake = new Ids('string');
await sequelize.transaction(async (transaction) => {
  const tea = await Order.create({ item: 'tea' }, { transaction });
  const items = Array.from({ length: 500 }, (_, i) => ({ item: `cake ${i}` }));
  const many = await Order.bulkCreate(items, { transaction });
  segment.ofSession([tea.id, ...many.map((order) => order.id)]);
  assert.equal((await Order.findByPk(many[7].id, { transaction })).item, 'cake 7');
  const events = await Event.bulkCreate([{ what: 'a' }, { what: 'b' }], { transaction, returning: true });
  snowflake.ofSession(events.map((event) => event.id));
});
// The trap: a key that is neither.
const Plain = sequelize.define(
  'Plain',
  { id: { type: DataTypes.BIGINT, primaryKey: true }, item: DataTypes.TEXT },
  { tableName: 'orders' },
);
await assert.rejects(Plain.create({ item: 'tea' }), /null value in column "id"/);
await sequelize.close();
segment.report();
snowflake.report();
