"""Alembic's: compares defaults too, which it does not do by itself."""

from alembic import context
from models import Base, engine

with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_server_default=True,
        include_schemas=False,
    )
    with context.begin_transaction():
        context.run_migrations()
