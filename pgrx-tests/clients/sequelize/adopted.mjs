// sync() makes a bigserial, which is a tag's: leaf_id.adopt_new_columns is on.
import assert from 'node:assert/strict';
import { DataTypes, Sequelize } from 'sequelize';
import { Ids } from './checks.mjs';

const sequelize = new Sequelize(process.env.DATABASE_URL, { logging: false, define: { timestamps: false } });
const Invoice = sequelize.define(
  'Invoice',
  { id: { type: DataTypes.BIGINT, primaryKey: true, autoIncrement: true }, total: DataTypes.INTEGER },
  { tableName: 'invoices' },
);
await sequelize.sync();
await sequelize.sync({ alter: true });
const [[{ text }]] = await sequelize.query(
  "SELECT pg_get_expr(adbin, adrelid) AS text FROM pg_attrdef WHERE adrelid = 'invoices'::regclass",
);
assert.match(text, /leaf_segment_next/);
const invoices = new Ids('string');
const many = await Invoice.bulkCreate(Array.from({ length: 100 }, (_, i) => ({ total: i })));
invoices.ofSession(many.map((invoice) => invoice.id));
await sequelize.close();
invoices.report();
