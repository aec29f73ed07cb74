"""Watches for what was sealed and for what was accepted and not loaded, and asks Dagster for runs.

Sensors read and never write. An outage is an error of the tick, never a reason to skip.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from typing import Final

import dagster as dg

from ads_pipeline.errors import quoted
from ads_pipeline.ledger.projection import Follower
from ads_pipeline.ledger.records import Standing
from ads_pipeline.orchestration.dispatching import Due, run_requests
from ads_pipeline.orchestration.endings import end_runs
from ads_pipeline.orchestration.keys import CUSTOMERS, DAY, assets_of, raw_asset, warehouse_asset
from ads_pipeline.orchestration.rooms import Watch
from ads_pipeline.partition import NAME_RULES, PartitionKey
from ads_pipeline.run_snapshots import Lag

Clock = Callable[[], datetime]
AssetOf = Callable[[str], dg.AssetKey]
WINDOW: Final = timedelta(days=92)  # how far back is looked for what was sealed late
SETTLING: Final = timedelta(minutes=10)  # a run that has just judged is about to load
SECONDS_BETWEEN_LOOKS: Final = 60


def build_sensors(
    partitions: dg.MultiPartitionsDefinition, query_names: list[str], *, now: Clock
) -> list[dg.SensorDefinition]:
    """One sensor for arrivals, one for loads that are missing, one for runs that failed; all over all queries."""

    @dg.sensor(
        target=dg.AssetSelection.assets(*assets_of(query_names)),
        minimum_interval_seconds=SECONDS_BETWEEN_LOOKS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Judges and loads what was sealed and has no verdict; adds customers that were never seen.",
    )
    def raw_arrivals(context: dg.SensorEvaluationContext, watch: dg.ResourceParam[Watch]) -> dg.SensorResult:
        since, until = _window(now())
        found = watch.sealed.arrived(source=watch.source_name, since=since, until=until)
        for damage in found.nameless:
            context.log.warning("%s: %s", damage.path, damage.problem)
        reasons: dict[PartitionKey, str] = defaultdict(str)
        for run in found.runs:
            reasons[run.key] += f"{run.run_id} "
        return _result(context, partitions, reasons, query_names, [raw_asset, warehouse_asset], now())

    @dg.sensor(
        target=dg.AssetSelection.assets(*assets_of(query_names)),
        minimum_interval_seconds=5 * SECONDS_BETWEEN_LOOKS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Loads partitions whose accepted run is not the one that readers are pointed at.",
    )
    def states_to_load(context: dg.SensorEvaluationContext, watch: dg.ResourceParam[Watch]) -> dg.SensorResult:
        since, until = _window(now())
        reasons = {
            standing.state.key: str(standing.state.current_run_id)
            for name in query_names
            for standing in watch.ledger.standings(
                source=watch.source_name, query_name=name, since=since, until=until
            )
            if _is_unloaded(standing, now())
        }
        return _result(context, partitions, reasons, query_names, [warehouse_asset], now())

    return [raw_arrivals, states_to_load, _run_endings()]


def _run_endings() -> dg.SensorDefinition:
    @dg.sensor(
        minimum_interval_seconds=SECONDS_BETWEEN_LOOKS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Tells the log of events how runs ended, also of those that died, and Dagster of those that only "
        "their lease tells of; keeps the snapshots up.",
    )
    def run_endings(context: dg.SensorEvaluationContext, watch: dg.ResourceParam[Watch]) -> dg.SensorResult:
        def raised(alarm: Lag, behind: timedelta) -> None:
            context.log.error("%s: the snapshots of runs are %.1f s behind", alarm, behind.total_seconds())

        follower = Follower(watch.events)
        follower.catch_up(raised)
        ended = list(end_runs(context.instance, watch.events))
        follower.catch_up()
        for run in ended:
            if run.left:
                context.log.error(
                    "%s ended as %s and left %d sealed runs unjudged: %s",
                    run.run_id,
                    run.status,
                    len(run.left),
                    run.left[0],
                )
        told = f"{len(ended)} runs have ended since the last look; this sensor starts none"
        return dg.SensorResult(skip_reason=told)

    return run_endings


def _window(now: datetime) -> tuple[date, date]:
    return now.date() - WINDOW, now.date()


def _is_unloaded(standing: Standing, now: datetime) -> bool:
    updated_at = standing.state.updated_at
    settled = updated_at is not None and updated_at < now - SETTLING
    return standing.publishable and settled and not standing.pointed_at_current


def _result(
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
        of_query = {key: why for key, why in known.items() if key.query_name == name}
        due = Due(query_name=name, assets=tuple(asset(name) for asset in assets_of), reasons=of_query)
        requests += run_requests(context.instance, partitions, due, now=now) if of_query else []
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
