"""The source of a deployment that fetches from Google Ads, and the backfill that a run belongs to.

The client of Google Ads is imported by the steps that use it, not when the code location is loaded.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import dagster as dg

from ads_pipeline.domain.fetching.fetch_results import Backfill
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.google_ads.configuration import ClientConfiguration
from ads_pipeline.lake.raw.run_source import Landed, Source
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import parse_partition_names
from ads_pipeline.orchestration.resources import RunResources, SensorResources, SourceFactory

BACKFILL_TAG: Final = "dagster/backfill"


class FetchingSource:
    """Fetches in runs. Sensors only ask whether it fetches."""

    fetches = True

    def __init__(self, resources: SensorResources, configuration: ClientConfiguration) -> None:
        self._resources, self._configuration = resources, configuration

    def land(self, partitions: Sequence[PartitionKey], backfill: Backfill | None = None) -> Landed:
        """Fetch the partitions of a run. Raises TypeError in a sensor, which has no write access."""
        from ads_pipeline.pipeline.extraction.google_ads_extraction import Extraction  # noqa: PLC0415 - takes seconds

        resources = self._resources
        if not isinstance(resources, RunResources):
            raise TypeError("only a run can fetch")
        extraction = Extraction(
            apis=resources.settings.google_apis, configuration=self._configuration, ledger=resources.ledger
        )
        return extraction.source(resources.raw, resources.sealed_runs).land(partitions, backfill)


def build_fetching_source(configuration: ClientConfiguration) -> SourceFactory:
    """The factory of the source of a deployment that fetches from Google Ads itself."""

    def build(resources: SensorResources) -> Source:
        return FetchingSource(resources, configuration)

    return build


def find_backfill(
    names: Names, context: dg.AssetExecutionContext, *, source: str, query_name: str
) -> Backfill | None:
    """The backfill of which the run is a part. None for other runs, and when the definitions changed since."""
    backfill = context.instance.get_backfill(context.run.tags.get(BACKFILL_TAG, ""))
    if backfill is None or not backfill.is_asset_backfill:
        return None
    try:
        target = backfill.get_asset_backfill_data(context.repository_def.asset_graph)
        found = target.get_target_partitions_subset(names.raw(query_name)).get_partition_keys()
    except (dg.DagsterError, KeyError) as error:
        context.log.warning(
            "days are fetched one by one, because the backfill cannot be read: %s", type(error).__name__
        )
        return None
    return Backfill(
        requested_at=datetime.fromtimestamp(backfill.backfill_timestamp, UTC),
        keys=frozenset(parse_partition_names(found, source=source, query_name=query_name)),
    )
