"""Publishes runs in a table and takes partitions out of it, each by one commit that readers see whole or not at all.

Who may be published is asked of the caller, again right before each commit; the ledger is not known here.
"""

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
from ads_pipeline.warehouse.columns import TableColumn, columns_merged, columns_offered
from ads_pipeline.warehouse.delta_commits import (
    CommitOutcome,
    Snapshot,
    commit_columns,
    commit_files,
    create_table,
    open_table,
)
from ads_pipeline.warehouse.error_translation import callers, translated
from ads_pipeline.warehouse.file_contents import by_partition, read_contents
from ads_pipeline.warehouse.maintenance import removable, remove_paths, shorten_log, stage_packed
from ads_pipeline.warehouse.staging import Partitions, Staged, affected_files, discard, stage
from ads_pipeline.warehouse.values import DATE, Content, HeldPartition, Load, Slice, Table, TableLoadResult

MOST_TRIES: Final = 20
WEEK: Final = timedelta(days=7)
Still = Callable[[Sequence[Run]], Collection[Run]]
Doomed = Still


class Warehouse:
    """The tables below one root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def replace(
        self, spark: SparkSession, rows: DataFrame, loads: Sequence[Load], *, still: Still
    ) -> TableLoadResult:
        """Make the table hold these runs, each instead of whatever it held of its partition.

        All loads are of one table and each of another partition. A run that is held already costs no commit; one that
        `still` no longer names when the commit is due is left out. TableContended when others always came first.
        """
        table = self._table_of([load.run.key for load in loads])
        if len({load.run.key for load in loads}) < len(loads):
            raise ValueError(f"{table}: a partition can be loaded from one run at a time")
        with translated(table):
            offered = columns_offered(table, rows.schema)
            return _replace(spark, table, rows, offered, list(loads), callers(still))

    def remove(self, spark: SparkSession, keys: Sequence[PartitionKey], *, doomed: Doomed) -> int | None:
        """Take out the partitions of which the table holds a run that `doomed` names, by one commit.

        There is a commit also when nothing is to go: no load that was planned, and asked about, before it can follow
        it. None when there is no table.
        """
        table = self._table_of(keys)
        with translated(table):
            asked, ask = {(key.customer_id, key.logical_date) for key in keys}, callers(doomed)
            return _rewrite(table, lambda snapshot: _stage_removal(spark, snapshot, asked, ask))

    def optimize(self, spark: SparkSession, *, source: str, query_name: str) -> int | None:
        """Pack the days that lie in several small files into as few as fit, by one commit that changes no row.

        None when every day lies well. TableContended when loaders always came first; they lose nothing to it.
        """
        table = Table(root=self._root, source=source, query_name=query_name)
        with translated(table):
            return _rewrite(table, lambda snapshot: stage_packed(spark, snapshot))

    def plan_vacuum(self, *, source: str, query_name: str, retention: timedelta = WEEK) -> tuple[str, ...]:
        """What `vacuum` would remove now, as paths below the table."""
        table = Table(root=self._root, source=source, query_name=query_name)
        with translated(table):
            return removable(table, retention)

    def vacuum(self, *, source: str, query_name: str, retention: timedelta = WEEK) -> tuple[str, ...]:
        """Remove the files that no version within the retention names, and what loads that died left behind.

        A load that takes, or a reader that holds a version for, longer than the retention may lose its files; a
        retention under one hour is a ValueError. Old log entries go as well, once a checkpoint stands for them.
        """
        table = Table(root=self._root, source=source, query_name=query_name)
        with translated(table):
            paths = removable(table, retention)
            remove_paths(table, paths)
            shorten_log(table, retention)
            return paths

    def held(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> dict[PartitionKey, HeldPartition]:
        """What the table holds of each partition, read from the files of its newest version."""
        table = Table(root=self._root, source=source, query_name=query_name)
        days = since or date.min, until or date.max
        with translated(table):
            snapshot = open_table(table)
            if snapshot is None:
                return {}
            files = [table.absolute(file) for file in snapshot.files if days[0] <= file.day <= days[1]]
            found = by_partition(read_contents(files, (), days=days))
        return {table.key(*partition): _held(slices) for partition, slices in found.items()}

    def _table_of(self, keys: Sequence[PartitionKey]) -> Table:
        names = {(key.source, key.query_name) for key in keys}
        if len(names) != 1:
            raise ValueError("partitions of exactly one table are loaded or removed at a time")
        ((source, query_name),) = names
        return Table(root=self._root, source=source, query_name=query_name)


def _replace(
    spark: SparkSession,
    table: Table,
    rows: DataFrame,
    offered: tuple[TableColumn, ...],
    asked: list[Load],
    still: Still,
) -> TableLoadResult:
    """Plan on a version, stage, ask again, commit its successor; again on the next version when that was taken."""
    outdated: list[Run] = []
    for tried in range(MOST_TRIES):
        snapshot = _with_columns(table, offered)
        if snapshot is None:
            _pause(tried)
            continue
        wanted = [load for load in asked if load.run not in outdated]
        due = _not_held(snapshot, wanted)
        if not due:
            return TableLoadResult(table_version=snapshot.version, loads=tuple(wanted), outdated=tuple(outdated))
        partitions = _partitions(due)
        staged = stage(
            spark,
            snapshot,
            rows=_rows_of(spark, rows, due),
            loads=due,
            partitions=partitions,
            replaced=affected_files(snapshot, partitions),
        )
        named = set(still([load.run for load in due]))
        lost = [load.run for load in due if load.run not in named]
        if lost:
            outdated += lost
        elif _commit(snapshot, staged):
            return TableLoadResult(table_version=snapshot.version + 1, loads=tuple(wanted), outdated=tuple(outdated))
        discard(table, staged)
        _pause(tried)
    raise TableContended(str(table), f"others committed first {MOST_TRIES} times; load again")


def _stage_removal(
    spark: SparkSession, snapshot: Snapshot, partitions: set[tuple[str, date]], doomed: Doomed
) -> Staged:
    held = [
        Run(key=snapshot.table.key(*partition), run_id=each.run_id)
        for partition, slices in _found(snapshot, partitions).items()
        for each, _content in slices
        if partition in partitions
    ]
    going = {(run.key.customer_id, run.key.logical_date) for run in doomed(held)}
    return stage(spark, snapshot, rows=None, loads=[], partitions=going, replaced=affected_files(snapshot, going))


def _rewrite(table: Table, staged_on: Callable[[Snapshot], Staged | None]) -> int | None:
    """Commit what is staged on a version as its successor; None when there is nothing to stage."""
    for tried in range(MOST_TRIES):
        snapshot = open_table(table)
        staged = None if snapshot is None else staged_on(snapshot)
        if snapshot is None or staged is None:
            return None
        if _commit(snapshot, staged):
            return snapshot.version + 1
        discard(table, staged)
        _pause(tried)
    raise TableContended(str(table), f"others committed first {MOST_TRIES} times; try again")


def _with_columns(table: Table, offered: tuple[TableColumn, ...]) -> Snapshot | None:
    """The newest version with every offered column in it; None when it had to be made and is to be read anew."""
    snapshot = open_table(table)
    if snapshot is None:
        create_table(table, offered)
        return None
    fresh = columns_merged(table, held=snapshot.columns, offered=offered)[len(snapshot.columns) :]
    if fresh:
        commit_columns(snapshot, fresh=fresh, token=uuid.uuid4().hex)
        return None
    return snapshot


def _commit(snapshot: Snapshot, staged: Staged) -> bool:
    """Whether the next version is ours. While nobody can tell, the very same commit is tried: it can happen once."""
    token = uuid.uuid4().hex
    for tried in range(MOST_TRIES):
        outcome = commit_files(
            snapshot, removed=staged.replaced, added=staged.added, token=token, rewrite=staged.rewrite
        )
        if outcome is not CommitOutcome.UNKNOWN:
            return outcome is CommitOutcome.OURS
        _pause(tried)
    raise TableContended(str(snapshot.table), "the log takes no commit; its storage may be read-only or full")


def _rows_of(spark: SparkSession, rows: DataFrame, loads: Sequence[Load]) -> DataFrame:
    """The rows of these loads alone; others may be in the frame that are held already or lost their authority."""
    runs = [(load.run.key.customer_id, load.run.key.logical_date, load.run.run_id) for load in loads]
    wanted = spark.createDataFrame(runs, f"customer_id string, {DATE} date, run_id string")
    return rows.join(sf.broadcast(wanted), ["customer_id", DATE, "run_id"], "left_semi")


def _partitions(loads: Sequence[Load]) -> set[tuple[str, date]]:
    return {(load.run.key.customer_id, load.run.key.logical_date) for load in loads}


def _not_held(snapshot: Snapshot, loads: Sequence[Load]) -> list[Load]:
    """The loads that the table does not hold as they should be. One of no rows is held where nothing is."""
    found = _found(snapshot, _partitions(loads))
    return [load for load in loads if not _is_held(load, found)]


def _is_held(load: Load, found: dict[tuple[str, date], list[tuple[Slice, Content]]]) -> bool:
    slices = found.get((load.run.key.customer_id, load.run.key.logical_date), [])
    wanted = [(load.run.run_id, load.schema_version, load.record_count)] if load.record_count else []
    return [(each.run_id, each.schema_version, content.rows) for each, content in slices] == wanted


def _found(snapshot: Snapshot, partitions: Partitions) -> dict[tuple[str, date], list[tuple[Slice, Content]]]:
    files = affected_files(snapshot, partitions)
    return by_partition(read_contents([snapshot.table.absolute(file) for file in files], ()))


def _held(slices: Sequence[tuple[Slice, Content]]) -> HeldPartition:
    whole = len(slices) == 1
    return HeldPartition(
        run_id=slices[0][0].run_id if whole else None,
        schema_version=slices[0][0].schema_version if whole else None,
        rows=sum(content.rows for _slice, content in slices),
    )


def _pause(tried: int) -> None:
    time.sleep(random.uniform(0, min(1.0, 0.01 * 2**tried)))  # noqa: S311 - spreads the waiting
