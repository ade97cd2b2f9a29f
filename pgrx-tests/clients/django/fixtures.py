"""loaddata, with ids that the tag has still to issue: they collide, until leaf_sync, which shop.leaf calls."""

from io import StringIO

import manage  # noqa: F401  the settings
from checks import Ids
from django.core import serializers
from django.core.management import call_command
from django.db import IntegrityError, connection
from shop.models import Order


def load():
    before = Order.objects.create(item="before").pk
    rows = [Order(pk=before + ahead, item="from the fixture") for ahead in (5, 50)]
    with open("ahead.json", "w") as file:
        file.write(serializers.serialize("json", rows, fields=["item"]))
    call_command("loaddata", "ahead.json", verbosity=0)
    return rows[1].pk


last = load()
try:
    for _ in range(5):
        Order.objects.create(item="collides")
    raise AssertionError("nothing collides")
except IntegrityError:
    pass
with connection.cursor() as cursor:
    cursor.execute("SELECT * FROM leaf_sync()")
orders = Ids()
orders.of_session(Order.objects.create(item="after").pk for _ in range(20))
assert min(orders.seen) > last, orders.seen

import shop.leaf  # noqa: E402, F401

last = load()
ids = [Order.objects.create(item="after the hook").pk for _ in range(20)]
assert ids[0] == last + 1, (ids, last)
orders.of_session(ids)
statements = StringIO()
call_command("sqlsequencereset", "shop", stdout=statements)
assert "leaf_sync" in statements.getvalue(), statements.getvalue()
orders.report()
