"""Builds the run requests of sensors: ranges of due partitions that no unfinished run covers.

Dagster ignores a repeated run key for ever. The key therefore names the last run of the same request, and each
further run waits longer.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

import dagster as dg

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import Lane, lane_for
from ads_pipeline.orchestration.partitions import CUSTOMER, CUSTOMERS, DATE, drop_invalid_customers

REQUEST_TAG: Final = "ads_pipeline/request"
PRIORITY_TAG: Final = "dagster/priority"
# Dagster starts queued runs of fresh days first; `retry.shares` reserves slots for backfills.
PRIORITIES: Final = {Lane.FRESH: "1", Lane.BACKFILL: "0"}
QUERY_TAG: Final = "ads_pipeline/query"
CUSTOMERS_TAG, DAYS_TAG, WHY_TAG = "ads_pipeline/customers", "ads_pipeline/days", "ads_pipeline/why"
START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
MAX_DELAY: Final = timedelta(hours=1)
MAX_DOUBLINGS: Final = 5  # of the delay, which starts at one minute
AssetKeyBuilder = Callable[[str], dg.AssetKey]
_FINISHED: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPartitions:
    """Partitions of one query to run, each with a reason. A new reason allows a new run. `why` is shown in the UI."""

    query_name: str
    assets: tuple[dg.AssetKey, ...]
    reasons: Mapping[PartitionKey, str]
    why: str
    lane: Lane = Lane.BACKFILL


def build_sensor_result(
    context: dg.SensorEvaluationContext,
    partitions: dg.MultiPartitionsDefinition,
    reasons: Mapping[PartitionKey, str],
    query_names: Sequence[str],
    asset_keys: Sequence[AssetKeyBuilder],
    now: datetime,
    *,
    why: str,
    cursor: str | None = None,
) -> dg.SensorResult:
    """Request runs of these partitions, or first add the customers that Dagster does not know yet.

    A range needs both its ends in Dagster, so the runs of new customers follow on the next tick, which starts at the
    same cursor again.
    """
    due = _select_known(context, partitions, reasons, query_names, now.date())
    customers = drop_invalid_customers(context.log, context.instance.get_dynamic_partitions(CUSTOMERS))
    new = sorted({key.customer_id for key in due} - set(customers))
    if new:
        add = dg.DynamicPartitionsDefinition(name=CUSTOMERS).build_add_request(new)
        reason = f"added {len(new)} new customers; their runs follow on the next tick"
        return dg.SensorResult(dynamic_partitions_requests=[add], skip_reason=reason, cursor=context.cursor)
    requests: list[dg.RunRequest] = []
    for name in query_names:
        assets = tuple(build_key(name) for build_key in asset_keys)
        for lane in Lane:
            group = (name, lane)
            selected = {key: why for key, why in due.items() if (key.query_name, lane_for(key, now.date())) == group}
            if selected:
                requested = RequestedPartitions(query_name=name, assets=assets, reasons=selected, why=why, lane=lane)
                requests += build_run_requests(context.instance, partitions, requested, now=now)
    if requests:
        log_requests(context.log, requests)
        return dg.SensorResult(run_requests=requests, cursor=cursor)
    waiting = "; they are in unfinished runs or wait for their next run" if due else ""
    return dg.SensorResult(skip_reason=f"{len(due)} partitions: {why}{waiting}", cursor=cursor)


def build_run_requests(
    instance: dg.DagsterInstance,
    partitions: dg.MultiPartitionsDefinition,
    requested: RequestedPartitions,
    *,
    now: datetime,
) -> list[dg.RunRequest]:
    """Build one request per range of requested partitions. Partitions in unfinished runs are left out."""
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        in_progress = _find_in_progress(instance, partitions, requested.assets)
        named = {key.dagster_key: reason for key, reason in requested.reasons.items()}
        due = {name: reason for name, reason in named.items() if name not in in_progress}
        ranges = cut_into_ranges(partitions, due)
    requests = (
        _build_request(instance, requested, start, end, [(name, due[name]) for name in names], now)
        for start, end, names in ranges
    )
    return [request for request in requests if request is not None]


def cut_into_ranges(
    partitions: dg.MultiPartitionsDefinition, names: Iterable[str]
) -> list[tuple[str, str, list[str]]]:
    """The ranges of exactly these partitions: the ends and all names of each. Needs a partition loading context."""
    subset = partitions.subset_with_partition_keys(names)
    customers = partitions.get_partitions_def_for_dimension(CUSTOMER).get_partition_keys()
    positions = {str(name): position for position, name in enumerate(customers)}
    ranges = _join_ranges(subset.get_partition_key_ranges(partitions), positions)
    return sorted(
        (each.start, each.end, [str(name) for name in partitions.get_partition_keys_in_range(each)])
        for each in ranges
    )


def _join_ranges(ranges: Iterable[dg.PartitionKeyRange], positions: Mapping[str, int]) -> list[dg.PartitionKeyRange]:
    """Join ranges of the same customers on following days, and of following customers on the same days.

    Dagster cuts a range per day or per customer where several of both are due. A run of many days needs fewer
    requests of the source. `positions` has the place of each customer in Dagster's order.
    """
    boxes = []
    for each in ranges:
        (first, since), (last, until) = _split(each.start), _split(each.end)
        boxes.append((positions[first], positions[last], since.toordinal(), until.toordinal()))
    by_days = _join_boxes(boxes)
    turned = _join_boxes((since, until, first, last) for first, last, since, until in by_days)
    names = {position: name for name, position in positions.items()}
    return [
        dg.PartitionKeyRange(f"{names[first]}|{date.fromordinal(since)}", f"{names[last]}|{date.fromordinal(until)}")
        for since, until, first, last in turned
    ]


def _join_boxes(boxes: Iterable[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Join boxes with the same first two numbers whose last two, the ends of a span, follow each other."""
    joined: list[tuple[int, int, int, int]] = []
    for box in sorted(boxes):
        if joined and joined[-1][:2] == box[:2] and joined[-1][3] + 1 == box[2]:
            joined[-1] = (*joined[-1][:3], box[3])
        else:
            joined.append(box)
    return joined


