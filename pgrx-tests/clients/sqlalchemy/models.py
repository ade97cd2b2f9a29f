"""The models: orders with segment ids, events with snowflake ids."""

import os

from sqlalchemy import BigInteger, create_engine, func, literal_column
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

engine = create_engine(os.environ["DATABASE_URL"].replace("postgresql:", "postgresql+psycopg:"))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    # The ids increase (I4), so that the rows that come back from an INSERT of many can be matched.
    # The tag is spelled as PostgreSQL shows it, or Alembic compares the defaults by calling them.
    id: Mapped[int] = mapped_column(
        BigInteger,
        primary_key=True,
        server_default=func.leaf_segment_next(literal_column("'orders'::text"), monotonic=True),
    )
    item: Mapped[str]


class Event(Base):
    __tablename__ = "events"

    id: Mapped[int] = mapped_column(
        BigInteger, primary_key=True, server_default=func.leaf_snowflake_next(monotonic=True)
    )
    what: Mapped[str]
