"""What Django's test runner does around tests: rollbacks, TRUNCATE, fixtures, copies of the database."""

from django.db import connection
from django.test import TestCase, TransactionTestCase

from shop.models import Order


class InATransaction(TestCase):
    def test_ids_come(self):
        first, second = Order.objects.create(item="tea"), Order.objects.create(item="cake")
        self.assertGreater(second.pk, first.pk)

    def test_they_are_not_reset(self):
        self.assertGreater(Order.objects.create(item="tea").pk, 0)


class WithTruncate(TransactionTestCase):
    # Django asks for a sequence here, and there is none.
    reset_sequences = True

    def test_ids_come(self):
        self.assertEqual(Order.objects.count(), 0)
        ids = [Order.objects.create(item=str(i)).pk for i in range(10)]
        self.assertEqual(ids, sorted(set(ids)))

    def test_the_tables_of_leaf_id_are_left_alone(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM leaf_id.leaf_alloc")
            self.assertEqual(cursor.fetchone(), (4,))


class WithFixtures(TestCase):
    fixtures = ["orders.json"]

    def test_they_are_there(self):
        self.assertEqual(Order.objects.get(pk=20002).item, "cake")
