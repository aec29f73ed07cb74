"""Assembles the code location that `workspace.yaml` points Dagster to."""

import os
import warnings
from collections.abc import Iterator

import dagster as dg
from dagster_pyspark import PySparkResource

from ads_pipeline.orchestration.assets import build_query
from ads_pipeline.orchestration.io_manager import PartitionStateIOManager
from ads_pipeline.orchestration.keys import partitions_from
from ads_pipeline.orchestration.rooms import Rooms, opened, spark_config
from ads_pipeline.settings import Settings, read_settings


def build_definitions(settings: Settings | None = None) -> dg.Definitions:
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
    return dg.Definitions(
        assets=[asset for assets, _check in built for asset in assets],
        asset_checks=[check for _assets, check in built],
        resources={
            "rooms": _rooms(known),
            "partition_state": _partition_state,
            "pyspark": PySparkResource(spark_config=spark_config(known)),
        },
        # One process a run, so that its steps share one Spark session.
        executor=dg.in_process_executor,
    )


def _rooms(settings: Settings) -> dg.ResourceDefinition:
    """No configurable resource: the address of the ledger may hold a password, which Dagster would show."""

    @dg.resource(description="The ledger, the raw runs and the warehouse of this deployment.")
    def rooms(_context: dg.InitResourceContext) -> Iterator[Rooms]:
        with opened(settings) as opened_rooms:
            yield opened_rooms

    return rooms


@dg.io_manager(required_resource_keys={"rooms"}, description="The door to the ledger.")
def _partition_state(context: dg.InitResourceContext) -> PartitionStateIOManager:
    return PartitionStateIOManager(context.resources.rooms)


defs = build_definitions()
