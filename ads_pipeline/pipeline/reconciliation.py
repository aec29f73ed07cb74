"""Compares the ledger, the pointers and the Delta tables, and repairs the differences.

A second pass finds nothing, except accepted runs whose raw data is gone: those cannot be repaired.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import IntEnum
from typing import Final

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Verdict
from ads_pipeline.ledger.state.publications import Publications
from ads_pipeline.ledger.values import ExpectedContent, PublicationStatus
from ads_pipeline.pipeline.loading import LoadResult
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline.warehouse.publication import Warehouse
from ads_pipeline.warehouse.values import HeldPartition

ClaimPartitions = Callable[[Collection[PartitionKey]], Collection[PartitionKey]]
PARTITIONS_PER_QUERY: Final = 10_000


class RepairKind(IntEnum):
    """Kinds of repair, in the order of execution: wrong rows are removed before missing rows are loaded."""

    DEMOTE = 1  # finish an interrupted demotion: remove the rows, record the verdict
    REMOVE = 2  # the table holds rows that readers may not see
    LOAD = 3  # the table does not hold the current run of a success
    POINT = 4  # the table holds it, but the pointer does not name it


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Repair:
    """One difference and how to repair it."""

    kind: RepairKind
    key: PartitionKey
    reason: str

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} {self.key}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileResult:
    """The repairs that were carried out, and the result of loading."""

    repairs: tuple[Repair, ...]
    loading: LoadResult


def plan_repairs(
    publications: Iterable[PublicationStatus],
    held: Mapping[PartitionKey, HeldPartition],
    *,
    demotions: Iterable[Verdict],
    readable: Collection[Run],
) -> list[Repair]:
    """Compare publications with the partitions that the table holds. This is a pure function.

    `readable` lists the held runs, other than current ones, that readers may see.
    """
    repairs = [
        Repair(
            kind=RepairKind.DEMOTE,
            key=verdict.run.key,
            reason=f"the demotion of {verdict.run.run_id} is not finished",
        )
        for verdict in demotions
    ]
    known: set[PartitionKey] = set()
    for publication in publications:
        known.add(publication.state.key)
        repairs += _compare(publication, held.get(publication.state.key), readable)
    repairs += [_remove(key, each, "the ledger does not know it") for key, each in held.items() if key not in known]
    return sorted(repairs)


def _compare(publication: PublicationStatus, held: HeldPartition | None, readable: Collection[Run]) -> list[Repair]:
    state = publication.state
    key, repairs = state.key, list[Repair]()
    if not publication.is_publishable:
        if held is not None and not publication.demotion_pending:
            repairs.append(_remove(key, held, f"the partition is {state.status}"))
        return repairs
    expected = (state.current_run_id, state.schema_version, state.record_count)
    found = (held.run_id, held.schema_version, held.rows) if held else (state.current_run_id, state.schema_version, 0)
    if found != expected:
        if held and held.run_id != state.current_run_id and not _is_readable(key, held, readable):
            repairs.append(_remove(key, held, "that run is not accepted"))
        why = f"the table holds {held.run_id or 'rows of several runs'}" if held else "the table holds nothing"
        repairs.append(Repair(kind=RepairKind.LOAD, key=key, reason=f"{why}, current is {state.current_run_id}"))
    elif not publication.points_at_current:
        repairs.append(
            Repair(
                kind=RepairKind.POINT,
                key=key,
                reason=f"{state.current_run_id} is loaded, but the pointer does not name it",
            )
        )
    return repairs


def _is_readable(key: PartitionKey, held: HeldPartition, readable: Collection[Run]) -> bool:
    return held.run_id is not None and Run(key=key, run_id=held.run_id) in readable


def _remove(key: PartitionKey, held: HeldPartition, why: str) -> Repair:
    return Repair(
        kind=RepairKind.REMOVE, key=key, reason=f"the table holds {held.run_id or 'rows of several runs'}: {why}"
    )


def _find_candidates(
    source: str, query_name: str, expected: Iterable[ExpectedContent], held: Mapping[PartitionKey, HeldPartition]
) -> list[PartitionKey]:
    """Find partitions that may need repair. Few of a million do, and only those are read in full."""
    unmatched = {(key.customer_id, key.logical_date): key for key in held}
    candidates = []
    for each in expected:
        key = unmatched.pop((each.customer_id, each.logical_date), None)
        if not _matches(each, None if key is None else held[key]):
            candidates.append(
                key
                or PartitionKey(
                    source=source,
                    customer_id=each.customer_id,
                    query_name=query_name,
                    logical_date=each.logical_date,
                )
            )
    return [*candidates, *unmatched.values()]


def _matches(content: ExpectedContent, held: HeldPartition | None) -> bool:
    """Whether the table and the pointer agree with the expected content."""
    if not content.is_publishable:
        return held is None
    expected = (content.run_id, content.schema_version, content.record_count)
    found = (held.run_id, held.schema_version, held.rows) if held else (content.run_id, content.schema_version, 0)
    return found == expected and bool(content.points_at_current)


class ReconcilePlanner:
    """Plans repairs of one query at a time, without Spark and without write access."""

    def __init__(self, *, publications: Publications, warehouse: Warehouse) -> None:
        self._publications, self._warehouse = publications, warehouse

    def plan(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> list[Repair]:
        """List the differences of the days from `since` to `until`, in the order of their repair.

        The table is read before the ledger, so that a load that ends in between is not reported as a difference.
        """
        held = self._warehouse.read_held_partitions(source=source, query_name=query_name, since=since, until=until)
        expected = self._publications.expected_contents(
            source=source, query_name=query_name, since=since, until=until
        )
        candidates = _find_candidates(source, query_name, expected, held)
        publications = [
            publication
            for first in range(0, len(candidates), PARTITIONS_PER_QUERY)
            for publication in self._publications.get_many(candidates[first : first + PARTITIONS_PER_QUERY])
        ]
        current = {publication.state.key: publication.state.current_run_id for publication in publications}
        found = {key: held[key] for key in candidates if key in held}
        others = [
            Run(key=key, run_id=each.run_id)
            for key, each in found.items()
            if each.run_id is not None and current.get(key) != each.run_id
        ]
        return plan_repairs(
            publications,
            found,
            demotions=self._open_demotions(source, query_name, since, until),
            readable=self._publications.readable_runs(others),
        )

    def _open_demotions(
        self, source: str, query_name: str, since: date | None, until: date | None
    ) -> Sequence[Verdict]:
        first, last = since or date.min, until or date.max
        demotions = self._publications.open_demotions(source=source, query_name=query_name)
        return [verdict for verdict in demotions if first <= verdict.run.key.logical_date <= last]


class Reconciliation(ReconcilePlanner):
    """Plans and repairs one query at a time. With `claim`, it repairs only the partitions that are granted."""

    def __init__(
        self,
        *,
        publications: Publications,
        warehouse: Warehouse,
        pipeline: Pipeline,
        claim: ClaimPartitions | None = None,
    ) -> None:
        super().__init__(publications=publications, warehouse=warehouse)
        self._pipeline, self._claim = pipeline, claim

    def repair(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> ReconcileResult:
        """Carry out the plan. Loads and other reconciliations may run at the same time."""
        repairs = self.plan(source=source, query_name=query_name, since=since, until=until)
        if self._claim is not None:
            granted = self._claim({repair.key for repair in repairs})
            repairs = [repair for repair in repairs if repair.key in granted]
        keys = {kind: [repair.key for repair in repairs if repair.kind is kind] for kind in RepairKind}
        if keys[RepairKind.DEMOTE]:
            demotions, own = self._open_demotions(source, query_name, since, until), set(keys[RepairKind.DEMOTE])
            self._pipeline.validation.record([verdict for verdict in demotions if verdict.run.key in own])
        self._pipeline.loader.remove_hidden_rows(keys[RepairKind.REMOVE])
        loading = self._pipeline.loader.load([*keys[RepairKind.LOAD], *keys[RepairKind.POINT]])
        return ReconcileResult(repairs=tuple(repairs), loading=loading)
