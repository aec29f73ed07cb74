"""Watches for what was sealed and for what was accepted and not loaded, and asks Dagster for runs.

Sensors read and never write. An outage is an error of the tick, never a reason to skip.
"""

from collections import defaultdict
from datetime import date, datetime, timedelta
from typing import Final

import dagster as dg

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_snapshots import Lag
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.values import PublicationStatus
from ads_pipeline.orchestration.partitions import assets_of, raw_asset, warehouse_asset
from ads_pipeline.orchestration.resources import SensorResources
from ads_pipeline.orchestration.retry_sensor import build_retries
from ads_pipeline.orchestration.run_completion import end_runs
from ads_pipeline.orchestration.sensor_results import Clock, answer

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
    def raw_arrivals(
        context: dg.SensorEvaluationContext, watch: dg.ResourceParam[SensorResources]
    ) -> dg.SensorResult:
        since, until = _window(now())
        found = watch.sealed.arrived(source=watch.source_name, since=since, until=until)
        for damage in found.nameless:
            context.log.warning("%s: %s", damage.path, damage.problem)
        reasons: dict[PartitionKey, str] = defaultdict(str)
        for run in found.runs:
            reasons[run.key] += f"{run.run_id} "
        return answer(context, partitions, reasons, query_names, [raw_asset, warehouse_asset], now())

    @dg.sensor(
        target=dg.AssetSelection.assets(*assets_of(query_names)),
        minimum_interval_seconds=5 * SECONDS_BETWEEN_LOOKS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Loads partitions whose accepted run is not the one that readers are pointed at.",
    )
    def states_to_load(
        context: dg.SensorEvaluationContext, watch: dg.ResourceParam[SensorResources]
    ) -> dg.SensorResult:
        since, until = _window(now())
        reasons = {
            standing.state.key: str(standing.state.current_run_id)
            for name in query_names
            for standing in watch.ledger.standings(
                source=watch.source_name, query_name=name, since=since, until=until
            )
            if _is_unloaded(standing, now())
        }
        return answer(context, partitions, reasons, query_names, [warehouse_asset], now())

    return [raw_arrivals, states_to_load, build_retries(partitions, query_names, now=now), _run_endings()]


def _run_endings() -> dg.SensorDefinition:
    @dg.sensor(
        minimum_interval_seconds=SECONDS_BETWEEN_LOOKS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Tells the log of events how runs ended, also of those that died, and Dagster of those that only "
        "their lease tells of; keeps the snapshots up.",
    )
    def run_endings(context: dg.SensorEvaluationContext, watch: dg.ResourceParam[SensorResources]) -> dg.SensorResult:
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


def _is_unloaded(standing: PublicationStatus, now: datetime) -> bool:
    updated_at = standing.state.updated_at
    settled = updated_at is not None and updated_at < now - SETTLING
    return standing.publishable and settled and not standing.pointed_at_current
