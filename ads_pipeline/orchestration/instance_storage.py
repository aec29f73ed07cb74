"""Keeps Dagster's own records below the home, or in the Postgres that the settings name.

`dagster.yaml` names these classes: it can require a variable, but cannot say what holds when one is not set. What
the product itself remembers is kept by `ledger`.
"""

import os
from typing import Any, Final

from dagster._config.config_schema import UserConfigSchema
from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager
from dagster._core.storage.root import LocalArtifactStorage
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._serdes import ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage
from dagster_postgres.utils import create_pg_connection, create_pg_engine, retry_pg_creation_fn

from ads_pipeline.settings import Settings, read_settings

SCHEMA: Final = "dagster_records"  # the ledger and Dagster both have a table named runs


class InstanceStorage(DagsterSqliteStorage):
    """Runs, events and ticks: in SQLite, or in Postgres when there is one."""

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, _config_value: Any) -> Any:
        """The storage that the settings ask for, Postgres's class included; BadSettings lists their mistakes."""
        settings = read_settings(os.environ)
        if settings.postgres_url is None:
            return cls.from_local(_directory(settings), inst_data=inst_data)
        url = _prepared(settings.postgres_url)
        return DagsterPostgresStorage(url, should_autocreate_tables=True, inst_data=inst_data)


class ArtifactStorage(LocalArtifactStorage):
    """The folder for whatever Dagster keeps as files."""

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, _config_value: Any) -> "ArtifactStorage":
        return cls(_directory(read_settings(os.environ)), inst_data=inst_data)


class ComputeLogs(LocalComputeLogManager):
    """What steps print."""

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, _config_value: Any) -> "ComputeLogs":
        return cls(f"{_directory(read_settings(os.environ))}/storage", inst_data=inst_data)


def _directory(settings: Settings) -> str:
    return str(settings.home / "dagster")


def _prepared(url: str) -> str:
    """The same database's address, with Dagster's schema as the only one that is looked into. The schema exists."""
    engine = create_pg_engine(url, isolation_level="AUTOCOMMIT")

    def create_schema() -> None:
        with create_pg_connection(engine) as connection:
            # Looked for first: IF NOT EXISTS needs the right to create even where there is nothing to create.
            if connection.exec_driver_sql(f"SELECT to_regnamespace('{SCHEMA}')").scalar() is None:
                connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")

    try:
        retry_pg_creation_fn(create_schema)  # of two that create it at once, Postgres lets one fail
    finally:
        engine.dispose()
    # In the address, because the webserver makes engines of its own from it.
    options = f"{engine.url.query.get('options', '')} -c search_path={SCHEMA}".strip()
    return engine.url.update_query_dict({"options": options}).render_as_string(hide_password=False)
