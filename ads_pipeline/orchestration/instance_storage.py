"""Dagster storage classes that keep Dagster's records below ADS_PIPELINE_HOME or in Postgres.

`dagster.yaml` names these classes, because its own environment variables have no default values.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dagster_postgres import DagsterPostgresStorage, PostgresEventLogStorage
from dagster_postgres.utils import create_pg_connection, create_pg_engine, retry_pg_creation_fn

from ads_pipeline.ledger.postgres_connection import bounded_url
from ads_pipeline.orchestration.event_storage.dagster_private_storages import (
    SQLITE_MODULES,
    DagsterSqliteStorage,
    LocalArtifactStorage,
    LocalComputeLogManager,
)
from ads_pipeline.orchestration.event_storage.event_batches import MAX_BATCH, EventBatches
from ads_pipeline.orchestration.event_storage.sqlite_events import SqliteEvents
from ads_pipeline.settings import read_settings, sqlite_url
from ads_pipeline.storage.durable_files import leave_access_to_umask, make_durable_directories

# Dagster reads it only from the environment, and batches planned events and its own materializations by it.
BATCH_SIZE: Final = ("DAGSTER_EVENT_BATCH_SIZE", str(MAX_BATCH))
SCHEMA: Final = "dagster_records"  # the ledger and Dagster both have a table named runs


def _sqlite_url(directory: str, name: str) -> str:
    return sqlite_url(Path(directory).absolute() / f"{name}.db")


for module in SQLITE_MODULES:  # Dagster would open another file when the path contains ? or %
    vars(module)["create_db_conn_string"] = _sqlite_url


class _NoOptions:
    """A class that `dagster.yaml` names without options."""

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {}


class BatchedSqliteEvents(EventBatches, SqliteEvents):
    """Storage of events in SQLite."""


class BatchedPostgresEvents(EventBatches, PostgresEventLogStorage):
    """Storage of events in Postgres."""


class PostgresStorage(DagsterPostgresStorage):
    """Storage of runs, events and ticks in Postgres."""

    def __init__(self, url: str, inst_data: Any) -> None:
        super().__init__(url, should_autocreate_tables=True, inst_data=inst_data)
        self._events = BatchedPostgresEvents(url)

    @property
    def event_log_storage(self) -> BatchedPostgresEvents:
        return self._events


class InstanceStorage(_NoOptions, DagsterSqliteStorage):
    """Storage of runs, events and ticks in SQLite, or in Postgres when ADS_PIPELINE_DATABASE_URL is set."""

    def __init__(self, base_dir: str, inst_data: Any = None) -> None:
        super().__init__(base_dir, inst_data)
        self._events = BatchedSqliteEvents(f"{base_dir}/history/runs")

    @property
    def event_log_storage(self) -> BatchedSqliteEvents:
        return self._events

    @classmethod
    def from_config_value(cls, inst_data: Any, _config_value: Any) -> Any:
        """Return SQLite or Postgres storage. Raises BadSettings with all mistakes in the settings."""
        settings = read_settings(os.environ)
        os.environ.setdefault(*BATCH_SIZE)
        if settings.postgres_url is None:
            return cls.from_local(_directory(), inst_data=inst_data)
        url = _prepare_database(settings.postgres_url)
        with _creation_lock(url):
            return PostgresStorage(url, inst_data)


class ArtifactStorage(_NoOptions, LocalArtifactStorage):
    """Storage of Dagster's artifact files."""

    @classmethod
    def from_config_value(cls, inst_data: Any, _config_value: Any) -> "ArtifactStorage":
        return cls(_directory(), inst_data=inst_data)


class ComputeLogs(_NoOptions, LocalComputeLogManager):
    """Storage of the output of steps."""

    @classmethod
    def from_config_value(cls, inst_data: Any, _config_value: Any) -> "ComputeLogs":
        return cls(f"{_directory()}/storage", inst_data=inst_data)


def _directory() -> str:
    """The directory of Dagster's records. Only its owner may enter it, because Dagster's files are open to all."""
    settings = read_settings(os.environ)
    leave_access_to_umask(leave=settings.access_by_umask)
    directory = settings.home / "dagster"
    make_durable_directories(directory)
    return str(directory)


def _bounded(url: str) -> str:
    """The URL with the driver whose connections have limits. Dagster's storages create engines from it."""
    return bounded_url(url).render_as_string(hide_password=False)


@contextmanager
def _creation_lock(url: str) -> Iterator[None]:
    """One process after the other: Dagster takes its tables for complete when it sees the first of them."""
    engine = create_pg_engine(url)
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock(hashtext('{SCHEMA}'))")
            yield
    finally:
        engine.dispose()


def _prepare_database(url: str) -> str:
    """Create Dagster's schema if needed, and return a URL whose search path is this schema only."""
    engine = create_pg_engine(_bounded(url), isolation_level="AUTOCOMMIT")

    def create_schema() -> None:
        with create_pg_connection(engine) as connection:
            # Check first: IF NOT EXISTS requires the CREATE privilege even when the schema exists.
            if connection.exec_driver_sql(f"SELECT to_regnamespace('{SCHEMA}')").scalar() is None:
                connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")

    try:
        retry_pg_creation_fn(create_schema)  # concurrent CREATE SCHEMA IF NOT EXISTS can fail on Postgres
    finally:
        engine.dispose()
    # The option is part of the URL, because the webserver creates its own engines from the URL.
    options = f"{engine.url.query.get('options', '')} -c search_path={SCHEMA}".strip()
    return engine.url.update_query_dict({"options": options}).render_as_string(hide_password=False)
