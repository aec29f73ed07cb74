"""Storages of Dagster's events that write the events of a range together, in SQLite and in Postgres.

`instance_storage` imports this module where `dagster_private` has the names that it needs.
"""

from dagster_postgres import PostgresEventLogStorage

from ads_pipeline.orchestration.event_storage.event_batches import EventBatches
from ads_pipeline.orchestration.event_storage.sqlite_events import SqliteEvents


class BatchedSqliteEvents(EventBatches, SqliteEvents):
    """Storage of events in SQLite."""


class BatchedPostgresEvents(EventBatches, PostgresEventLogStorage):
    """Storage of events in Postgres."""
