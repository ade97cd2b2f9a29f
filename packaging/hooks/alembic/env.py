"""Alembic: moves each serial and identity column to a tag of leaf_id, in the transaction of a migration.

It is env.py as a whole; in your own, add what concerns leaf_id. The role that migrates owns the
tables, and needs SELECT, INSERT, UPDATE and DELETE on leaf_id.leaf_alloc, and USAGE on schema leaf_id
WITH GRANT OPTION, as the role has that installed the extension. A column that cannot be moved keeps
its sequence, and the log says so.
"""

import logging
from logging.config import fileConfig

from alembic import context

# Yours: the base class of the models, and the engine.
from models import Base, engine

ADOPT = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'leaf_id') THEN
        CALL leaf_adopt_all(current_schema());
    END IF;
END
$$
"""


def migrate(**options):
    """Any command that needs the database, or the models; only some of them migrate."""
    context.configure(target_metadata=Base.metadata, compare_server_default=True, **options)
    migration = context.get_context()
    with context.begin_transaction():
        before = migration.get_current_heads()
        context.run_migrations()
        if context.is_offline_mode() or migration.get_current_heads() != before:
            context.execute(ADOPT)


if context.config.config_file_name:
    fileConfig(context.config.config_file_name, disable_existing_loggers=False)
# The notices of leaf_adopt_all().
logging.getLogger("sqlalchemy.dialects.postgresql").setLevel(logging.INFO)

if context.is_offline_mode():
    migrate(url=engine.url, literal_binds=True)
else:
    with engine.connect() as connection:
        migrate(connection=connection)
