"""Publishes runs in Delta tables and removes partitions from them; each commit is atomic for readers.

The ledger is not known here. The caller passes callbacks that select the runs to publish or remove, and they are
called again before each commit.
"""

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Final

from ads_pipeline.domain.errors import FilesDamaged, TableContended
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.warehouse.columns import TableColumn, find_new_columns, make_columns
from ads_pipeline.lake.warehouse.commit_races import MAX_COMMIT_ATTEMPTS, pause
from ads_pipeline.lake.warehouse.delta_commits import (
    CommitOutcome,
    TableSnapshot,
    commit_columns,
    commit_files,
    create_table,
    delete_old_log_entries,
    open_table,
)
from ads_pipeline.lake.warehouse.error_translation import translate_errors, without_translation
from ads_pipeline.lake.warehouse.file_contents import group_by_partition, read_slices
from ads_pipeline.lake.warehouse.file_damage import DamagedFile, find_missing_or_cut
from ads_pipeline.lake.warehouse.log_statistics import find_column_statistics, open_for_writing, remove_statistics
from ads_pipeline.lake.warehouse.maintenance import find_removable_paths, plan_compaction, remove_paths
from ads_pipeline.lake.warehouse.staging import (
    NextFiles,
    Partitions,
    StartSpark,
    delete_files,
    find_affected_files,
    prepare_compaction,
    prepare_replacement,
)
from ads_pipeline.lake.warehouse.table_values import (
    REMOVAL_PREFIX,
    DataFile,
    HeldPartition,
    Slice,
    StagedFile,
    TableLoadResult,
    WarehouseTable,
)

_LOG: Final = logging.getLogger(__name__)

DEFAULT_RETENTION: Final = timedelta(days=7)
RunFilter = Callable[[Sequence[Run]], Collection[Run]]  # returns those of the runs that meet the condition
StageRows = Callable[[Sequence[SealedRun]], Sequence[StagedFile]]  # leaves out runs that are unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldContent:
    """The content of a table: its partitions, without those in the damaged files."""

    partitions: Mapping[PartitionKey, HeldPartition] = field(default_factory=dict)
    damaged: tuple[DamagedFile, ...] = ()


