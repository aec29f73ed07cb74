"""Builds the assets `raw/<query>` and `warehouse/<query>` of each query.

The check `valid` between them is in `orchestration.asset_checks`.
"""

from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from ads_pipeline.domain.measures import PartitionRestatement
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.rectangles import MAX_PARTITIONS
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.orchestration import catalog
from ads_pipeline.orchestration.fetching import find_backfill
from ads_pipeline.orchestration.io_manager import LoadedPartitions, SealedPartitions, suppress_materialization
from ads_pipeline.orchestration.materializations import find_currency, sum_cost
from ads_pipeline.orchestration.metadata import describe_load, describe_restatement
from ads_pipeline.orchestration.partitions import raw_asset_key, warehouse_asset_key
from ads_pipeline.orchestration.resources import RunResources, SparkResource, claim_partitions
from ads_pipeline.orchestration.runs.run_tags import QUERY_TAG
from ads_pipeline.settings.environment import Settings
from ads_pipeline.settings.query_file import Query
from ads_pipeline.validation.contract_registry import Contracts

if TYPE_CHECKING:
    from ads_pipeline.pipeline.loading import Loader

OWNERS: Final = ["team:ads-data"]


def build_assets(
    name: str,
    query: Query,
    settings: Settings,
    *,
    partitions: dg.MultiPartitionsDefinition,
    contracts: Contracts,
) -> tuple[dg.AssetsDefinition, dg.AssetsDefinition]:
    # Dagster puts assets into one run only if they share partitions and backfill policy.
    shared: dict[str, Any] = {
        "partitions_def": partitions,
        "backfill_policy": dg.BackfillPolicy.multi_run(max_partitions_per_run=MAX_PARTITIONS),
        "owners": OWNERS,
        "code_version": query.schema_version,
        "io_manager_key": "partition_state",
        "tags": {QUERY_TAG: name},
    }

    shared_metadata = catalog.describe_tables(name, query, contracts) | catalog.describe_report(settings)

    @dg.asset(  # type: ignore[untyped-decorator] # the shared options hide the overload
        key=raw_asset_key(name),
        deps=[settings.google_apis.source],
        group_name=catalog.RAW_GROUP,
        description=(
            f"The reports of `{name}` that extractors delivered, one run for each customer and day. Materializing a "
            "partition registers its newest runs in the ledger. The check `valid` then accepts or rejects them."
            f"\n\n```sql\n{query.gaql}\n```"
        ),
        metadata=shared_metadata | {"dagster/uri": settings.raw_location},
        kinds={"googleads"},
        **shared,
    )
    def raw(
        context: dg.AssetExecutionContext, run_resources: dg.ResourceParam[RunResources]
    ) -> dg.Output[SealedPartitions]:
        claim = claim_partitions(context, run_resources, name)
        source = run_resources.source
        backfill = (
            find_backfill(context, source=run_resources.source_name, query_name=name) if source.fetches else None
        )
        landed = source.land(list(claim.granted), backfill)
        sealed = SealedPartitions(landed=landed, held=claim.held)
        return suppress_materialization(sealed)

    @dg.asset(  # type: ignore[untyped-decorator] # the same
        key=warehouse_asset_key(name),
        ins={"loadable": dg.AssetIn(key=raw_asset_key(name))},
        description=(
            f"The table `{name}` that analysts read. Materializing a partition loads its accepted run; rejected runs "
            "are never loaded. The check `readable` shows what readers get of each day now; `complete` shows it for "
            "all days together. Dagster shows a partition as materialized for ever. When an operator's command "
            "removed its rows, its last materialization has 0 rows and says why."
        ),
        group_name=catalog.WAREHOUSE_GROUP,
        metadata=shared_metadata | catalog.describe_location(name, settings),
        kinds={"deltalake", "pyspark"},
        pool=f"warehouse_{name}",  # concurrent loads of one table would conflict and retry
        **shared,
    )
    def warehouse(
        context: dg.AssetExecutionContext,
        loadable: list[PartitionKey],
        run_resources: dg.ResourceParam[RunResources],
        pyspark: dg.ResourceParam[SparkResource],
    ) -> dg.Output[LoadedPartitions]:
        claim = claim_partitions(context, run_resources, name)
        granted = [key for key in loadable if key in claim.granted]
        metadata = _load(run_resources, run_resources.pipeline(pyspark.spark_session).loader, granted)
        loaded = LoadedPartitions(metadata=metadata, held=claim.held)
        return suppress_materialization(loaded)

    return raw, warehouse


def _load(resources: RunResources, loader: "Loader", keys: list[PartitionKey]) -> dict[PartitionKey, dict[str, Any]]:
    """Load partitions and return the metadata of each published one.

    While its table is unchanged, one that could not be fetched, or whose newest run was not accepted, is left out:
    nothing was loaded, and assets downstream would run for nothing.
    """
    ledger = resources.ledger
    before, cost_before = ledger.publications.pointers(keys), sum_cost(resources, keys)
    result = loader.load(keys)
    published = ledger.publications.pointers(run.key for run in result.published)
    newest = {key: registered.run for key, (registered, _outcome) in ledger.runs.newest(published).items()}
    after = {
        key: pointer
        for key, pointer in published.items()
        if pointer != before.get(key) or (key not in resources.not_fetched and newest[key] == pointer.run)
    }
    cost_after = sum_cost(resources, keys)
    restated = _find_restatements(resources, [key for key in after if key in before])
    return {
        key: describe_load(
            pointer,
            before.get(key),
            cost=cost_after.get(key),
            cost_before=cost_before.get(key),
            currency=find_currency(resources, pointer.run),
        )
        | describe_restatement(restated.get(key), pointer.run)
        for key, pointer in after.items()
    }


def _find_restatements(resources: RunResources, keys: list[PartitionKey]) -> dict[PartitionKey, PartitionRestatement]:
    """The last restatement of each of these partitions that has one."""
    if not keys:
        return {}
    window = DayWindow(
        source=keys[0].source,
        query_name=keys[0].query_name,
        since=min(key.logical_date for key in keys),
        until=max(key.logical_date for key in keys),
        customers={key.customer_id for key in keys},
    )
    return {each.key: each for each in resources.ledger.restatements.find(window)}
