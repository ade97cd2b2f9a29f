"""Django: objects, many objects, related ones, a key with db_default, and inspectdb."""

import io

import manage  # noqa: F401  the settings
from checks import Ids
from django.core.management import call_command
from django.db import transaction
from shop.models import Event, Order, OrderLine

orders, lines, events = Ids(), Ids(), Ids()
with transaction.atomic():
    ids = [Order.objects.create(item="tea").pk]
    ids += [o.pk for o in Order.objects.bulk_create(Order(item=f"cake {i}") for i in range(1000))]
orders.of_session(ids)
lines.of_session(OrderLine.objects.create(order_id=pk).pk for pk in ids[:10])
order, created = Order.objects.update_or_create(item="coffee")
assert created
orders.of_session([order.pk])
order.item = "more coffee"
order.save()
assert Order.objects.get(pk=order.pk).item == "more coffee"

events.of_session(Event.objects.create(what=str(i)).pk for i in range(10))
assert min(events.seen) > 2**53
# The trap that the table tells of: not an id.
objects = Event.objects.bulk_create(Event(what=f"many {i}") for i in range(10))
assert not isinstance(objects[0].pk, int), "bulk_create fills in a key with db_default"
orders.report()
lines.report()
events.report()

# Models of what is in the database: the application's tables, and none of ours.
for options in ({}, {"include_views": True, "include_partitions": True}):
    found = io.StringIO()
    call_command("inspectdb", stdout=found, **options)
    assert "db_table = 'shop_order'" in found.getvalue()
    assert "leaf" not in found.getvalue().lower(), found.getvalue()
