"""Compares what the ledger says, what readers are pointed at and what the tables hold, and mends the difference.

A plan is a pure function of the three and always in the same order, demotions first. Carried out, it leaves nothing
for a second pass but what cannot be mended here: an accepted run whose raw data is gone.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import IntEnum
from typing import Final

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Verdict
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import ExpectedContent, PublicationStatus
from ads_pipeline.pipeline.pipeline import LoadResult, Pipeline
from ads_pipeline.warehouse.publication import Warehouse
from ads_pipeline.warehouse.values import HeldPartition

Claim = Callable[[Collection[PartitionKey]], Collection[PartitionKey]]
AT_ONCE: Final = 10_000


class RepairKind(IntEnum):
    """What is to be done, in the order in which it is done: first nothing wrong is served, then nothing lacks."""

    DEMOTE = 1  # a demotion stopped half-way: remove the rows, record the verdict
    REMOVE = 2  # the table holds rows that may not be read
    LOAD = 3  # the table does not hold the current run of a success
    POINT = 4  # it does, but readers are not pointed at it


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Repair:
    """One thing to mend, and why."""

    mend: RepairKind
    key: PartitionKey
    why: str

    def __str__(self) -> str:
        return f"{self.mend.name.lower()} {self.key}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileResult:
    """What was to be mended and nobody else is at work on, and what loading came to."""

    repairs: tuple[Repair, ...]
    loading: LoadResult


def plan(
    standings: Iterable[PublicationStatus],
    held: Mapping[PartitionKey, HeldPartition],
    *,
    demotions: Iterable[Verdict],
    readable: Collection[Run],
) -> list[Repair]:
    """What is to be mended. `readable` names those held runs, other than current ones, that may be read."""
    repairs = [
        Repair(
            mend=RepairKind.DEMOTE, key=verdict.run.key, why=f"the demotion of {verdict.run.run_id} is not finished"
        )
        for verdict in demotions
    ]
    known: set[PartitionKey] = set()
    for standing in standings:
        known.add(standing.state.key)
        repairs += _mend(standing, held.get(standing.state.key), readable)
    repairs += [_removal(key, each, "the ledger does not know it") for key, each in held.items() if key not in known]
    return sorted(repairs)


def _mend(standing: PublicationStatus, held: HeldPartition | None, readable: Collection[Run]) -> list[Repair]:
    state = standing.state
    key, repairs = state.key, list[Repair]()
    if not standing.publishable:
        if held is not None and not standing.demoting:
            repairs.append(_removal(key, held, f"the partition is {state.status}"))
        return repairs
    wanted = (state.current_run_id, state.schema_version, state.record_count)
    found = (held.run_id, held.schema_version, held.rows) if held else (state.current_run_id, state.schema_version, 0)
    if found != wanted:
        if held and held.run_id != state.current_run_id and not _may_be_read(key, held, readable):
            repairs.append(_removal(key, held, "that run is not accepted"))
        why = f"the table holds {held.run_id or 'a mixture'}" if held else "the table holds nothing"
        repairs.append(Repair(mend=RepairKind.LOAD, key=key, why=f"{why}, current is {state.current_run_id}"))
    elif not standing.pointed_at_current:
        repairs.append(
            Repair(mend=RepairKind.POINT, key=key, why=f"{state.current_run_id} is loaded and not pointed at")
        )
    return repairs


def _may_be_read(key: PartitionKey, held: HeldPartition, readable: Collection[Run]) -> bool:
    return held.run_id is not None and Run(key=key, run_id=held.run_id) in readable


def _removal(key: PartitionKey, held: HeldPartition, why: str) -> Repair:
    return Repair(mend=RepairKind.REMOVE, key=key, why=f"the table holds {held.run_id or 'a mixture'}: {why}")


def _suspects(
    source: str, query_name: str, outlines: Iterable[ExpectedContent], held: Mapping[PartitionKey, HeldPartition]
) -> list[PartitionKey]:
    """The partitions that may need mending. Of a million few do, and only those are looked at closely."""
    places = {(key.customer_id, key.logical_date): key for key in held}
    suspects = []
    for each in outlines:
        key = places.pop((each.customer_id, each.logical_date), None)
        if not _settled(each, None if key is None else held[key]):
            suspects.append(
                key
                or PartitionKey(
                    source=source,
                    customer_id=each.customer_id,
                    query_name=query_name,
                    logical_date=each.logical_date,
                )
            )
    return [*suspects, *places.values()]


def _settled(outline: ExpectedContent, held: HeldPartition | None) -> bool:
    """Whether there is nothing to mend: nothing is there where nothing may be read, else just what should be."""
    if not outline.publishable:
        return held is None
    wanted = (outline.run_id, outline.schema_version, outline.record_count)
    found = (held.run_id, held.schema_version, held.rows) if held else (outline.run_id, outline.schema_version, 0)
    return found == wanted and bool(outline.pointed_at_current)


class ReconcilePlanner:
    """Plans one query at a time, which takes neither Spark nor the right to write."""

    def __init__(self, *, ledger: LedgerReader, warehouse: Warehouse) -> None:
        self._ledger, self._warehouse = ledger, warehouse

    def plan(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> list[Repair]:
        """What differs now, in days from since to until. Changes nothing.

        The ledger is asked after the table, so that a load that ends meanwhile is not taken for a difference.
        """
        held = self._warehouse.held(source=source, query_name=query_name, since=since, until=until)
        outlines = self._ledger.outlines(source=source, query_name=query_name, since=since, until=until)
        suspects = _suspects(source, query_name, outlines, held)
        standings = [
            standing
            for first in range(0, len(suspects), AT_ONCE)
            for standing in self._ledger.standings_of(suspects[first : first + AT_ONCE])
        ]
        current = {standing.state.key: standing.state.current_run_id for standing in standings}
        found = {key: held[key] for key in suspects if key in held}
        others = [
            Run(key=key, run_id=each.run_id)
            for key, each in found.items()
            if each.run_id is not None and current.get(key) != each.run_id
        ]
        return plan(
            standings,
            found,
            demotions=self._unfinished(source, query_name, since, until),
            readable=self._ledger.readable(others),
        )

    def _unfinished(self, source: str, query_name: str, since: date | None, until: date | None) -> Sequence[Verdict]:
        days = since or date.min, until or date.max
        found = self._ledger.demotions(source=source, query_name=query_name)
        return [verdict for verdict in found if days[0] <= verdict.run.key.logical_date <= days[1]]


class Reconciliation(ReconcilePlanner):
    """Plans and mends one query at a time. Whoever must `claim` partitions mends those that are granted."""

    def __init__(
        self, *, ledger: LedgerReader, warehouse: Warehouse, pipeline: Pipeline, claim: Claim | None = None
    ) -> None:
        super().__init__(ledger=ledger, warehouse=warehouse)
        self._pipeline, self._claim = pipeline, claim

    def mend(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> ReconcileResult:
        """Carry out what `plan` finds. Safe beside loaders and other reconciliations, and may be repeated."""
        repairs = self.plan(source=source, query_name=query_name, since=since, until=until)
        if self._claim is not None:
            granted = self._claim({repair.key for repair in repairs})
            repairs = [repair for repair in repairs if repair.key in granted]
        keys = {mend: [repair.key for repair in repairs if repair.mend is mend] for mend in RepairKind}
        if keys[RepairKind.DEMOTE]:
            begun, own = self._unfinished(source, query_name, since, until), set(keys[RepairKind.DEMOTE])
            self._pipeline.record([verdict for verdict in begun if verdict.run.key in own])
        self._pipeline.take_out(keys[RepairKind.REMOVE])
        loading = self._pipeline.load([*keys[RepairKind.LOAD], *keys[RepairKind.POINT]])
        return ReconcileResult(repairs=tuple(repairs), loading=loading)
