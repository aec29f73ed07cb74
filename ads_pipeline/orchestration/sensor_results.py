"""Makes a sensor's answer out of what is due: new customers first, then runs, fresh days before others."""

from collections.abc import Callable, Sequence
from datetime import date, datetime

import dagster as dg

from ads_pipeline.domain.partition import NAME_RULES, PartitionKey
from ads_pipeline.domain.retry import Lane, lane_for
from ads_pipeline.orchestration.partitions import CUSTOMERS, DAY
from ads_pipeline.orchestration.run_requests import RequestedPartitions, run_requests
from ads_pipeline.quoting import quoted

AssetOf = Callable[[str], dg.AssetKey]
Clock = Callable[[], datetime]


def answer(
    context: dg.SensorEvaluationContext,
    partitions: dg.MultiPartitionsDefinition,
    reasons: dict[PartitionKey, str],
    query_names: list[str],
    assets_of: list[AssetOf],
    now: datetime,
) -> dg.SensorResult:
    """New customers on one tick, their runs on the next: a range can only be cut once Dagster knows both its ends."""
    days = partitions.get_partitions_def_for_dimension(DAY)
    first, today = date.fromisoformat(str(days.get_first_partition_key())), now.date()
    known = {key: why for key, why in reasons.items() if key.query_name in query_names and key.logical_date >= first}
    if len(known) < len(reasons):
        _warn_of_others(context, [key for key in reasons if key not in known], first)
    known = {key: why for key, why in known.items() if key.logical_date < today}  # today is a partition tomorrow
    customers = context.instance.get_dynamic_partitions(CUSTOMERS)
    _warn_of_oddities(context, customers)
    new = sorted({key.customer_id for key in known} - set(customers))
    if new:
        add = dg.DynamicPartitionsDefinition(name=CUSTOMERS).build_add_request(new)
        return dg.SensorResult(dynamic_partitions_requests=[add], skip_reason=f"adding {len(new)} customers first")
    requests = []
    for name in query_names:
        assets = tuple(asset(name) for asset in assets_of)
        for lane in Lane:
            here = (name, lane)
            of_lane = {key: why for key, why in known.items() if (key.query_name, lane_for(key, today)) == here}
            due = RequestedPartitions(query_name=name, assets=assets, reasons=of_lane, lane=lane)
            requests += run_requests(context.instance, partitions, due, now=now) if of_lane else []
    if requests:
        return dg.SensorResult(run_requests=requests)
    waiting = f"; runs are at work on {len(known)} partitions or wait for their next try" if known else ""
    return dg.SensorResult(skip_reason=f"nothing is due{waiting}")


def _warn_of_oddities(context: dg.SensorEvaluationContext, customers: Sequence[str]) -> None:
    """The UI lets anything be added as a customer, and then does not show partitions it cannot spell."""
    rule, words = NAME_RULES["customer_id"]
    for name in customers:
        if rule.fullmatch(name) is None:
            context.log.warning("%s in %s is no customer (%s); delete it there", quoted(name), CUSTOMERS, words)


def _warn_of_others(context: dg.SensorEvaluationContext, keys: list[PartitionKey], first: date) -> None:
    """What lies outside: a query that was taken out of the query file, or a day before the start date."""
    context.log.warning(
        "%d partitions have runs and no asset: their query is not in the query file, or their day is before %s. "
        "Nothing of them is lost. First: %s",
        len(keys),
        first,
        min(keys),
    )
