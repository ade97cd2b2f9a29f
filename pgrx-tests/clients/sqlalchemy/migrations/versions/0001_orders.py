"""A tag, its table and the first row in one transaction."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade():
    op.execute("SELECT leaf_tag_create('orders')")
    op.create_table(
        "orders",
        sa.Column(
            "id", sa.BigInteger, primary_key=True, server_default=sa.text("leaf_segment_next('orders'::text)")
        ),
        sa.Column("item", sa.String, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger, primary_key=True, server_default=sa.text("leaf_snowflake_next()")),
        sa.Column("what", sa.String, nullable=False),
    )
    op.execute("INSERT INTO orders (item) VALUES ('tea')")


def downgrade():
    op.drop_table("events")
    op.drop_table("orders")
    op.execute("SELECT leaf_tag_drop('orders')")