class Warehouse:
    """The Delta tables below one root."""

    def __init__(self, location: str) -> None:
        self._location = location

    def replace(
        self,
        start_spark: StartSpark,
        loads: Sequence[SealedRun],
        staged: Sequence[StagedFile],
        *,
        stage: StageRows,
        columns: Mapping[str, str],
        is_publishable: RunFilter,
        dropped: Collection[str] = (),
    ) -> TableLoadResult:
        """Replace each partition with the rows of its run, in one commit.

        `dropped` are the paths of damaged files: the commit removes them, and none of their rows is carried over.
        FilesDamaged is raised for other damaged files that may hold one of the partitions.
        `staged` are the files that hold rows of the runs already; `stage` is called for runs that the table lacks and
        that are not staged. `columns` gives the type of each column. Staged files that are not adopted are deleted.

        All loads belong to one table, and each to another partition. Runs that the table already holds are not
        rewritten. `is_publishable` is called right before the commit, and the runs that it does not return are
        skipped. `start_spark` is called only for large files. Raises TableContended after 20 lost races.
        """
        table = self._find_table([load.run.key for load in loads])
        if len({load.run.key for load in loads}) < len(loads):
            raise ValueError(f"{table}: a partition can be loaded from only one run at a time")
        with translate_errors(table):
            plan = _Replacement(
                table=table,
                columns=make_columns(table, columns),
                loads=tuple(loads),
                stage=without_translation(stage),
                is_publishable=without_translation(is_publishable),
                dropped=frozenset(dropped),
            )
            return _replace(start_spark, plan, list(staged))

    def table(self, source: str, query_name: str) -> WarehouseTable:
        return WarehouseTable(location=self._location, source=source, query_name=query_name)

    def discard(self, source: str, query_name: str, staged: Iterable[StagedFile]) -> None:
        """Delete staged files that are not to be published."""
        table = self.table(source, query_name)
        with translate_errors(table):
            delete_files(table, staged)

    def remove(self, start_spark: StartSpark, keys: Sequence[PartitionKey], *, is_removable: RunFilter) -> int | None:
        """Remove those of the partitions that hold a run which `is_removable` returns. Gives the new version.

        Commits even when nothing is to be removed, so that loads which were planned earlier have to check
        `is_publishable` again. `start_spark` is called only for large files. Returns None when there is no table.
        """
        table = self._find_table(keys)
        partitions = {(key.customer_id, key.logical_date) for key in keys}
        with translate_errors(table):
            select = without_translation(is_removable)
            return _rewrite(table, lambda snapshot: _prepare_removal(start_spark, snapshot, partitions, select))

    def optimize(self, start_spark: StartSpark, *, source: str, query_name: str) -> int | None:
        """Compact the days that have several small files, in one commit that changes no row. Gives the new version.

        Returns None when there is nothing to compact. `start_spark` is called only for large files. Raises
        TableContended after 20 lost races; loads go first.
        """
        table = self.table(source, query_name)
        with translate_errors(table):
            return _rewrite(table, lambda snapshot: _prepare_compaction(start_spark, snapshot))

    def vacuum(self, *, source: str, query_name: str, retention: timedelta = DEFAULT_RETENTION) -> tuple[str, ...]:
        """Remove files that no version within the retention refers to, leftovers of dead loads and old log entries.

        Returns the removed paths. Loads and readers must finish within the retention. Raises ValueError for a
        retention under one hour.
        """
        table = self.table(source, query_name)
        with translate_errors(table):
            paths = find_removable_paths(table, retention)
            remove_paths(table, paths, retention)
            snapshot = open_table(table)
            if snapshot is not None:
                delete_old_log_entries(snapshot, retention)
            return paths

    def read_held_partitions(
        self, *, source: str, query_name: str, since: date = date.min, until: date = date.max
    ) -> HeldContent:
        """Read what the newest version of the table holds of each partition, counted in its files."""
        table = self.table(source, query_name)
        with translate_errors(table):
            snapshot = open_table(table)
            if snapshot is None:
                return HeldContent()
            files = [file for file in snapshot.files if since <= file.day <= until]
            slices, damaged = _read_undamaged(table, files, (since, until))
        held = {table.partition_key(*key): _summarize(slices) for key, slices in group_by_partition(slices).items()}
        return HeldContent(partitions=held, damaged=tuple(damaged))

    def drop_files(self, *, source: str, query_name: str, paths: Collection[str]) -> int | None:
        """Remove damaged files from the newest version, in one commit. Gives the new version."""
        table = self.table(source, query_name)
        with translate_errors(table):
            return _rewrite(table, lambda snapshot: _prepare_drop(snapshot, paths))

    def find_damaged_days(self, *, source: str, query_name: str) -> set[date]:
        """The days of files that are missing or cut, by one listing: no file is read."""
        table = self.table(source, query_name)
        with translate_errors(table):
            snapshot = open_table(table)
            damaged = [] if snapshot is None else find_missing_or_cut(table, snapshot.files)
        return {each.file.day for each in damaged}

    def list_files(self, *, source: str, query_name: str) -> dict[str, date]:
        """The data files of the newest version, each with its day. A file never changes."""
        table = self.table(source, query_name)
        with translate_errors(table):
            snapshot = open_table(table)
        return {} if snapshot is None else {file.path: file.day for file in snapshot.files}

    def remove_column_statistics(self, *, source: str, query_name: str) -> int:
        """Remove the statistics of columns, with which readers drop rows, from the log. Every write does so first.

        Gives the number of files whose log entries were replaced.
        """
        table = self.table(source, query_name)
        with translate_errors(table):
            return remove_statistics(table)[1]

    def count_column_statistics(self, *, source: str, query_name: str) -> int:
        """The number of files whose log entries have statistics of columns."""
        table = self.table(source, query_name)
        with translate_errors(table):
            snapshot = open_table(table)
        return 0 if snapshot is None else len(find_column_statistics(snapshot))

    def _find_table(self, keys: Sequence[PartitionKey]) -> WarehouseTable:
        names = {(key.source, key.query_name) for key in keys}
        if len(names) != 1:
            raise ValueError("all partitions of one call must belong to one table")
        ((source, query_name),) = names
        return self.table(source, query_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replacement:
    """The request of one call."""

    table: WarehouseTable
    columns: tuple[TableColumn, ...]
    loads: tuple[SealedRun, ...]
    stage: StageRows
    is_publishable: RunFilter
    dropped: frozenset[str]


def _replace(start_spark: StartSpark, plan: _Replacement, staged: list[StagedFile]) -> TableLoadResult:
    """Prepare the next version, check the runs, and commit. Repeat all of it when another commit came first."""
    superseded, unreadable = list[Run](), set[Run]()
    for attempt in range(MAX_COMMIT_ATTEMPTS):
        snapshot = _open_with_columns(plan.table, plan.columns)
        if snapshot is None:
            pause(attempt)
            continue
        loads = _without(plan.loads, {*superseded, *unreadable})
        snapshot, damaged = _split(snapshot, plan.dropped)
        held = _read_partitions(snapshot, {load.partition for load in loads})
        missing = tuple(load for load in loads if not _is_held(load, held.get(load.partition, [])))
        if unstaged := _find_unstaged(missing, staged):
            staged += plan.stage(unstaged)
            unreadable |= {load.run for load in _find_unstaged(missing, staged)}
            loads, missing = _without(loads, unreadable), _without(missing, unreadable)
        if not missing and not damaged:
            delete_files(plan.table, staged)
            return TableLoadResult(table_version=snapshot.version, runs=loads, superseded=tuple(superseded))
        partitions = {load.partition for load in missing}
        files = prepare_replacement(
            start_spark, snapshot, held=held, partitions=partitions, loads=missing, staged=staged
        )
        files = replace(files, replaced=(*files.replaced, *damaged))
        publishable = set(plan.is_publishable([load.run for load in missing]))
        refused = [load.run for load in missing if load.run not in publishable]
        if refused:
            superseded += refused
        elif _commit(snapshot, files):
            adopted = {file.path for file in files.added}
            delete_files(plan.table, [file for file in staged if file.path not in adopted])
            return TableLoadResult(table_version=snapshot.version + 1, runs=loads, superseded=tuple(superseded))
        delete_files(plan.table, files.merged)
        log_event(_LOG, LogEvent.COMMIT_RETRIED, table=plan.table, attempt=attempt + 1)
        pause(attempt)
    raise TableContended(str(plan.table), f"others committed first {MAX_COMMIT_ATTEMPTS} times; load again")


def _prepare_removal(
    start_spark: StartSpark, snapshot: TableSnapshot, partitions: set[tuple[str, date]], is_removable: RunFilter
) -> NextFiles:
    held = _read_partitions(snapshot, partitions)
    runs = [
        Run(key=snapshot.table.partition_key(*partition), run_id=part.run_id)
        for partition, slices in held.items()
        for part in slices
        if partition in partitions
    ]
    removed = {(run.key.customer_id, run.key.logical_date) for run in is_removable(runs)}
    return replace(prepare_replacement(start_spark, snapshot, held=held, partitions=removed), removal=True)


def _prepare_compaction(start_spark: StartSpark, snapshot: TableSnapshot) -> NextFiles | None:
    """Compact what can be read. Damaged files stay as they are: `reconcile` repairs them."""
    files = list(snapshot.files)
    while groups := plan_compaction(files):
        try:
            return prepare_compaction(start_spark, snapshot, groups)
        except FilesDamaged as error:
            log_event(_LOG, LogEvent.FILES_DAMAGED, table=snapshot.table, problem=error.problem)
            damaged = {each.file.path for each in error.damaged}
            files = [file for file in files if file.path not in damaged]
    return None


def _prepare_drop(snapshot: TableSnapshot, paths: Collection[str]) -> NextFiles | None:
    dropped = tuple(file for file in snapshot.files if file.path in paths)
    return NextFiles(added=(), replaced=dropped, merged=()) if dropped else None


def _rewrite(table: WarehouseTable, prepare: Callable[[TableSnapshot], NextFiles | None]) -> int | None:
    """Prepare the next version and commit, again after a lost race. None when there is nothing to change."""
    for attempt in range(MAX_COMMIT_ATTEMPTS):
        snapshot = open_for_writing(table)
        files = None if snapshot is None else prepare(snapshot)
        if snapshot is None or files is None:
            return None
        if _commit(snapshot, files):
            return snapshot.version + 1
        delete_files(table, files.merged)
        pause(attempt)
    raise TableContended(str(table), f"others committed first {MAX_COMMIT_ATTEMPTS} times; try again")


def _open_with_columns(table: WarehouseTable, columns: tuple[TableColumn, ...]) -> TableSnapshot | None:
    """The newest version with all these columns. None after the table or columns were created: then open it again."""
    snapshot = open_for_writing(table)
    if snapshot is None:
        create_table(table, columns)
        return None
    new = find_new_columns(table, existing=snapshot.columns, incoming=columns)
    if new:
        commit_columns(snapshot, new=new, token=uuid.uuid4().hex)
        return None
    return snapshot


def _commit(snapshot: TableSnapshot, files: NextFiles) -> bool:
    """True if this commit became the next version. Repeats the same commit while its outcome is unknown.

    Repeating is safe, because only one commit can become the next version.
    """
    token = f"{REMOVAL_PREFIX if files.removal else ''}{uuid.uuid4().hex}"
    for attempt in range(MAX_COMMIT_ATTEMPTS):
        outcome = commit_files(
            snapshot, removed=files.replaced, added=files.add_actions, token=token, rewrite=files.rewrite
        )
        if outcome is not CommitOutcome.UNKNOWN:
            return outcome is CommitOutcome.COMMITTED
        pause(attempt)
    raise TableContended(str(snapshot.table), "cannot write to the log; its storage may be read-only or full")


def _find_unstaged(loads: Sequence[SealedRun], staged: Sequence[StagedFile]) -> list[SealedRun]:
    """The loads whose rows are in no staged file. A load without rows needs none."""
    held = {(run.customer_id, file.day, run.run_id) for file in staged for run in file.runs}
    return [load for load in loads if load.record_count and (*load.partition, load.run.run_id) not in held]


def _without(loads: Sequence[SealedRun], runs: Collection[Run]) -> tuple[SealedRun, ...]:
    return tuple(load for load in loads if load.run not in runs)


def _is_held(load: SealedRun, slices: Sequence[Slice]) -> bool:
    """A load without rows is held if its partition has no rows."""
    expected = [(load.run.run_id, load.facts.schema_version, load.record_count)] if load.record_count else []
    return [(part.run_id, part.schema_version, part.rows) for part in slices] == expected


def _read_partitions(snapshot: TableSnapshot, partitions: Partitions) -> dict[tuple[str, date], list[Slice]]:
    files = find_affected_files(snapshot, partitions)
    return group_by_partition(read_slices(snapshot.table, files, ()))


def _read_undamaged(
    table: WarehouseTable, files: Sequence[DataFile], days: tuple[date, date]
) -> tuple[list[Slice], list[DamagedFile]]:
    """The slices of the files that can be read, and the damaged files."""
    damaged: list[DamagedFile] = []
    while True:
        paths = {each.file.path for each in damaged}
        try:
            return read_slices(table, [file for file in files if file.path not in paths], (), days=days), damaged
        except FilesDamaged as error:
            damaged += error.damaged


def _split(snapshot: TableSnapshot, dropped: Collection[str]) -> tuple[TableSnapshot, tuple[DataFile, ...]]:
    """The snapshot without the dropped files, and these files."""
    kept = tuple(file for file in snapshot.files if file.path not in dropped)
    return replace(snapshot, files=kept), tuple(file for file in snapshot.files if file.path in dropped)


def _summarize(slices: Sequence[Slice]) -> HeldPartition:
    only = slices[0] if len(slices) == 1 else None
    return HeldPartition(
        run_id=only.run_id if only else None,
        schema_version=only.schema_version if only else None,
        rows=sum(part.rows for part in slices),
    )
