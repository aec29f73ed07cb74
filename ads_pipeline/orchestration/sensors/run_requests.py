"""Builds the run requests of sensors: the due partitions of all queries in few runs.

A partition that is in an unfinished run is not requested. A request that failed is repeated as it was after a delay,
so that what makes a run fail does not hold back what arrives later.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Final

import dagster as dg

from ads_pipeline.domain.fetching.retry_policy import Lane, lane_for
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.domain.rectangles import cover
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import CUSTOMER, CUSTOMERS, DATE, drop_invalid_customers
from ads_pipeline.orchestration.runs.due_partitions import build_run_config, digest_of
from ads_pipeline.orchestration.runs.run_tags import (
    CUSTOMERS_TAG,
    DAYS_TAG,
    END,
    QUERY_TAG,
    START,
    WHY_TAG,
    describe_range,
    log_requests,
    range_tags,
)
from ads_pipeline.orchestration.sensors.earlier_runs import (
    REQUEST_TAG,
    SENSOR_TAG,
    FailedRequest,
    find_earlier_request,
    find_failed_requests,
    find_in_progress,
)
from ads_pipeline.pipeline.arrivals import SENSOR_WINDOW

_LOG: Final = logging.getLogger(__name__)
PRIORITY_TAG: Final = "dagster/priority"
# Dagster starts queued runs of fresh days first; `retry.shares` reserves slots for backfills.
PRIORITIES: Final = {Lane.FRESH: "1", Lane.BACKFILL: "0"}
OWN_TAGS: Final = (QUERY_TAG, CUSTOMERS_TAG, DAYS_TAG, REQUEST_TAG, SENSOR_TAG)
AssetKeyBuilder = Callable[[str], dg.AssetKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPartitions:
    """Due partitions, each with a reason. A new reason allows a new run. `why` is shown in the UI.

    `asset_keys` build the keys of the assets to run of a query. With `by_customer`, runs hold many days of few
    customers rather than many customers of few days. `fetched_together` gives the partitions that one request of the
    source fetches together; a run gets all of them, in the lane of the newest.
    `customers` are added to Dagster, whatever is due.
    """

    names: Names
    sensor: str
    source: str
    query_names: Sequence[str]
    asset_keys: Sequence[AssetKeyBuilder]
    reasons: Mapping[PartitionKey, str]
    why: str
    by_customer: bool = False
    customers: Collection[str] = ()
    fetched_together: Callable[[Iterable[PartitionKey]], Iterable[Sequence[PartitionKey]]] | None = None

    def group(self, keys: Iterable[PartitionKey]) -> Iterable[Sequence[PartitionKey]]:
        """The partitions, in groups that stay in one run."""
        return self.fetched_together(keys) if self.fetched_together else ((key,) for key in keys)

    def assets(self, query_names: Iterable[str]) -> list[dg.AssetKey]:
        return [build_key(name) for name in query_names for build_key in self.asset_keys]


def recent_days(now: datetime) -> tuple[date, date]:
    """The days that every tick searches, both included."""
    return now.date() - SENSOR_WINDOW, now.date()


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRange:
    """A range of partitions, and those of it that are due."""

    start: str
    end: str
    keys: tuple[PartitionKey, ...]

    @property
    def query_names(self) -> list[str]:
        return sorted({key.query_name for key in self.keys})


def build_sensor_result(
    context: dg.SensorEvaluationContext,
    partitions: dg.MultiPartitionsDefinition,
    requested: RequestedPartitions,
    now: datetime,
    *,
    cursor: str | None = None,
) -> dg.SensorResult:
    """Request runs of these partitions, or first add the customers that Dagster does not know yet.

    A range needs both its ends in Dagster, so the runs of new customers follow on the next tick, which starts at the
    same cursor again.
    """
    due, set_of_customers = _select_known(context, partitions, requested, now.date()), requested.names.name(CUSTOMERS)
    customers = drop_invalid_customers(context.log, context.instance.get_dynamic_partitions(set_of_customers))
    new = sorted(({key.customer_id for key in due} | set(requested.customers)) - set(customers))
    if new:
        add = dg.DynamicPartitionsDefinition(name=set_of_customers).build_add_request(new)
        reason = f"added {count_of(len(new), 'new customer')}; the runs follow on the next tick"
        return dg.SensorResult(dynamic_partitions_requests=[add], skip_reason=reason, cursor=context.cursor)
    known = replace(requested, reasons=due)
    requests = build_run_requests(context.instance, partitions, known, now=now, log=context.log)
    if requests:
        log_requests(requested.names, context.log, requests)
        return dg.SensorResult(run_requests=requests, cursor=cursor)
    return dg.SensorResult(skip_reason=_describe_waiting(len(due), requested.why), cursor=cursor)


def _describe_waiting(number: int, why: str) -> str:
    """Why no run is requested for this number of partitions."""
    if number == 0:
        return f"No new run is needed: no {why}."
    if number == 1:
        return f"1 partition waits for a run that has not ended, or for its next run: {why}."
    return f"{number:,} partitions wait for runs that have not ended, or for their next run: {why}."


def build_run_requests(
    instance: dg.DagsterInstance,
    partitions: dg.MultiPartitionsDefinition,
    requested: RequestedPartitions,
    *,
    now: datetime,
    log: logging.Logger = _LOG,
) -> list[dg.RunRequest]:
    """Build the requests for the due partitions. Dagster must have them. Each request is for one lane.

    The log gets a warning for each earlier run whose partitions cannot be read.
    """
    names, assets = requested.names, requested.assets(requested.query_names)
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        in_progress = find_in_progress(
            names, instance, partitions, source=requested.source, assets=assets, now=now, log=log
        )
        failed = find_failed_requests(
            names,
            instance,
            partitions,
            sensor=requested.sensor,
            source=requested.source,
            assets=assets,
            now=now,
            log=log,
        )
        digests = {key: digest_of(reason) for key, reason in requested.reasons.items() if key not in in_progress}
        requests = [request for each in failed if (request := _repeat(each, digests, requested, now))]
        groups = list(requested.group(digests))
        for lane in Lane:
            own = [each for each in groups if lane_for(max(each), now.date()) is lane]
            for found in cover_with_ranges(partitions, own, by_customer=requested.by_customer):
                request = _build_request(instance, requested, found, digests, lane, now)
                requests += [request] if request else []
    return requests


def cover_with_ranges(
    partitions: dg.MultiPartitionsDefinition, groups: Iterable[Sequence[PartitionKey]], *, by_customer: bool = False
) -> Iterator[DueRange]:
    """Yield ranges that cover these partitions, each once. Needs a partition loading context.

    A group has one customer and query. Its days are covered with those between them, so that it stays in one range.
    """
    names = partitions.get_partitions_def_for_dimension(CUSTOMER).get_partition_keys()
    positions = {str(name): position for position, name in enumerate(names)}
    by_cell: dict[str, dict[tuple[int, int], PartitionKey]] = {}
    covered: dict[str, set[tuple[int, int]]] = {}
    for group in groups:
        days = [key.logical_date.toordinal() for key in group]
        customer, query_name = positions[group[0].customer_id], group[0].query_name
        by_cell.setdefault(query_name, {}).update(
            {(customer, day): key for day, key in zip(days, group, strict=True)}
        )
        covered.setdefault(query_name, set()).update((customer, day) for day in range(min(days), max(days) + 1))
    cells = {query: frozenset(found) for query, found in sorted(covered.items())}
    for each in cover(cells, by_customer=by_customer):
        due = [by_cell[query][cell] for query, found in each.due.items() for cell in found & by_cell[query].keys()]
        if due:  # else it has only days between those of a group
            start, end = date.fromordinal(each.since), date.fromordinal(each.until)
            yield DueRange(
                start=f"{names[each.first]}|{start}", end=f"{names[each.last]}|{end}", keys=tuple(sorted(due))
            )


def _repeat(
    failed: FailedRequest, digests: dict[PartitionKey, str], requested: RequestedPartitions, now: datetime
) -> dg.RunRequest | None:
    """The same request again, for those partitions that are still due for the same reason. They leave `digests`.

    Without any, it is repeated once more if Dagster shows other partitions of its range as failed.
    """
    names = requested.names
    remaining = {key: digest for key, digest in failed.due.items() if digests.get(key) == digest}
    for key in remaining:
        del digests[key]
    if not (remaining or failed.shows_failed) or not failed.earlier.may_follow(now):
        return None
    repeated = {START, END, PRIORITY_TAG, *map(names.tag, OWN_TAGS)}
    why = f"{count_of(len(remaining), 'partition')}: {requested.why}; again after run {failed.run.run_id[:8]}"
    return dg.RunRequest(
        run_key=failed.earlier.run_key,
        asset_selection=sorted(failed.run.asset_selection or ()),
        run_config=build_run_config(names, remaining),
        tags={tag: value for tag, value in failed.run.tags.items() if tag in repeated} | {names.tag(WHY_TAG): why},
    )


def _build_request(
    instance: dg.DagsterInstance,
    requested: RequestedPartitions,
    found: DueRange,
    digests: Mapping[PartitionKey, str],
    lane: Lane,
    now: datetime,
) -> dg.RunRequest | None:
    names, assets = requested.names, requested.assets(found.query_names)
    due = {key: digests[key] for key in found.keys}
    why = f"{count_of(len(due), 'partition')}: {requested.why}"
    tags = range_tags(names, found.query_names, found.start, found.end, why=why)
    digest = digest_of(([str(asset) for asset in assets], sorted((str(key), each) for key, each in due.items())))
    earlier = find_earlier_request(names, instance, f"{describe_range(names, tags)}, {digest}")
    if not earlier.may_follow(now):
        return None
    own = {
        names.tag(REQUEST_TAG): earlier.name,
        names.tag(SENSOR_TAG): requested.sensor,
        PRIORITY_TAG: PRIORITIES[lane],
    }
    return dg.RunRequest(
        run_key=earlier.run_key, asset_selection=assets, run_config=build_run_config(names, due), tags=tags | own
    )


def _select_known(
    context: dg.SensorEvaluationContext,
    partitions: dg.MultiPartitionsDefinition,
    requested: RequestedPartitions,
    today: date,
) -> dict[PartitionKey, str]:
    """Select the partitions that Dagster has. Today becomes a partition only tomorrow."""
    days = partitions.get_partitions_def_for_dimension(DATE)
    first = date.fromisoformat(str(days.get_first_partition_key()))
    queries, reasons = frozenset(requested.query_names), requested.reasons
    unknown = [key for key in reasons if key.query_name not in queries or key.logical_date < first]
    if unknown:
        message = (
            "the sealed runs of %s have no asset: the query is not in the query file, or the day is before the start "
            "date %s. The data are kept. First: %s"
        )
        context.log.warning(message, count_of(len(unknown), "partition"), first, min(unknown))
    return {
        key: why for key, why in reasons.items() if key.query_name in queries and first <= key.logical_date < today
    }
