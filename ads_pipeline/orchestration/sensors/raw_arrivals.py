"""Builds the sensor `raw_arrivals`: it requests runs for sealed runs that have no verdict, and adds customers.

When the ledger is out of reach a tick fails; it never skips.
"""

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

import dagster as dg

from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.partition import PartitionKey, parse_date
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.ledger.state.states import States
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.resources import SENSOR_RESOURCES
from ads_pipeline.orchestration.sensors.run_requests import RequestedPartitions, build_sensor_result, recent_days
from ads_pipeline.pipeline.arrivals import SearchMemory

OLDER_DAYS_PER_TICK: Final = 31  # bounds the work of a tick; all ticks together search all days since the start date
CUSTOMERS_INTERVAL: Final = timedelta(minutes=10)  # between searches of the ledger for customers


def build_arrival_sensor(
    names: Names, partitions: dg.MultiPartitionsDefinition, query_names: list[str], *, interval: timedelta, now: Clock
) -> dg.SensorDefinition:
    # They live as long as the process that evaluates the sensor.
    memory, ledger_customers = SearchMemory(clock=now), LedgerCustomers(clock=now)

    @dg.sensor(
        name=names.name("raw_arrivals"),
        required_resource_keys=names.require(SENSOR_RESOURCES),
        target=dg.AssetSelection.assets(*names.assets(query_names)),
        # The daemon looks every five seconds. It would often find a whole interval not quite over, and wait again.
        minimum_interval_seconds=int(interval.total_seconds()) - 1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests runs for partitions with sealed runs that have no verdict. Adds new customers first, "
        "and those that only the ledger knows. "
        "Each tick searches the last 92 days and one month of older days, from new to old and then again. In a "
        "bucket, each tick lists 30,000 runs and the next tick goes on.",
    )
    def raw_arrivals(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        sensor_resources = names.find(context, SENSOR_RESOURCES)
        recent, start = recent_days(now()), sensor_resources.settings.google_apis.start_date
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
            sensor=names.name("raw_arrivals"),
            names=names,
            source=source,
            query_names=query_names,
            asset_keys=(names.raw, names.warehouse),
            reasons=reasons,
            why="sealed runs without a verdict",
            customers=ledger_customers.read(sensor_resources.ledger.states, source),
        )
        return build_sensor_result(context, partitions, requested, now(), cursor=cursor)

    return raw_arrivals


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
