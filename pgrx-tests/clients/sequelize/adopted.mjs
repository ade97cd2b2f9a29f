// sync() makes a bigserial, and the hook of packaging/hooks moves it to a tag.
import assert from 'node:assert/strict';
import { DataTypes, Sequelize } from 'sequelize';
import { Ids } from './checks.mjs';
import { adopt } from './leaf_id.mjs';

const sequelize = new Sequelize(process.env.DATABASE_URL, { logging: false, define: { timestamps: false } });

const define = (name, tableName) =>
  sequelize.define(
    name,
    { id: { type: DataTypes.BIGINT, primaryKey: true, autoIncrement: true }, total: DataTypes.INTEGER },
    { tableName },
  );

/** The default of each column; it has a new oid when it is set. */
async function defaults() {
  const [rows] = await sequelize.query(
    'SELECT adrelid::regclass::text AS name, oid, pg_get_expr(adbin, adrelid) AS text FROM pg_attrdef',
  );
  return new Map(rows.map(({ name, oid, text }) => [name, `${oid} ${text}`]));
}

const Invoice = define('Invoice', 'invoices');
await sequelize.sync();
await adopt(sequelize);
const first = await defaults();
assert.match(first.get('invoices'), /leaf_segment_next/);
await sequelize.sync({ alter: true });
assert.match((await defaults()).get('invoices'), /leaf_segment_next/);
const invoices = new Ids('string');
const many = await Invoice.bulkCreate(Array.from({ length: 100 }, (_, i) => ({ total: i })));
invoices.ofSession(many.map((invoice) => invoice.id));

// One more table, away and back, and nothing to do.
const Bill = define('Bill', 'bills');
const bills = new Ids('string');
for (let round = 0; round < 2; round++) {
  await sequelize.sync();
  await adopt(sequelize);
  const second = await defaults();
  assert.match(second.get('bills'), /leaf_segment_next/);
  await sequelize.sync();
  await adopt(sequelize);
  assert.deepEqual(await defaults(), second);
  bills.ofSession([(await Bill.create({ total: round })).id]);
  if (round === 0) {
    await Bill.drop();
    await sequelize.query("SELECT leaf_tag_drop('bills')");
  }
}
await sequelize.close();
invoices.report();
