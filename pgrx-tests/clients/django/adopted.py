"""Migrations with Django's own keys, and the hook of packaging/hooks: forward, back, forward, and with nothing to do."""

from contextlib import redirect_stdout
from io import StringIO

import manage  # noqa: F401  the settings
from checks import Ids
from django.core.management import call_command
from django.db import connection
from shop.models import Invoice


def migrate(migration=()):
    """What it prints, and the default of each column."""
    printed = StringIO()
    with redirect_stdout(printed):
        call_command("migrate", *migration, no_color=True)
    with connection.cursor() as cursor:
        # Each has a new oid when it is set.
        cursor.execute("SELECT adrelid::regclass::text, oid, pg_get_expr(adbin, adrelid) FROM pg_attrdef")
        return printed.getvalue(), sorted(cursor.fetchall())


def adopted(defaults):
    return {table for table, _, default in defaults if default.startswith("leaf_segment_next(")}


at_first = {"django_migrations", "shop_order", "shop_orderline"}
printed, defaults = migrate(["shop", "0002"])
assert adopted(defaults) == at_first, defaults
assert printed.count('takes its ids from tag "shop_order"') == 1, printed
printed, defaults = migrate()
assert adopted(defaults) == at_first | {"shop_invoice"}, defaults
assert "shop_order" not in printed, printed
first = Ids()
first.of_session(Invoice.objects.create(total=i).pk for i in range(20))
_, defaults = migrate(["shop", "0002"])
assert adopted(defaults) == at_first, defaults

_, defaults = migrate()
assert adopted(defaults) == at_first | {"shop_invoice"}, defaults
invoices = Ids()
invoices.of_session(invoice.pk for invoice in Invoice.objects.bulk_create(Invoice(total=i) for i in range(100)))
assert migrate()[1] == defaults
invoices.report()
