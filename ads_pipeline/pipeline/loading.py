"""Loads accepted runs into the warehouse and moves the pointers.

Repair after a crash is in `pipeline.reconciliation`.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Final

from ads_pipeline.domain.batches import group_by, split_batches
from ads_pipeline.domain.errors import (
    AdsPipelineError,
    ContractMissing,
    FilesDamaged,
    RunDamaged,
    RunNotSealed,
    UnsafePath,
)
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.domain.transitions import Outcome, PartitionState, Status
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.reading import PAYLOAD_CHANGED
from ads_pipeline.lake.warehouse.file_damage import DamagedFile
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.lake.warehouse.staging import StartSpark
from ads_pipeline.lake.warehouse.table_values import StagedFile, TableLoadResult, WarehouseTable
from ads_pipeline.ledger.sql.ledger_values import JudgedRun
from ads_pipeline.ledger.state.load_recorder import Loads
from ads_pipeline.ledger.state.run_history import RunHistory
from ads_pipeline.ledger.state.states import States
from ads_pipeline.pipeline.completeness.completeness_tables import CompletenessTables
from ads_pipeline.pipeline.hidden_rows import HiddenRows, is_blocked
from ads_pipeline.pipeline.progress import ProgressReporter, no_progress
from ads_pipeline.pipeline.registered_seals import SealRegister, compare_with_seal
from ads_pipeline.pipeline.staged_runs import StagedRuns, sink_into
from ads_pipeline.validation.contract_registry import Contracts
from ads_pipeline.validation.spark_job import judge_and_write

_LOG: Final = logging.getLogger(__name__)

PARTITIONS_PER_COMMIT: Final = 10_000  # bounds memory, and the work that a crash repeats

FindJudged = Callable[[Sequence[Run]], Mapping[Run, JudgedRun]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The result for each partition in one load. `written` is what its commits wrote.

    `moved` are the published runs that readers did not see before.
    """

    written: tuple[TableLoadResult, ...] = ()
    published: tuple[Run, ...] = ()
    moved: tuple[Run, ...] = ()
    superseded: tuple[Run, ...] = ()  # lost their authority while they were being loaded
    skipped: tuple[PartitionState, ...] = ()  # status is not success
    unreadable: Mapping[Run, AdsPipelineError] = field(default_factory=dict)  # accepted, but no longer match the seal
    blocked: Mapping[Run, FilesDamaged] = field(default_factory=dict)  # a data file that may hold them is damaged

    @property
    def not_loaded(self) -> dict[Run, AdsPipelineError]:
        """The accepted runs that could not be loaded, with the reason of each."""
        return {**self.unreadable, **self.blocked}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """Replaces partitions in the warehouse. It cannot record a verdict."""

    start_spark: StartSpark
    raw: RawRuns
    seals: SealRegister
    states: States
    loads: Loads
    history: RunHistory
    warehouse: Warehouse
    hidden_rows: HiddenRows
    contracts: Contracts
    staged: StagedRuns
    tables: CompletenessTables
    report_progress: ProgressReporter = no_progress

    def load(self, keys: Iterable[PartitionKey]) -> LoadResult:
        """Replace each partition with its authoritative run, then point readers at it.

        One Delta commit loads up to 10,000 partitions of one table. A partition whose status is not success is
        skipped. Raises WarehouseUnavailable when the table cannot be written.
        """
        states = self.states.get_many(keys).values()
        return combine([self.publish(each) for each in self._commit_each(states, self.history.judged_runs)])

    def commit(self, states: Iterable[PartitionState], judged: Mapping[Run, JudgedRun]) -> LoadResult:
        """Do the same without a change of the ledger: `publish` makes it. `judged` are the current runs."""
        return combine(list(self._commit_each(states, lambda _runs: judged)))

    def publish(self, committed: LoadResult) -> LoadResult:
        """Point readers at what these commits wrote, and record the runs that need another run or their files."""
        moved = [self._move_pointers(written) for written in committed.written]
        if committed.unreadable:
            unreadable = {run: str(error) for run, error in committed.unreadable.items()}
            log_event(_LOG, LogEvent.LOAD_UNREADABLE, runs=len(unreadable), first=min(unreadable))
            self.loads.record_failed(unreadable)
        if committed.blocked:
            first = min(committed.blocked)
            log_event(_LOG, LogEvent.FILES_DAMAGED, first=first, problem=committed.blocked[first].problem)
        if committed.written:
            self.tables.publish_or_log([run.key for each in moved for run in each.moved])
        return combine([committed, *moved])

    def _commit_each(self, states: Iterable[PartitionState], find_judged: FindJudged) -> Iterator[LoadResult]:
        """Yield what was skipped, then the result of each commit."""
        ready, skipped = list[PartitionState](), list[PartitionState]()
        for state in states:
            (ready if state.status is Status.SUCCESS else skipped).append(state)
        yield LoadResult(skipped=tuple(skipped))
        with self.report_progress("loading", len(ready)) as advance:
            for table_states in group_by(ready, lambda state: (state.key.source, state.key.query_name)).values():
                by_day = sorted(table_states, key=lambda state: (state.key.logical_date, state.key.customer_id))
                for batch in split_batches(by_day, PARTITIONS_PER_COMMIT):
                    yield self._commit_batch(batch, find_judged)
                    advance(len(batch))
        self._discard_staged([state.key for state in skipped])

    def reload(
        self, table: WarehouseTable, keys: Iterable[PartitionKey], damaged: Sequence[DamagedFile]
    ) -> LoadResult:
        """Load partitions again whose data files are damaged. One commit a batch of days also drops their files.

        Readers of the ledger do not see the partitions until they are loaded, so that nobody takes them for empty.
        """
        states = [state for state in self.states.get_many(keys).values() if state.status is Status.SUCCESS]
        self.loads.hide([state.key for state in states])
        self.tables.publish_before_removal([state.key for state in states])
        by_day = group_by(states, lambda state: state.key.logical_date)
        files = group_by(damaged, lambda each: each.file.day)
        results = list[LoadResult]()
        for batch in _batch_days({day: len(by_day.get(day, ())) for day in sorted({*by_day, *files})}):
            paths = [each.file.path for day in batch for each in files.get(day, ())]
            if group := [state for day in batch for state in by_day.get(day, ())]:
                results.append(self.publish(self._commit_batch(group, self.history.judged_runs, dropped=paths)))
            self.warehouse.drop_files(source=table.source, query_name=table.query_name, paths=paths)
        for each in damaged:
            log_event(_LOG, LogEvent.FILES_DAMAGED, table=table, problem=each)
        return combine(results)

    def _discard_staged(self, keys: Sequence[PartitionKey]) -> None:
        """Delete what was staged of partitions that are not loaded now."""
        for (source, query_name), group in group_by(keys, lambda key: (key.source, key.query_name)).items():
            self.warehouse.discard(source, query_name, self.staged.take(group))

    def _commit_batch(
        self, states: Sequence[PartitionState], find_judged: FindJudged, *, dropped: Collection[str] = ()
    ) -> LoadResult:
        """Load partitions of one table. Damaged files that may hold some stop only those."""
        runs = [Run(key=state.key, run_id=str(state.current_run_id)) for state in states]
        sealed, unreadable = self._read_seals(runs, find_judged(runs))
        staged = self.staged.take(run.key for run in runs)
        if not sealed:
            self.warehouse.discard(runs[0].key.source, runs[0].key.query_name, staged)
            return LoadResult(unreadable=unreadable)
        try:
            written = self.warehouse.replace(
                self.start_spark,
                sealed,
                staged,
                stage=lambda missing: self._stage(missing, unreadable),
                columns=self._find_columns(sealed),
                is_publishable=self.loads.publishable_runs,
                dropped=dropped,
            )
        except FilesDamaged as error:
            blocked = {run: error for run in runs if is_blocked(run.key, error)}
            if not blocked:
                raise
            self.staged.restore(self.warehouse.table(runs[0].key.source, runs[0].key.query_name), staged)
            others = [state for state, run in zip(states, runs, strict=True) if run not in blocked]
            result = self._commit_batch(others, find_judged, dropped=dropped) if others else LoadResult()
            return replace(result, blocked={**result.blocked, **blocked})
        return LoadResult(written=(written,), superseded=written.superseded, unreadable=unreadable)

    def _read_seals(
        self, runs: Sequence[Run], judged: Mapping[Run, JudgedRun]
    ) -> tuple[list[SealedRun], dict[Run, AdsPipelineError]]:
        """The runs with the digest that the validator read, and the damaged runs.

        A seal must be the one that was registered, so that the recorded contract reads the rows.
        """
        sealed: list[SealedRun] = []
        unreadable: dict[Run, AdsPipelineError] = {}
        for run in runs:
            if (found := judged.get(run)) is None:
                continue
            try:
                seal = self.seals.read_seal(run)
            except (RunNotSealed, RunDamaged, UnsafePath) as error:
                unreadable[run] = error
                continue
            if (problem := compare_with_seal(found.registered, seal)) is not None:
                unreadable[run] = RunDamaged(run.path, problem)
                continue
            sealed.append(replace(seal, payload_sha256=found.payload_sha256))
        return sealed, unreadable

    def _stage(self, sealed: Sequence[SealedRun], unreadable: dict[Run, AdsPipelineError]) -> list[StagedFile]:
        """Read runs again that were accepted earlier.

        One that no longer reads as it did, or whose contract is no longer declared, is added to `unreadable`.
        """
        for (query_name, version), group in group_by(sealed, lambda each: each.contract).items():
            table = self.warehouse.table(group[0].run.key.source, query_name)
            try:
                rules = self.contracts.rules(query_name, version).without_checks()
            except ContractMissing as error:
                unreadable.update((each.run, error) for each in group)
                continue
            judgements, written = judge_and_write(
                self.start_spark(), self.raw.location, group, rules, open_sink=sink_into(table, version)
            )
            self.staged.add(table, written)
            rejected = (each.verdict for each in judgements if each.verdict.outcome is Outcome.REJECTED)
            unreadable |= {verdict.run: RunDamaged(verdict.run.path, PAYLOAD_CHANGED) for verdict in rejected}
        return self.staged.take(each.run.key for each in sealed)

    def _find_columns(self, sealed: Iterable[SealedRun]) -> dict[str, str]:
        """The columns of all declared contracts of these runs."""
        columns: dict[str, str] = {}
        for contract in sorted({each.contract for each in sealed}):
            if contract in self.contracts.declared:
                columns |= self.contracts.rules(*contract).column_types
        return columns

    def _move_pointers(self, written: TableLoadResult) -> LoadResult:
        pointers = self.loads.publish([each.run for each in written.runs], table_version=written.table_version)
        if pointers.superseded:  # they lost their authority between the commit and the pointer
            self.hidden_rows.remove(run.key for run in pointers.superseded)
        log_event(
            _LOG,
            LogEvent.LOAD_PUBLISHED,
            query=next((each.run.key.query_name for each in written.runs), None),
            partitions=len(pointers.published),
            rows=sum(each.record_count for each in written.runs),
            superseded=len(written.superseded) + len(pointers.superseded),
            table_version=written.table_version,
        )
        return LoadResult(published=pointers.published, moved=pointers.moved, superseded=pointers.superseded)


def _batch_days(partitions: Mapping[date, int]) -> list[list[date]]:
    """The days in groups of up to 10,000 partitions. A day is never split, because a file holds one day."""
    batches: list[list[date]] = []
    size = 0
    for day, count in partitions.items():
        if not batches or size + count > PARTITIONS_PER_COMMIT:
            batches.append([])
            size = 0
        batches[-1].append(day)
        size += count
    return batches


def combine(results: Sequence[LoadResult]) -> LoadResult:
    """One result for several loads."""
    return LoadResult(
        written=tuple(each for result in results for each in result.written),
        moved=tuple(run for result in results for run in result.moved),
        published=tuple(run for result in results for run in result.published),
        superseded=tuple(run for result in results for run in result.superseded),
        skipped=tuple(state for result in results for state in result.skipped),
        unreadable={run: error for result in results for run, error in result.unreadable.items()},
        blocked={run: error for result in results for run, error in result.blocked.items()},
    )
