"""Builds the sensors `raw_arrivals` and `states_to_load`, and lists all sensors.

When the ledger is out of reach a tick fails; it never skips.
"""

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

import dagster as dg

from ads_pipeline.domain.partition import PartitionKey, parse_date
from ads_pipeline.errors import BadName
from ads_pipeline.ledger.state.states import States
from ads_pipeline.ledger.transactions import Clock
from ads_pipeline.ledger.values import DayWindow, PublicationStatus
from ads_pipeline.orchestration.partitions import asset_keys, raw_asset_key, warehouse_asset_key
from ads_pipeline.orchestration.resources import SensorResources
from ads_pipeline.orchestration.sensors.notifications import build_notification_sensor
from ads_pipeline.orchestration.sensors.readable_changes import build_readable_sensor
from ads_pipeline.orchestration.sensors.report_changes import build_report_sensor
from ads_pipeline.orchestration.sensors.retries_due import build_retry_sensor
from ads_pipeline.orchestration.sensors.run_completion import build_run_completion_sensor
from ads_pipeline.orchestration.sensors.run_requests import RequestedPartitions, build_sensor_result
from ads_pipeline.pipeline.arrivals import SearchMemory
from ads_pipeline.quoting import count_of

LOOKBACK: Final = timedelta(days=92)  # the days that every tick searches
OLDER_DAYS_PER_TICK: Final = 31  # bounds the work of `raw_arrivals`, which searches all days since the start date
LOAD_GRACE_PERIOD: Final = timedelta(minutes=10)  # a run that has just judged a partition loads it next
LOAD_INTERVAL_SECONDS: Final = 300
CUSTOMERS_INTERVAL: Final = timedelta(minutes=10)  # between searches of the ledger for customers


def build_sensors(
    partitions: dg.MultiPartitionsDefinition,
    query_names: list[str],
    *,
    arrival_interval: timedelta,
    has_webhook: bool,
    now: Clock,
) -> list[dg.SensorDefinition]:
    """Build the sensors. Each of them covers all queries."""
    # They live as long as the process that evaluates the sensors.
    memory, ledger_customers = SearchMemory(clock=now), LedgerCustomers(clock=now)

    @dg.sensor(
        target=dg.AssetSelection.assets(*asset_keys(query_names)),
        # The daemon looks every five seconds. It would often find a whole interval not quite over, and wait again.
        minimum_interval_seconds=int(arrival_interval.total_seconds()) - 1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests runs for partitions with sealed runs that have no verdict. Adds new customers first, "
        "and those that only the ledger knows. "
        "Each tick searches the last 92 days and one month of older days, from new to old and then again. In a "
        "bucket, each tick lists 30,000 runs and the next tick goes on.",
    )
    def raw_arrivals(
        context: dg.SensorEvaluationContext, sensor_resources: dg.ResourceParam[SensorResources]
    ) -> dg.SensorResult:
        recent, start = _window(now()), sensor_resources.settings.google_apis.start_date
        source, sealed_runs = sensor_resources.source_name, sensor_resources.sealed_runs
        if sealed_runs.is_searched_in_parts:
            older, windows = None, [(min(start, recent[0]), recent[1])]
        else:
            older = _find_older_days(context.cursor, start, recent[0])
            windows = [recent] if older is None else [older, recent]
        unjudged = [
            sealed_runs.find_unjudged(source=source, since=since, until=until, memory=memory)
            for since, until in windows
        ]
        for path, problem in sorted(
            {(damaged.path, damaged.problem) for each in unjudged for damaged in each.misnamed}
        ):
            context.log.warning("%s: %s", path, problem)
        without_contract = sorted({run for each in unjudged for run in each.without_contract})
        if without_contract:
            message = "%s cannot be judged: no contract is declared for the schema version. First: %s"
            context.log.warning(message, count_of(len(without_contract), "run"), without_contract[0])
        reasons: dict[PartitionKey, str] = defaultdict(str)
        for run in (run for each in unjudged for run in each.runs):
            reasons[run.key] += f"{run.run_id} "
        cursor = older[0].isoformat() if older else None
        requested = RequestedPartitions(
            sensor="raw_arrivals",
            source=source,
            query_names=query_names,
            asset_keys=(raw_asset_key, warehouse_asset_key),
            reasons=reasons,
            why="sealed runs without a verdict",
            customers=ledger_customers.read(sensor_resources.ledger.states, source),
        )
        return build_sensor_result(context, partitions, requested, now(), cursor=cursor)

    @dg.sensor(
        target=dg.AssetSelection.assets(*asset_keys(query_names)),
        minimum_interval_seconds=LOAD_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests loads of successful partitions whose current run is not yet published.",
    )
    def states_to_load(
        context: dg.SensorEvaluationContext, sensor_resources: dg.ResourceParam[SensorResources]
    ) -> dg.SensorResult:
        since, until = _window(now())
        reasons = {
            publication.state.key: str(publication.state.current_run_id)
            for name in query_names
            for publication in sensor_resources.ledger.publications.in_window(
                DayWindow(source=sensor_resources.source_name, query_name=name, since=since, until=until)
            )
            if _is_load_due(publication, now())
        }
        requested = RequestedPartitions(
            sensor="states_to_load",
            source=sensor_resources.source_name,
            query_names=query_names,
            asset_keys=(warehouse_asset_key,),
            reasons=reasons,
            why="accepted runs that are not loaded",
        )
        return build_sensor_result(context, partitions, requested, now())

    return [
        raw_arrivals,
        states_to_load,
        build_retry_sensor(partitions, query_names, now=now),
        build_readable_sensor(partitions, query_names, now=now),
        build_run_completion_sensor(query_names, now=now),
        build_notification_sensor(has_webhook=has_webhook, now=now),
        build_report_sensor(now=now),
    ]


@dataclass(slots=True)
class LedgerCustomers:
    """The customers that the ledger knows, which a new instance of Dagster lacks. They are read every ten minutes."""

    clock: Clock
    _read_at: datetime | None = None

    def read(self, states: States, source: str) -> list[str]:
        """Return the customers; nothing before they are due again."""
        at = self.clock()
        if self._read_at is not None and timedelta() <= at - self._read_at < CUSTOMERS_INTERVAL:
            return []
        customers, self._read_at = states.customers(source), at
        return customers


def _find_older_days(cursor: str | None, start: date, recent: date) -> tuple[date, date] | None:
    """Find the days before the recent ones to search next: from new to old, then from new again.

    The cursor is the oldest day that the last tick searched. A cursor that somebody has changed starts again.
    """
    until = recent
    with suppress(BadName):
        until = min(parse_date(cursor), recent)
    if until <= start:
        until = recent
    until -= timedelta(days=1)
    return (max(start, until - timedelta(days=OLDER_DAYS_PER_TICK - 1)), until) if until >= start else None


def _window(now: datetime) -> tuple[date, date]:
    return now.date() - LOOKBACK, now.date()


def _is_load_due(publication: PublicationStatus, now: datetime) -> bool:
    updated_at = publication.state.updated_at
    is_settled = updated_at is not None and updated_at < now - LOAD_GRACE_PERIOD
    return publication.is_publishable and is_settled and not publication.points_at_current
