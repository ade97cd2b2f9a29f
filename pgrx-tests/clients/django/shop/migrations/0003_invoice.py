from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("shop", "0002_initial")]
    operations = [
        # Undone last: the tag goes after its table.
        migrations.RunSQL(migrations.RunSQL.noop, "SELECT leaf_tag_drop('shop_invoice')"),
        migrations.CreateModel(
            name="Invoice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("total", models.IntegerField()),
            ],
        ),
    ]
