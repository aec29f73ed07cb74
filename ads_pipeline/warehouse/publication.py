"""Publishes runs in Delta tables and removes partitions from them; each commit is atomic for readers.

The ledger is not known here. The caller passes callbacks that select the runs to publish or remove, and they are
called again before each commit.
"""

import logging
import random
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.errors import TableContended
from ads_pipeline.log_events import LogEvent, log_event
from ads_pipeline.warehouse.columns import TableColumn, find_new_columns, read_spark_columns
from ads_pipeline.warehouse.delta_commits import (
    CommitOutcome,
    TableSnapshot,
    commit_columns,
    commit_files,
    create_table,
    delete_old_log_entries,
    open_table,
)
from ads_pipeline.warehouse.error_translation import translate_errors, without_translation
from ads_pipeline.warehouse.file_contents import group_by_partition, read_slices
from ads_pipeline.warehouse.maintenance import find_removable_paths, remove_paths, stage_compaction
from ads_pipeline.warehouse.staging import Partitions, StagedFiles, delete_staged, find_affected_files, stage_files
from ads_pipeline.warehouse.values import DATE_COLUMN, HeldPartition, Load, Slice, TableLoadResult, WarehouseTable

_LOG: Final = logging.getLogger(__name__)

MAX_COMMIT_ATTEMPTS: Final = 20
DEFAULT_RETENTION: Final = timedelta(days=7)
RunFilter = Callable[[Sequence[Run]], Collection[Run]]  # returns those of the runs that meet the condition


