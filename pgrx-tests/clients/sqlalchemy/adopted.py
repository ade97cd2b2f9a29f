"""Plain models, the migrations that Alembic generates from them, and the env.py of packaging/hooks."""

from io import StringIO

from alembic import command
from alembic.config import Config
from checks import Ids
from models import Base, engine
from sqlalchemy import BigInteger, text
from sqlalchemy.orm import Mapped, Session, mapped_column

# As `alembic init` writes it: with its logging.
config = Config("alembic.ini")
config.set_main_option("script_location", "migrations")


def execute(statement):
    with engine.begin() as db:
        db.execute(text(statement))


def defaults():
    """The default of each column; it has a new oid when it is set."""
    with engine.connect() as db:
        found = db.execute(text("SELECT adrelid::regclass::text, oid, pg_get_expr(adbin, adrelid) FROM pg_attrdef"))
        return {table: (oid, default) for table, oid, default in found}


def upgrade():
    command.upgrade(config, "head")
    command.check(config)
    return defaults()


def revise(name):
    """Generates a revision from the models."""
    command.revision(config, name, autogenerate=True)
    return upgrade()


def assert_adopted(found, *tables):
    for table in tables:
        assert found[table][1].startswith("leaf_segment_next("), found


class Invoice(Base):
    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    total: Mapped[int]


first = revise("invoices")
assert_adopted(first, "invoices")
invoices = Ids()
with Session(engine) as session:
    objects = [Invoice(total=i) for i in range(2000)]
    session.add_all(objects)
    session.commit()
    invoices.of_session(sorted(o.id for o in objects))
invoices.report()


class Bill(Base):
    __tablename__ = "bills"

    id: Mapped[int] = mapped_column(primary_key=True)


second = revise("bills")
assert_adopted(second, "bills")
assert second["invoices"] == first["invoices"], second
assert upgrade() == second
command.downgrade(config, "-1")
assert defaults() == first
execute("SELECT leaf_tag_drop('bills')")
# A command that migrates nothing adopts nothing.
execute("CREATE TABLE made_by_hand (id serial)")
before = defaults()
command.current(config)
assert defaults() == before
command.upgrade(config, "head")
assert_adopted(defaults(), "bills", "made_by_hand")

config.output_buffer = StringIO()
command.upgrade(config, "head", sql=True)
assert "leaf_adopt_all" in config.output_buffer.getvalue(), config.output_buffer.getvalue()
