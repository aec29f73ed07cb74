"""Dagster storage classes that keep Dagster's records below ADS_PIPELINE_HOME or in Postgres.

`dagster.yaml` names these classes, because its own environment variables have no default values.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import sqlalchemy as sa
from dagster_postgres import DagsterPostgresStorage

from ads_pipeline.lake.storage.durable_files import leave_access_to_umask, make_durable_directories
from ads_pipeline.ledger.sql.postgres_connection import bounded_url
from ads_pipeline.orchestration.event_storage import dagster_private
from ads_pipeline.orchestration.event_storage.batching import MAX_BATCH
from ads_pipeline.orchestration.event_storage.dagster_private import (
    DagsterSqliteStorage,
    LocalArtifactStorage,
    LocalComputeLogManager,
)
from ads_pipeline.settings.environment import read_settings

# Dagster reads it only from the environment, and batches planned events and its own materializations by it.
BATCH_SIZE: Final = ("DAGSTER_EVENT_BATCH_SIZE", str(MAX_BATCH))
SCHEMA: Final = "dagster_records"  # the ledger and Dagster both have a table named runs
SECONDS_TO_CONNECT_AGAIN: Final = (0.2, 0.4, 0.8, 1.6, 3.2)  # while Postgres starts


class _NoOptions:
    """A class that `dagster.yaml` names without options."""

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {}


class _BatchesEvents:
    """A storage whose events of a range are stored together, where Dagster has the names that this needs."""

    _batched: tuple[str, str]  # the class in `event_batches`, and its location

    @cached_property
    def event_log_storage(self) -> Any:
        if not dagster_private.has_batched_events():
            return super().event_log_storage  # type: ignore[misc] # of Dagster's storage
        from ads_pipeline.orchestration.event_storage import event_batches  # noqa: PLC0415 - only with the names

        name, location = self._batched
        return getattr(event_batches, name)(location)


class PostgresStorage(_BatchesEvents, DagsterPostgresStorage):
    """Storage of runs, events and ticks in Postgres."""

    def __init__(self, url: str, inst_data: Any) -> None:
        super().__init__(url, should_autocreate_tables=True, inst_data=inst_data)
        self._batched = "BatchedPostgresEvents", url


class InstanceStorage(_NoOptions, _BatchesEvents, DagsterSqliteStorage):
    """Storage of runs, events and ticks in SQLite, or in Postgres when ADS_PIPELINE_DATABASE_URL is set."""

    def __init__(self, base_dir: str, inst_data: Any = None) -> None:
        super().__init__(base_dir, inst_data)
        self._batched = "BatchedSqliteEvents", f"{base_dir}/history/runs"

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
def _creation_lock(url: str) -> Iterator[sa.Connection]:
    """One process after the other: Dagster takes its tables for complete when it sees the first of them."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with _connect(engine) as connection, connection.begin():
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock(hashtext('{SCHEMA}'))")
        yield connection


def _connect(engine: sa.Engine) -> sa.Connection:
    for seconds in SECONDS_TO_CONNECT_AGAIN:
        try:
            return engine.connect()
        except sa.exc.OperationalError:
            time.sleep(seconds)
    return engine.connect()


def _prepare_database(url: str) -> str:
    """Create Dagster's schema if needed, and return a URL whose search path is this schema only."""
    with _creation_lock(_bounded(url)) as connection:
        # Check first: IF NOT EXISTS requires the CREATE privilege even when the schema exists.
        if connection.exec_driver_sql(f"SELECT to_regnamespace('{SCHEMA}')").scalar() is None:
            connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")
        used = connection.engine.url
    # The option is part of the URL, because the webserver creates its own engines from the URL.
    options = f"{used.query.get('options', '')} -c search_path={SCHEMA}".strip()
    return used.update_query_dict({"options": options}).render_as_string(hide_password=False)
