"""Alembic: up, down and up again; autogenerate finds nothing to do."""

from alembic import command
from alembic.config import Config

config = Config()
config.set_main_option("script_location", "migrations")
config.set_main_option("path_separator", "os")
command.upgrade(config, "head")
command.downgrade(config, "base")
command.upgrade(config, "head")
# An error if there is anything to do.
command.check(config)