def _split(name: str) -> tuple[str, date]:
    """The customer and the day of a partition's name."""
    customer, _, day = name.rpartition("|")
    return customer, date.fromisoformat(day)


def digest_of(content: object) -> str:
    """A short digest for run keys and tags."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]


def range_tags(query_name: str, start: str, end: str, *, why: str) -> dict[str, str]:
    """The tags of a run over a range of partitions of one query. The UI shows them in its list of runs."""
    (first_customer, _, first_day), (last_customer, _, last_day) = start.rpartition("|"), end.rpartition("|")
    return {
        START: start,
        END: end,
        QUERY_TAG: query_name,
        CUSTOMERS_TAG: _describe_span(first_customer, last_customer),
        DAYS_TAG: _describe_span(first_day, last_day),
        WHY_TAG: why,
    }


def describe_range(tags: Mapping[str, str]) -> str:
    """The query, customers and days of a run with the tags of `range_tags`."""
    return f"{tags[QUERY_TAG]}, customers {tags[CUSTOMERS_TAG]}, days {tags[DAYS_TAG]}"


def log_requests(log: logging.Logger, requests: Iterable[dg.RunRequest]) -> None:
    """Log what each requested run is about. The UI shows the log beside the tick."""
    for request in requests:
        log.info("requests %s: %s", describe_range(request.tags), request.tags[WHY_TAG])


def _describe_span(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _select_known(
    context: dg.SensorEvaluationContext,
    partitions: dg.MultiPartitionsDefinition,
    reasons: Mapping[PartitionKey, str],
    query_names: Sequence[str],
    today: date,
) -> dict[PartitionKey, str]:
    """Select the partitions that Dagster has. Today becomes a partition only tomorrow."""
    days = partitions.get_partitions_def_for_dimension(DATE)
    first = date.fromisoformat(str(days.get_first_partition_key()))
    unknown = [key for key in reasons if key.query_name not in query_names or key.logical_date < first]
    if unknown:
        message = (
            "%d partitions have sealed runs but no asset: their query is not in the query file, or their day is "
            "before the start date %s. Their data is kept. First: %s"
        )
        context.log.warning(message, len(unknown), first, min(unknown))
    return {
        key: why
        for key, why in reasons.items()
        if key.query_name in query_names and first <= key.logical_date < today
    }


def _build_request(
    instance: dg.DagsterInstance,
    requested: RequestedPartitions,
    start: str,
    end: str,
    reasons: Sequence[tuple[str, str]],
    now: datetime,
) -> dg.RunRequest | None:
    digest = digest_of((requested.query_name, [str(asset) for asset in requested.assets], sorted(reasons)))
    tags = range_tags(requested.query_name, start, end, why=f"{len(reasons)} partitions: {requested.why}")
    name = f"{describe_range(tags)}, {digest}"
    earlier = dg.RunsFilter(tags={REQUEST_TAG: name})
    last = next(iter(instance.get_run_records(filters=earlier, limit=1)), None)
    if last is not None and not _may_follow(last, instance.get_runs_count(earlier), now):
        return None
    return dg.RunRequest(
        run_key=f"{name}, after run {last.dagster_run.run_id if last else 0}",
        asset_selection=list(requested.assets),
        tags=tags | {REQUEST_TAG: name, PRIORITY_TAG: PRIORITIES[requested.lane]},
    )


def _may_follow(last: dg.RunRecord, runs: int, now: datetime) -> bool:
    """Whether the delay after the last of these runs is over: 2 minutes after the first, later up to an hour."""
    delay = MAX_DELAY if runs > MAX_DOUBLINGS else timedelta(minutes=2**runs)
    return last.dagster_run.is_finished and now >= datetime.fromtimestamp(last.end_time or 0.0, UTC) + delay


def _find_in_progress(
    instance: dg.DagsterInstance, partitions: dg.MultiPartitionsDefinition, assets: Sequence[dg.AssetKey]
) -> set[str]:
    """Find the names of the partitions that unfinished runs cover, including runs started by operators."""
    unfinished = [status for status in dg.DagsterRunStatus if status.value not in _FINISHED]
    return {
        name
        for run in instance.get_runs(filters=dg.RunsFilter(statuses=unfinished))
        if _may_run_assets(run, assets)
        for name in partition_names(run.tags, partitions)
    }


def _may_run_assets(run: dg.DagsterRun, assets: Sequence[dg.AssetKey]) -> bool:
    """Whether the run may run one of the assets. A run without a selection runs all, unless it only runs checks."""
    if not run.asset_selection:
        return not run.asset_check_selection
    return not run.asset_selection.isdisjoint(assets)


def partition_names(tags: Mapping[str, str], partitions: dg.MultiPartitionsDefinition) -> Iterable[str]:
    """The partitions of a run with these tags. A range is empty if the customer at one of its ends was deleted."""
    if START not in tags:
        return [tags["dagster/partition"]] if "dagster/partition" in tags else []
    try:
        return map(str, partitions.get_partition_keys_in_range(dg.PartitionKeyRange(tags[START], tags[END])))
    except dg.DagsterInvalidInvocationError:
        return []  # the run fails when it starts
