"""Decides which runs to ask Dagster for: ranges that hold exactly what is due, under keys that grow when a run died.

Dagster answers a run key once and for ever. So a key tells what it is for and how often that was tried, and the next
try waits longer than the one before.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import dagster as dg
from dagster._core.definitions.partitions.context import partition_loading_context

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import Lane

FOR_TAG: Final = "ads_pipeline/for"
PRIORITY_TAG: Final = "dagster/priority"
# What waits in Dagster's queue: fresh days first. That backfills get their turn is seen to where turns are given.
PRIORITIES: Final = {Lane.FRESH: "1", Lane.BACKFILL: "0"}
QUERY_TAG: Final = "ads_pipeline/query"
START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
LONGEST_WAIT: Final = timedelta(hours=1)
_FINISHED: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPartitions:
    """Partitions of one query that a run is wanted for. The word of each changes when there is a new reason."""

    query_name: str
    assets: tuple[dg.AssetKey, ...]
    reasons: Mapping[PartitionKey, str]
    lane: Lane = Lane.BACKFILL


def run_requests(
    instance: dg.DagsterInstance, partitions: dg.MultiPartitionsDefinition, due: RequestedPartitions, *, now: datetime
) -> list[dg.RunRequest]:
    """Requests for what no unfinished run is at, each a range without a partition that is not due."""
    with partition_loading_context(dynamic_partitions_store=instance):
        busy = _at_work(instance, partitions, due.assets)
        named = {key.dagster_key: reason for key, reason in due.reasons.items()}
        wanted = {name: reason for name, reason in named.items() if name not in busy}
        subset = partitions.subset_with_partition_keys(wanted)
        ranges = [
            (each.start, each.end, [str(name) for name in partitions.get_partition_keys_in_range(each)])
            for each in subset.get_partition_key_ranges(partitions)
        ]
    requests = (
        _request(instance, due, start, end, [(name, wanted[name]) for name in names], now)
        for start, end, names in sorted(ranges)
    )
    return [request for request in requests if request is not None]


def range_tags(query_name: str, start: str, end: str) -> dict[str, str]:
    """What makes a run one over a range of a query's partitions."""
    return {START: start, END: end, QUERY_TAG: query_name}


def _request(
    instance: dg.DagsterInstance,
    due: RequestedPartitions,
    start: str,
    end: str,
    reasons: Sequence[tuple[str, str]],
    now: datetime,
) -> dg.RunRequest | None:
    told = repr((due.query_name, [str(asset) for asset in due.assets], sorted(reasons)))
    digest = hashlib.sha256(told.encode()).hexdigest()[:32]
    tried = instance.get_run_records(filters=dg.RunsFilter(tags={FOR_TAG: digest}), limit=20)
    if tried and now < _ended(tried) + min(LONGEST_WAIT, timedelta(minutes=2 ** len(tried))):
        return None
    return dg.RunRequest(
        run_key=f"{due.query_name}:{digest}#{len(tried)}",
        asset_selection=list(due.assets),
        tags=range_tags(due.query_name, start, end) | {FOR_TAG: digest, PRIORITY_TAG: PRIORITIES[due.lane]},
    )


def _ended(tried: Sequence[Any]) -> datetime:
    """When the last try ended; one that has not ended stands for the end of time, because it may yet succeed."""
    ends = [record.end_time or 0.0 for record in tried if record.dagster_run.is_finished]
    if len(ends) < len(tried):
        return datetime.max.replace(tzinfo=UTC) - LONGEST_WAIT
    return datetime.fromtimestamp(max(ends), UTC)


def _at_work(
    instance: dg.DagsterInstance, partitions: dg.MultiPartitionsDefinition, assets: Sequence[dg.AssetKey]
) -> set[str]:
    """The names of the partitions that unfinished runs are for, whoever asked for them."""
    unfinished = [status for status in dg.DagsterRunStatus if status.value not in _FINISHED]
    busy: set[str] = set()
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=unfinished)):
        if not run.asset_selection or not run.asset_selection.isdisjoint(assets):
            busy.update(names_of(run.tags, partitions))
    return busy


def names_of(tags: Mapping[str, str], partitions: dg.MultiPartitionsDefinition) -> Iterable[str]:
    """The partitions that a run with these tags is for. The caller has opened the loading context."""
    if START in tags:
        wanted = dg.PartitionKeyRange(tags[START], tags[END])
        return [str(name) for name in partitions.get_partition_keys_in_range(wanted)]
    return [tags["dagster/partition"]] if "dagster/partition" in tags else []
