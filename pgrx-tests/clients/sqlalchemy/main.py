"""SQLAlchemy: objects, many objects, bulk inserts; how many statements that takes."""

from checks import Ids
from models import Event, Order, engine
from sqlalchemy import BigInteger, Column, MetaData, Table, Text, event, func, insert, select
from sqlalchemy.orm import Session

statements = 0


@event.listens_for(engine, "before_cursor_execute")
def count(*_):
    global statements
    statements += 1


def inserted(session, objects):
    """Inserts them at the next flush; the ids in the order of the objects, and the statements."""
    global statements
    session.add_all(objects)
    statements = 0
    session.flush()
    return [o.id for o in objects], statements


orders, events = Ids(), Ids()
with Session(engine) as session:
    orders.of_session(inserted(session, [Order(item="cake")])[0])
    ids, statements_of_many = inserted(session, [Order(item=f"cake {i}") for i in range(2000)])
    orders.of_session(ids)
    assert statements_of_many < 10, f"{statements_of_many} statements for 2000 rows"
    # The ids belong to the rows that they are given to.
    for order in session.scalars(select(Order).where(Order.item.like("cake %")).order_by(Order.id)):
        assert order.item == f"cake {ids.index(order.id)}"
    rows = session.scalars(
        insert(Order).returning(Order.id, sort_by_parameter_order=True),
        [{"item": f"bulk {i}"} for i in range(2000)],
    )
    orders.of_session(rows)
    ids, _ = inserted(session, [Event(what=f"event {i}") for i in range(100)])
    assert min(ids) > 2**53
    events.of_session(ids)
    # The trap: a default that is not known to increase.
    plain = Table(
        "orders",
        MetaData(),
        Column("id", BigInteger, primary_key=True, server_default=func.leaf_segment_next("orders")),
        Column("item", Text),
    )
    statements = 0
    items = [{"item": f"slow {i}"} for i in range(100)]
    orders.of_session(
        session.scalars(insert(plain).returning(plain.c.id, sort_by_parameter_order=True), items)
    )
    assert statements == 100, statements
    session.commit()
orders.report()
events.report()