class Warehouse:
    """The Delta tables below one root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def replace(
        self, spark: SparkSession, rows: DataFrame, loads: Sequence[Load], *, is_publishable: RunFilter
    ) -> TableLoadResult:
        """Replace each partition with the rows of its run, in one commit.

        All loads belong to one table, and each to another partition. Runs that the table already holds are not
        rewritten. `is_publishable` is called right before the commit, and the runs that it does not return are
        skipped. Raises TableContended after 20 lost races.
        """
        table = self._find_table([load.run.key for load in loads])
        if len({load.run.key for load in loads}) < len(loads):
            raise ValueError(f"{table}: a partition can be loaded from only one run at a time")
        with translate_errors(table):
            columns = read_spark_columns(table, rows.schema)
            return _replace(spark, table, rows, columns, loads, without_translation(is_publishable))

    def remove(self, spark: SparkSession, keys: Sequence[PartitionKey], *, is_removable: RunFilter) -> int | None:
        """Remove those of the partitions that hold a run which `is_removable` returns. Gives the new version.

        Commits even when nothing is to be removed, so that loads which were planned earlier have to check
        `is_publishable` again. Returns None when there is no table.
        """
        table = self._find_table(keys)
        partitions = {(key.customer_id, key.logical_date) for key in keys}
        with translate_errors(table):
            select = without_translation(is_removable)
            return _rewrite(table, lambda snapshot: _stage_removal(spark, snapshot, partitions, select))

    def optimize(self, start_spark: Callable[[], SparkSession], *, source: str, query_name: str) -> int | None:
        """Compact the days that have several small files, in one commit that changes no row. Gives the new version.

        Returns None when there is nothing to compact; then Spark is not started. Raises TableContended after 20 lost
        races; loads go first.
        """
        table = WarehouseTable(root=self._root, source=source, query_name=query_name)
        with translate_errors(table):
            return _rewrite(table, lambda snapshot: stage_compaction(start_spark, snapshot))

    def vacuum(self, *, source: str, query_name: str, retention: timedelta = DEFAULT_RETENTION) -> tuple[str, ...]:
        """Remove files that no version within the retention refers to, leftovers of dead loads and old log entries.

        Returns the removed paths. Loads and readers must finish within the retention. Raises ValueError for a
        retention under one hour.
        """
        table = WarehouseTable(root=self._root, source=source, query_name=query_name)
        with translate_errors(table):
            paths = find_removable_paths(table, retention)
            remove_paths(table, paths)
            snapshot = open_table(table)
            if snapshot is not None:
                delete_old_log_entries(snapshot, retention)
            return paths

    def read_held_partitions(
        self, *, source: str, query_name: str, since: date = date.min, until: date = date.max
    ) -> dict[PartitionKey, HeldPartition]:
        """What the newest version of the table holds of each partition, counted in its files."""
        table = WarehouseTable(root=self._root, source=source, query_name=query_name)
        with translate_errors(table):
            snapshot = open_table(table)
            if snapshot is None:
                return {}
            files = [table.absolute_path(file) for file in snapshot.files if since <= file.day <= until]
            slices_by_partition = group_by_partition(read_slices(files, (), days=(since, until)))
        return {table.partition_key(*key): _summarize(slices) for key, slices in slices_by_partition.items()}

    def _find_table(self, keys: Sequence[PartitionKey]) -> WarehouseTable:
        names = {(key.source, key.query_name) for key in keys}
        if len(names) != 1:
            raise ValueError("all partitions of one call must belong to one table")
        ((source, query_name),) = names
        return WarehouseTable(root=self._root, source=source, query_name=query_name)


def _replace(
    spark: SparkSession,
    table: WarehouseTable,
    rows: DataFrame,
    columns: tuple[TableColumn, ...],
    requested: Sequence[Load],
    is_publishable: RunFilter,
) -> TableLoadResult:
    """Stage on the newest version, check the runs, and commit. Repeat all of it when another commit came first."""
    superseded: list[Run] = []
    for attempt in range(MAX_COMMIT_ATTEMPTS):
        snapshot = _open_with_columns(table, columns)
        if snapshot is None:
            _pause(attempt)
            continue
        loads = tuple(load for load in requested if load.run not in superseded)
        missing = _find_missing(snapshot, loads)
        if not missing:
            return TableLoadResult(table_version=snapshot.version, loads=loads, superseded=tuple(superseded))
        partitions = {load.partition for load in missing}
        staged = stage_files(
            spark,
            snapshot,
            rows=_select_rows(spark, rows, missing),
            loads=missing,
            partitions=partitions,
            replaced=find_affected_files(snapshot, partitions),
        )
        publishable = set(is_publishable([load.run for load in missing]))
        refused = [load.run for load in missing if load.run not in publishable]
        if refused:
            superseded += refused
        elif _commit(snapshot, staged):
            return TableLoadResult(table_version=snapshot.version + 1, loads=loads, superseded=tuple(superseded))
        delete_staged(table, staged)
        log_event(_LOG, LogEvent.COMMIT_RETRIED, table=table, attempt=attempt + 1)
        _pause(attempt)
    raise TableContended(str(table), f"others committed first {MAX_COMMIT_ATTEMPTS} times; load again")


def _stage_removal(
    spark: SparkSession, snapshot: TableSnapshot, partitions: set[tuple[str, date]], is_removable: RunFilter
) -> StagedFiles:
    runs = [
        Run(key=snapshot.table.partition_key(*partition), run_id=part.run_id)
        for partition, slices in _read_slices(snapshot, partitions).items()
        for part in slices
        if partition in partitions
    ]
    removed = {(run.key.customer_id, run.key.logical_date) for run in is_removable(runs)}
    replaced = find_affected_files(snapshot, removed)
    return stage_files(spark, snapshot, rows=None, loads=[], partitions=removed, replaced=replaced)


def _rewrite(table: WarehouseTable, stage: Callable[[TableSnapshot], StagedFiles | None]) -> int | None:
    """Stage on the newest version and commit, again after a lost race. None when there is nothing to stage."""
    for attempt in range(MAX_COMMIT_ATTEMPTS):
        snapshot = open_table(table)
        staged = None if snapshot is None else stage(snapshot)
        if snapshot is None or staged is None:
            return None
        if _commit(snapshot, staged):
            return snapshot.version + 1
        delete_staged(table, staged)
        _pause(attempt)
    raise TableContended(str(table), f"others committed first {MAX_COMMIT_ATTEMPTS} times; try again")


def _open_with_columns(table: WarehouseTable, columns: tuple[TableColumn, ...]) -> TableSnapshot | None:
    """The newest version with all these columns. None after the table or columns were created: then open it again."""
    snapshot = open_table(table)
    if snapshot is None:
        create_table(table, columns)
        return None
    new = find_new_columns(table, existing=snapshot.columns, incoming=columns)
    if new:
        commit_columns(snapshot, new=new, token=uuid.uuid4().hex)
        return None
    return snapshot


def _commit(snapshot: TableSnapshot, staged: StagedFiles) -> bool:
    """Whether this commit became the next version. Repeats the same commit while its outcome is unknown.

    Repeating is safe, because only one commit can become the next version.
    """
    token = uuid.uuid4().hex
    for attempt in range(MAX_COMMIT_ATTEMPTS):
        outcome = commit_files(
            snapshot, removed=staged.replaced, added=staged.added, token=token, rewrite=staged.rewrite
        )
        if outcome is not CommitOutcome.UNKNOWN:
            return outcome is CommitOutcome.COMMITTED
        _pause(attempt)
    raise TableContended(str(snapshot.table), "cannot write to the log; its storage may be read-only or full")


def _select_rows(spark: SparkSession, rows: DataFrame, loads: Sequence[Load]) -> DataFrame:
    """The rows of these loads. The frame may also have rows of runs that are held already or are superseded."""
    runs = [(*load.partition, load.run.run_id) for load in loads]
    selected = spark.createDataFrame(runs, f"customer_id string, {DATE_COLUMN} date, run_id string")
    return rows.join(sf.broadcast(selected), ["customer_id", DATE_COLUMN, "run_id"], "left_semi")


def _find_missing(snapshot: TableSnapshot, loads: Sequence[Load]) -> list[Load]:
    """The loads that the table does not hold yet. A load without rows is held if its partition has no rows."""
    slices_by_partition = _read_slices(snapshot, {load.partition for load in loads})
    return [load for load in loads if not _is_held(load, slices_by_partition.get(load.partition, []))]


def _is_held(load: Load, slices: Sequence[Slice]) -> bool:
    expected = [(load.run.run_id, load.schema_version, load.record_count)] if load.record_count else []
    return [(part.run_id, part.schema_version, part.rows) for part in slices] == expected


def _read_slices(snapshot: TableSnapshot, partitions: Partitions) -> dict[tuple[str, date], list[Slice]]:
    files = find_affected_files(snapshot, partitions)
    return group_by_partition(read_slices([snapshot.table.absolute_path(file) for file in files], ()))


def _summarize(slices: Sequence[Slice]) -> HeldPartition:
    only = slices[0] if len(slices) == 1 else None
    return HeldPartition(
        run_id=only.run_id if only else None,
        schema_version=only.schema_version if only else None,
        rows=sum(part.rows for part in slices),
    )


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0, min(1.0, 0.01 * 2**attempt)))  # noqa: S311 - jitter between competing loaders
