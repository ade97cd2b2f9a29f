import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Now

import shop.models


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_leaf_id")]
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("item", models.TextField()),
                ("ordered_at", models.DateTimeField(db_default=Now())),
            ],
        ),
        migrations.CreateModel(
            name="OrderLine",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("amount", models.IntegerField(default=1)),
                ("order", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="shop.order")),
            ],
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                ("id", models.BigIntegerField(db_default=shop.models.SnowflakeId(), primary_key=True, serialize=False)),
                ("what", models.TextField()),
            ],
        ),
    ]
