"""Django: moves each serial and identity column to a tag of leaf_id, at the end of each `migrate`.

Copy it next to manage.py, and list "leaf_id_hook.LeafIdHook" last in INSTALLED_APPS. The role that
migrates owns the tables, and needs SELECT, INSERT, UPDATE and DELETE on leaf_id.leaf_alloc, and USAGE
on schema leaf_id WITH GRANT OPTION, as the role has that installed the extension. A column that cannot
be moved keeps its sequence, and the output says why (with psycopg 3).
"""

from django.apps import AppConfig, apps
from django.db import connections
from django.db.models.signals import post_migrate

ADOPT = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'leaf_id') THEN
        CALL leaf_adopt_all(current_schema());
    END IF;
END
$$
"""


def show(notice):
    """A notice of psycopg 3."""
    print(*filter(None, [notice.message_primary, notice.message_detail, notice.message_hint]), sep="\n  ")


def adopt(*, using, verbosity, **_):
    """A receiver of post_migrate. Outside of a transaction, each table is moved in one of its own."""
    if connections[using].vendor != "postgresql":
        return
    with connections[using].cursor() as cursor:
        shows = verbosity > 0 and hasattr(cursor.connection, "add_notice_handler")
        if shows:
            cursor.connection.add_notice_handler(show)
        cursor.execute(ADOPT)
        if shows:
            cursor.connection.remove_notice_handler(show)


class LeafIdHook(AppConfig):
    """The hook, as an application without models."""

    name = "leaf_id_hook"

    def ready(self):
        """Django sends the signal for each application that has models: the last one is enough."""
        last = [app for app in apps.get_app_configs() if app.models_module][-1]
        post_migrate.connect(adopt, sender=last)
