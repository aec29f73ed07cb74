"""Names that Dagster 1.13 does not export, each with what is lost where a version of Dagster lacks it.

No other module imports a private module of Dagster. A name is looked up when it is first used, because storages bring
SQLAlchemy's engines and Alembic. `test_dagster_private` fails when a name changes its meaning, and hides each one.
"""

import importlib
import logging
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

if TYPE_CHECKING:  # so that mypy knows them; `find_name` looks them up
    from dagster._core.definitions.asset_checks.asset_check_evaluation import (
        AssetCheckEvaluationPlanned as PlannedCheck,
    )
    from dagster._core.definitions.source_asset import (
        SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION as SUPPRESS_MATERIALIZATION,
    )
    from dagster._core.launcher import CheckRunHealthResult, WorkerStatus
    from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus as CheckStatus
    from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable as CheckExecutions
    from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
    from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
    from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager
    from dagster._core.storage.root import LocalArtifactStorage
    from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
    from dagster._grpc.types import ExecuteRunArgs

__all__ = [
    "NAMES",
    "SUPPRESS_MATERIALIZATION",
    "CheckExecutions",
    "CheckRunHealthResult",
    "CheckStatus",
    "DagsterSqliteStorage",
    "ExecuteRunArgs",
    "LocalArtifactStorage",
    "LocalComputeLogManager",
    "PlannedCheck",
    "PrivateName",
    "SqlEventLogStorage",
    "SqliteEventLogStorage",
    "UnsupportedDagster",
    "WorkerStatus",
    "build_target",
    "find_name",
    "has",
    "has_batched_events",
    "instance_of",
    "load_run_command",
]

_LOG: Final = logging.getLogger(__name__)
_CHECKS: Final = "dagster._core.definitions.asset_checks.asset_check_evaluation"
_EVENTS: Final = "dagster._core.storage.event_log"

SLOW_EVENTS: Final = "events are stored one by one, so a run over 1,000 days takes about 10 CPU seconds more"
NO_COLOURS: Final = "after a run over many days, the UI shows no state of their checks"
SLOW_STARTS: Final = "each run loads its code itself, which takes seconds"
SLOW_COMMAND: Final = "each run loads Dagster's command itself, which takes half a second"
SLOW_DEATHS: Final = "a killed run is known when its lease expires, which takes minutes"
SLOW_OPENING: Final = "each process finds a class of Dagster by its defaults, which takes a second"
WRONG_DAYS: Final = "a run would report days as materialized that it has not loaded"


class UnsupportedDagster(ImportError):
    """This version of Dagster lacks a name without which results would be wrong."""


@dataclass(frozen=True, slots=True)
class PrivateName:
    """A name of Dagster, with methods of the class that are overridden or called, and what is lost without it."""

    module: str
    name: str
    loss: str
    methods: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"

    def find(self) -> Any:
        """The object, or None where Dagster does not have it as it is used here."""
        try:
            found = getattr(importlib.import_module(self.module), self.name)
        except (ImportError, AttributeError):
            return None
        return found if all(hasattr(found, method) for method in self.methods) else None


