"""Imported by an AppConfig's ready(): what resets sequences, as loaddata and sqlsequencereset do, fits tags, too."""

from django.db.backends.postgresql.operations import DatabaseOperations

_sequence_reset_sql = DatabaseOperations.sequence_reset_sql


def sequence_reset_sql(self, style, model_list):
    return ["SELECT leaf_sync();", *_sequence_reset_sql(self, style, model_list)]


DatabaseOperations.sequence_reset_sql = sequence_reset_sql
