export default {
  dialect: 'postgresql',
  schema: './schema.js',
  out: './drizzle',
  // push would drop leaf_id's views, which are not in the schema here.
  tablesFilter: ['!leaf_*'],
  dbCredentials: { url: process.env.DATABASE_URL },
};