NAMES: Final = {
    # The planned evaluation of a check, which names all partitions of its run.
    "PlannedCheck": PrivateName(_CHECKS, "AssetCheckEvaluationPlanned", SLOW_EVENTS),
    # A check of a range must name the materialization that it judged, otherwise the UI shows no state.
    "TargetMaterialization": PrivateName(_CHECKS, "AssetCheckEvaluationTargetMaterializationData", NO_COLOURS),
    # Metadata key of an output for which Dagster emits no materializations of its own.
    "SUPPRESS_MATERIALIZATION": PrivateName(
        "dagster._core.definitions.source_asset", "SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION", WRONG_DAYS
    ),
    # The base classes of the storages of events, to which `event_storage` adds batches, and the table of checks.
    "CheckStatus": PrivateName(
        "dagster._core.storage.asset_check_execution_record", "AssetCheckExecutionRecordStatus", SLOW_EVENTS
    ),
    "CheckExecutions": PrivateName(f"{_EVENTS}.schema", "AssetCheckExecutionsTable", SLOW_EVENTS),
    "SqlEventLogStorage": PrivateName(
        f"{_EVENTS}.sql_event_log",
        "SqlEventLogStorage",
        SLOW_EVENTS,
        (
            "has_table",
            "index_connection",
            "index_transaction",
            "is_run_sharded",
            "prepare_insert_event",
            "run_connection",
            "store_asset_check_event",
            "store_asset_event",
            "store_asset_event_tags",
            "store_event",
            "store_event_batch",
        ),
    ),
    "SqliteEventLogStorage": PrivateName(
        f"{_EVENTS}.sqlite.sqlite_event_log", "SqliteEventLogStorage", SLOW_EVENTS, ("path_for_shard",)
    ),
    # Dagster's documentation names these classes for `dagster.yaml`. `instance_storage` sets their directory.
    "DagsterSqliteStorage": PrivateName("dagster._core.storage.sqlite_storage", "DagsterSqliteStorage", SLOW_OPENING),
    "LocalArtifactStorage": PrivateName("dagster._core.storage.root", "LocalArtifactStorage", SLOW_OPENING),
    "LocalComputeLogManager": PrivateName(
        "dagster._core.storage.local_compute_log_manager", "LocalComputeLogManager", SLOW_OPENING
    ),
    # The command that executes a run in a process of its own, and its arguments.
    "ExecuteRunArgs": PrivateName("dagster._grpc.types", "ExecuteRunArgs", SLOW_STARTS, ("get_command_args",)),
    # The answers of a launcher to run monitoring.
    "CheckRunHealthResult": PrivateName("dagster._core.launcher", "CheckRunHealthResult", SLOW_DEATHS),
    "WorkerStatus": PrivateName("dagster._core.launcher", "WorkerStatus", SLOW_DEATHS),
}
BATCHED_EVENTS: Final = (
    "PlannedCheck",
    "CheckStatus",
    "CheckExecutions",
    "SqlEventLogStorage",
    "SqliteEventLogStorage",
)
_SECTIONS: Final = {  # of the default configuration of an instance
    "DagsterSqliteStorage": "storage",
    "LocalArtifactStorage": "local_artifact_storage",
    "LocalComputeLogManager": "compute_logs",
}


def has(names: Iterable[str]) -> bool:
    """Return whether this version of Dagster has all of these names. Otherwise one warning says what is lost."""
    missing = [name for name in names if NAMES[name].find() is None]
    if missing:
        _warn(NAMES[missing[0]])
    return not missing


def has_batched_events() -> bool:
    """Return whether events can be stored together."""
    return has(BATCHED_EVENTS)


def build_target(storage_id: int, run_id: str, timestamp: float | None = None) -> Any | None:
    """The materialization that a check judged, for its evaluation."""
    if not has(["TargetMaterialization"]):
        return None
    at = time.time() if timestamp is None else timestamp
    return NAMES["TargetMaterialization"].find()(storage_id=storage_id, run_id=run_id, timestamp=at)


def instance_of(launcher: dg.DefaultRunLauncher) -> dg.DagsterInstance | None:
    """The instance that a launcher belongs to, which Dagster gives only to derived classes."""
    if not launcher.has_instance:
        return None
    instance: dg.DagsterInstance | None = getattr(launcher, "_instance", None)
    if instance is None:
        _warn(PrivateName("dagster.DefaultRunLauncher", "_instance", SLOW_STARTS))
    return instance


def load_run_command() -> None:
    """Load the module of the command that executes a run; where it has another name, the run itself loads it."""
    try:
        importlib.import_module("dagster._cli.api")
    except ImportError:
        _warn(PrivateName("dagster._cli", "api", SLOW_COMMAND))


def find_name(name: str) -> Any:
    """One of the names. Raises UnsupportedDagster where there is none, and nothing can stand for it."""
    if name not in NAMES:
        raise AttributeError(name)
    private = NAMES[name]
    found = private.find()
    if found is None and name in _SECTIONS:
        _warn(private)
        return _find_default(_SECTIONS[name])
    if found is None:
        raise UnsupportedDagster(
            f"Dagster {dg.__version__} has no {private.path}, which ads_pipeline needs: otherwise {private.loss}. "
            "Install a version that has it: pip install 'dagster==1.13.*'"
        )
    return found


if not TYPE_CHECKING:  # mypy would take each name for one of any type
    __getattr__ = find_name


@cache
def _find_default(section: str) -> Any:
    """The class that Dagster takes by default for a section of its configuration."""
    with tempfile.TemporaryDirectory() as directory, dg.DagsterInstance.from_config(directory) as instance:
        default: Any = instance.get_ref().config_defaults(directory)[section]
        return type(default.rehydrate())


@cache
def _warn(private: PrivateName) -> None:
    _LOG.warning("Dagster %s has no %s: %s", dg.__version__, private.path, private.loss)
