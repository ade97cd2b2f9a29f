// Sequelize: moves each serial and identity column to a tag of leaf_id. Call it after sync(), and
// after the last migration: await adopt(sequelize).
//
// The role that it connects as owns the tables, and needs SELECT, INSERT, UPDATE and DELETE on
// leaf_id.leaf_alloc, and USAGE on schema leaf_id WITH GRANT OPTION, as the role has that installed the
// extension. A column that cannot be moved keeps its sequence, and the output says why.

const ADOPT = `
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'leaf_id') THEN
        CALL leaf_adopt_all(current_schema());
    END IF;
END
$$`;

const show = ({ message, detail, hint }) => console.log([message, detail, hint].filter(Boolean).join('\n  '));

export async function adopt(sequelize) {
  const connection = await sequelize.connectionManager.getConnection({ type: 'write' });
  connection.on('notice', show);
  try {
    await connection.query('SET client_min_messages = notice');
    await connection.query(ADOPT);
  } finally {
    await connection.query('SET client_min_messages = warning');
    connection.off('notice', show);
    sequelize.connectionManager.releaseConnection(connection);
  }
}
