"""Builds the sensor `states_to_load`: it requests loads of accepted runs that readers do not see yet."""

from datetime import datetime, timedelta
from typing import Final

import dagster as dg

from ads_pipeline.ledger.sql.ledger_values import DayWindow, PublicationStatus
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.resources import SENSOR_RESOURCES
from ads_pipeline.orchestration.sensors.run_requests import RequestedPartitions, build_sensor_result, recent_days

LOAD_GRACE_PERIOD: Final = timedelta(minutes=10)  # a run that has just judged a partition loads it next
LOAD_INTERVAL_SECONDS: Final = 300


def build_load_sensor(
    names: Names, partitions: dg.MultiPartitionsDefinition, query_names: list[str], *, now: Clock
) -> dg.SensorDefinition:
    @dg.sensor(
        name=names.name("states_to_load"),
        required_resource_keys=names.require(SENSOR_RESOURCES),
        target=dg.AssetSelection.assets(*names.assets(query_names)),
        minimum_interval_seconds=LOAD_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests loads of successful partitions whose current run is not yet published.",
    )
    def states_to_load(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        sensor_resources = names.find(context, SENSOR_RESOURCES)
        since, until = recent_days(now())
        reasons = {
            publication.state.key: str(publication.state.current_run_id)
            for name in query_names
            for publication in sensor_resources.ledger.publications.in_window(
                DayWindow(source=sensor_resources.source_name, query_name=name, since=since, until=until)
            )
            if _is_load_due(publication, now())
        }
        requested = RequestedPartitions(
            sensor=names.name("states_to_load"),
            names=names,
            source=sensor_resources.source_name,
            query_names=query_names,
            asset_keys=(names.warehouse,),
            reasons=reasons,
            why="accepted runs that are not loaded",
        )
        return build_sensor_result(context, partitions, requested, now())

    return states_to_load


def _is_load_due(publication: PublicationStatus, now: datetime) -> bool:
    updated_at = publication.state.updated_at
    is_settled = updated_at is not None and updated_at < now - LOAD_GRACE_PERIOD
    return publication.is_publishable and is_settled and not publication.points_at_current
