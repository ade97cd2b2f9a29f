"""A plain model and the migration that Alembic generates from it: leaf_id.adopt_new_columns is on."""

from alembic import command
from alembic.config import Config
from checks import Ids
from models import Base, engine
from sqlalchemy import BigInteger, text
from sqlalchemy.orm import Mapped, Session, mapped_column


class Invoice(Base):
    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    total: Mapped[int]


config = Config()
config.set_main_option("script_location", "migrations")
config.set_main_option("path_separator", "os")
command.revision(config, "invoices", autogenerate=True)
command.upgrade(config, "head")
command.check(config)

invoices = Ids()
with Session(engine) as session:
    default = session.scalar(
        text("SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'invoices'::regclass")
    )
    assert "leaf_segment_next" in default, default
    objects = [Invoice(total=i) for i in range(2000)]
    session.add_all(objects)
    session.commit()
    invoices.of_session(sorted(o.id for o in objects))
invoices.report()
