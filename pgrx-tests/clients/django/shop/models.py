"""Orders with segment ids in Django's own kind of key, events with snowflake ids."""

from django.db import models
from django.db.models.functions import Now


class SnowflakeId(models.Func):
    """leaf_snowflake_next()."""

    function = "leaf_snowflake_next"
    output_field = models.BigIntegerField()


class Order(models.Model):
    item = models.TextField()
    ordered_at = models.DateTimeField(db_default=Now())


class OrderLine(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE)
    amount = models.IntegerField(default=1)


class Event(models.Model):
    id = models.BigIntegerField(primary_key=True, db_default=SnowflakeId())
    what = models.TextField()


class Invoice(models.Model):
    total = models.IntegerField()
