"""Names of Dagster's storages that Dagster 1.13 does not export, each with its use here.

They stand apart from `dagster_private`, because with them come SQLAlchemy's engines and Alembic.
"""

from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

# The base class of all SQL storages of events, to which `event_batches` adds batches, and the table of checks.
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable as CheckExecutions
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage

# These modules build the URLs of SQLite files from unquoted paths. `instance_storage` replaces the function.
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage

# Dagster's documentation names these classes for `dagster.yaml` by their path. `instance_storage` sets the directory.
from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager
from dagster._core.storage.root import LocalArtifactStorage
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage

SQLITE_MODULES = (sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage)

__all__ = [
    "SQLITE_MODULES",
    "AssetCheckExecutionRecordStatus",
    "CheckExecutions",
    "DagsterSqliteStorage",
    "LocalArtifactStorage",
    "LocalComputeLogManager",
    "SqlEventLogStorage",
    "SqliteEventLogStorage",
]
