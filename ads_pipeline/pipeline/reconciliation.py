"""Compares the ledger, the pointers and the Delta tables, and repairs the differences.

A second pass finds nothing, except accepted runs whose raw data is gone: those cannot be repaired.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import IntEnum
from typing import Final

from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Status, Verdict
from ads_pipeline.lake.warehouse.file_damage import DamagedFile
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.lake.warehouse.table_values import HeldPartition
from ads_pipeline.ledger.sql.ledger_values import DayWindow, ExpectedContent, OpenWithdrawal
from ads_pipeline.ledger.state.pointers import Publications
from ads_pipeline.pipeline.loading import LoadResult, combine
from ads_pipeline.pipeline.pipeline import Pipeline

_LOG: Final = logging.getLogger(__name__)

ClaimPartitions = Callable[[Collection[PartitionKey]], Collection[PartitionKey]]


class RepairKind(IntEnum):
    """Kinds of repair, in the order of execution: wrong rows are removed before missing rows are loaded."""

    RELOAD = 0  # a data file that may hold it is damaged: load its run again, and drop the file in the same commit
    DEMOTE = 1  # finish an interrupted demotion: remove the rows, record the verdict
    WITHDRAW = 2  # finish an interrupted withdrawal: remove the rows, set the partition to pending
    REMOVE = 3  # the table holds rows that readers may not see
    LOAD = 4  # the table does not hold the current run of a success
    POINT = 5  # the table holds it, but the pointer does not name it, or with another schema version or row count


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Repair:
    """One difference and how to repair it."""

    kind: RepairKind
    key: PartitionKey
    reason: str

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} {self.key}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilePlan:
    """The repairs of a query's days in their order, and the damaged data files of its table."""

    repairs: tuple[Repair, ...] = ()
    damaged: tuple[DamagedFile, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.repairs or self.damaged)

    @property
    def days(self) -> set[date]:
        return {repair.key.logical_date for repair in self.repairs} | {each.file.day for each in self.damaged}

    def list_held(self, damaged: DamagedFile) -> list[PartitionKey]:
        """The partitions that are loaded again because of this file."""
        keys = (repair.key for repair in self.repairs if repair.kind is RepairKind.RELOAD)
        return sorted(key for key in keys if _is_in(damaged, key))

    def grant(self, granted: Collection[PartitionKey]) -> "ReconcilePlan":
        """The part of the plan for one who may write to these partitions only.

        A damaged file stays until all of its partitions are granted, and so do its other repairs.
        """
        refused = [repair.key for repair in self.repairs if repair.key not in granted]
        kept = tuple(file for file in self.damaged if not any(_is_in(file, key) for key in refused))
        waiting = [file for file in self.damaged if file not in kept]
        repairs = (repair for repair in self.repairs if repair.key in granted)
        return ReconcilePlan(
            repairs=tuple(each for each in repairs if not any(_is_in(file, each.key) for file in waiting)),
            damaged=kept,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileResult:
    """The repairs that were carried out, and the result of loading."""

    repairs: tuple[Repair, ...]
    loading: LoadResult
    damaged: tuple[DamagedFile, ...] = ()  # files that the table no longer has


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A partition whose held rows or pointer are not the expected ones. `expected` is None if it is not recorded."""

    key: PartitionKey
    expected: ExpectedContent | None
    held: HeldPartition | None

    @property
    def current_run_id(self) -> str | None:
        return self.expected.run_id if self.expected else None

    @property
    def other_run(self) -> Run | None:
        """The held run, if it is not the expected one."""
        if (
            self.held is None
            or self.held.run_id is None
            or self.held.run_id == (self.expected and self.expected.run_id)
        ):
            return None
        return Run(key=self.key, run_id=self.held.run_id)


def find_differences(
    source: str, query_name: str, expected: Iterable[ExpectedContent], held: Mapping[PartitionKey, HeldPartition]
) -> list[Difference]:
    """Compare what the table should hold with what it holds. Few of a million partitions differ."""
    keys = {(key.customer_id, key.logical_date): key for key in held}
    differences = []
    for each in expected:
        key = keys.pop((each.customer_id, each.logical_date), None)
        found = None if key is None else held[key]
        if not _matches(each, found):
            partition = key or PartitionKey(
                source=source, customer_id=each.customer_id, query_name=query_name, logical_date=each.logical_date
            )
            differences.append(Difference(key=partition, expected=each, held=found))
    unknown = (Difference(key=key, expected=None, held=held[key]) for key in keys.values())
    return [*differences, *unknown]


def plan_repairs(
    differences: Iterable[Difference],
    *,
    demotions: Iterable[Verdict],
    withdrawals: Iterable[OpenWithdrawal] = (),
    readable: Collection[Run],
    damaged: Sequence[DamagedFile] = (),
) -> list[Repair]:
    """Decide the repairs, in their order. `readable` lists the other held runs that readers may see.

    `damaged` are the files whose rows are not among the held ones.

    This is a pure function.
    """
    repairs = [
        Repair(kind=RepairKind.DEMOTE, key=each.run.key, reason=f"the demotion of {each.run.run_id} is not finished")
        for each in demotions
    ]
    repairs += (
        Repair(kind=RepairKind.WITHDRAW, key=each.run.key, reason="its withdrawal is not finished")
        for each in withdrawals
    )
    for difference in differences:
        file = next((each for each in damaged if _is_in(each, difference.key)), None)
        repairs += (
            replace(repair, kind=RepairKind.RELOAD, reason=f"{file}; current is {difference.current_run_id}")
            if file and repair.kind is RepairKind.LOAD
            else repair
            for repair in _plan(difference, readable)
        )
    return sorted(repairs)


def _is_in(damaged: DamagedFile, key: PartitionKey) -> bool:
    return damaged.may_hold(key.customer_id, key.logical_date)


def _matches(expected: ExpectedContent, held: HeldPartition | None) -> bool:
    if not expected.is_publishable:
        return held is None
    return expected.points_at_current and _holds_current(expected, held)


def _holds_current(expected: ExpectedContent, held: HeldPartition | None) -> bool:
    """Return whether the table holds the current run. A run without rows is held if the partition has no rows."""
    if held is None:
        return expected.record_count == 0
    current = (expected.run_id, expected.schema_version, expected.record_count)
    return (held.run_id, held.schema_version, held.rows) == current


def _plan(difference: Difference, readable: Collection[Run]) -> Iterator[Repair]:
    key, expected, held = difference.key, difference.expected, difference.held
    holds = "the table holds " + ("nothing" if held is None else held.run_id or "rows of several runs")
    if expected is None:
        yield Repair(kind=RepairKind.REMOVE, key=key, reason=f"{holds}: the ledger does not know it")
    elif not expected.is_publishable:
        if expected.status != Status.SUCCESS:  # a success without authority is being demoted or withdrawn
            yield Repair(kind=RepairKind.REMOVE, key=key, reason=f"{holds}: the partition is {expected.status}")
    elif _holds_current(expected, held):
        yield Repair(kind=RepairKind.POINT, key=key, reason=f"{expected.run_id} is loaded, but the pointer differs")
    else:
        if held and held.run_id != expected.run_id and difference.other_run not in readable:
            yield Repair(kind=RepairKind.REMOVE, key=key, reason=f"{holds}: that run is not accepted")
        yield Repair(kind=RepairKind.LOAD, key=key, reason=f"{holds}, current is {expected.run_id}")


class ReconcilePlanner:
    """Plans repairs of one query at a time, without Spark and without write access."""

    def __init__(self, *, publications: Publications, warehouse: Warehouse) -> None:
        self.publications, self.warehouse = publications, warehouse

    def plan(self, window: DayWindow) -> ReconcilePlan:
        """List the differences of a query's days, in the order of their repair.

        The table is read before the ledger, so that a load that ends in between is not reported as a difference.
        """
        held = self.warehouse.read_held_partitions(
            source=window.source, query_name=window.query_name, since=window.since, until=window.until
        )
        expected = self.publications.expected_contents(window)
        differences = find_differences(window.source, window.query_name, expected, held.partitions)
        others = [difference.other_run for difference in differences if difference.other_run]
        repairs = plan_repairs(
            differences,
            demotions=self.publications.open_demotions(window),
            withdrawals=self.publications.open_withdrawals(window),
            readable=self.publications.readable_runs(others),
            damaged=held.damaged,
        )
        return ReconcilePlan(repairs=tuple(repairs), damaged=held.damaged)


class Reconciliation(ReconcilePlanner):
    """Plans and repairs one query at a time. With `claim`, it repairs only the partitions that are granted.

    `open_pipeline` is called only when there is something to repair.
    """

    def __init__(
        self,
        *,
        publications: Publications,
        warehouse: Warehouse,
        open_pipeline: Callable[[], Pipeline],
        claim: ClaimPartitions | None = None,
    ) -> None:
        super().__init__(publications=publications, warehouse=warehouse)
        self._open_pipeline, self._claim = open_pipeline, claim

    def repair(self, window: DayWindow) -> ReconcileResult:
        """Carry out the plan. Loads and other reconciliations may run at the same time."""
        return self.carry_out(self.plan(window), window)

    def carry_out(self, plan: ReconcilePlan, window: DayWindow) -> ReconcileResult:
        """Carry out the repairs that were planned for a window."""
        if self._claim is not None and plan:
            plan = plan.grant(self._claim({repair.key for repair in plan.repairs}))
        if not plan:
            return ReconcileResult(repairs=(), loading=LoadResult())
        pipeline = self._open_pipeline()
        keys = {kind: [repair.key for repair in plan.repairs if repair.kind is kind] for kind in RepairKind}
        table = self.warehouse.table(window.source, window.query_name)
        reloading = pipeline.loader.reload(table, keys[RepairKind.RELOAD], plan.damaged)
        if keys[RepairKind.DEMOTE]:
            demotions, own = self.publications.open_demotions(window), set(keys[RepairKind.DEMOTE])
            pipeline.validation.record([verdict for verdict in demotions if verdict.run.key in own])
        if keys[RepairKind.WITHDRAW]:
            withdrawals, own = self.publications.open_withdrawals(window), set(keys[RepairKind.WITHDRAW])
            pipeline.withdrawing.finish([each for each in withdrawals if each.run.key in own])
        pipeline.hidden_rows.remove(keys[RepairKind.REMOVE])
        loading = pipeline.loader.load([*keys[RepairKind.LOAD], *keys[RepairKind.POINT]])
        counts = {kind.name.lower(): len(found) for kind, found in keys.items() if found}
        log_event(_LOG, LogEvent.REPAIRED, query=window.query_name, **counts)
        return ReconcileResult(repairs=plan.repairs, loading=combine([reloading, loading]), damaged=plan.damaged)
