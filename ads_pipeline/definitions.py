"""Assembles the code location that `workspace.yaml` points Dagster to."""

import os
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime

import dagster as dg
from dagster_pyspark import PySparkResource

from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.orchestration import demo_run
from ads_pipeline.orchestration.assets import build_query
from ads_pipeline.orchestration.io_manager import PartitionStateIOManager
from ads_pipeline.orchestration.partitions import partitions_from
from ads_pipeline.orchestration.resources import Extractor, RunResources, SensorResources, opened, outside, watching
from ads_pipeline.orchestration.run_completion import origin_of
from ads_pipeline.orchestration.schedules import build_schedules
from ads_pipeline.orchestration.sensor_results import Clock
from ads_pipeline.orchestration.sensors import build_sensors
from ads_pipeline.settings import Settings, read_settings
from ads_pipeline.spark_session import spark_config


def _now() -> datetime:
    return datetime.now(UTC)


def build_definitions(
    settings: Settings | None = None, *, now: Clock = _now, extractor: Extractor = outside
) -> dg.Definitions:
    """Everything Dagster is to know of the product, from these settings or the environment's."""
    known = settings or read_settings(os.environ)
    apis = known.google_apis
    partitions = partitions_from(apis.start_date)
    with warnings.catch_warnings():
        # Partitioned checks and backfill policies are what the product rests on, and Dagster is pinned.
        warnings.simplefilter("ignore", dg.BetaWarning)
        warnings.simplefilter("ignore", dg.PreviewWarning)
        built = [
            build_query(name, query, source=apis.source, partitions=partitions)
            for name, query in apis.queries.items()
        ]
        sensors = build_sensors(partitions, list(apis.queries), now=now)
        schedules = build_schedules(list(apis.queries))
    return dg.Definitions(
        assets=[asset for assets, _check in built for asset in assets],
        asset_checks=[check for _assets, check in built],
        sensors=sensors,
        schedules=schedules,
        resources={
            "rooms": _rooms(known, extractor),
            "watch": _watch(known, extractor),
            "desk": _desk(known),
            "partition_state": _partition_state,
            "pyspark": PySparkResource(spark_config=spark_config(known)),
        },
        # One process a run, so that its steps share one Spark session.
        executor=dg.in_process_executor,
    )


# Neither is a configurable resource: the address of the ledger may hold a password, which Dagster would show.
def _rooms(settings: Settings, extractor: Extractor) -> dg.ResourceDefinition:
    @dg.resource(description="The ledger, the raw runs and the warehouse of this deployment.")
    def rooms(context: dg.InitResourceContext) -> Iterator[RunResources]:
        if context.run is None:
            raise dg.DagsterInvariantViolationError("rooms are opened for a run")
        with opened(settings, origin_of(context.run), extractor) as found:
            yield found

    return rooms


def _watch(settings: Settings, extractor: Extractor) -> dg.ResourceDefinition:
    @dg.resource(description="The same places for sensors, which look, and tell how runs end.")
    def watch(_context: dg.InitResourceContext) -> Iterator[SensorResources]:
        with watching(settings, extractor) as found:
            yield found

    return watch


def _desk(settings: Settings) -> dg.ResourceDefinition:
    @dg.resource(description="The desk of the control plane: acts and plans, and no way to record a verdict.")
    def desk(_context: dg.InitResourceContext) -> Iterator[ControlActions]:
        settings.home.mkdir(parents=True, exist_ok=True)
        with ControlActions.opened(settings.database_url, space=settings.space) as found:
            yield found

    return desk


@dg.io_manager(required_resource_keys={"rooms"}, description="The door to the ledger.")
def _partition_state(context: dg.InitResourceContext) -> PartitionStateIOManager:
    return PartitionStateIOManager(context.resources.rooms)


defs = build_definitions()

if __name__ == "__main__":
    demo_run.run(defs, read_settings(os.environ), sys.argv[1:])
