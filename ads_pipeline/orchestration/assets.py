"""Builds the assets `raw/<query>` and `warehouse/<query>` of each query.

The check `valid` between them is in `orchestration.asset_checks`.
"""

from typing import Any, Final

import dagster as dg

from ads_pipeline.domain.rectangles import MAX_PARTITIONS
from ads_pipeline.orchestration import catalog
from ads_pipeline.orchestration.fetching import find_backfill
from ads_pipeline.orchestration.io_manager import suppress_materialization
from ads_pipeline.orchestration.partitions import parse_partition_names, raw_asset_key, warehouse_asset_key
from ads_pipeline.orchestration.resources import SparkResource, StepResources, claim_and_warn
from ads_pipeline.orchestration.runs.run_tags import QUERY_TAG
from ads_pipeline.orchestration.step_values import CommittedPartitions, LoadablePartitions, SealedPartitions
from ads_pipeline.settings.environment import Settings
from ads_pipeline.settings.query_file import Query
from ads_pipeline.validation.contract_registry import Contracts

OWNERS: Final = ["team:ads-data"]
RAW_DESCRIPTION: Final = (
    "The reports of `{}` that extractors delivered, one run for each customer and day. Materializing a partition "
    "registers its newest runs in the ledger. The check `valid` then accepts or rejects them."
)
WAREHOUSE_DESCRIPTION: Final = (
    "The table `{}` that analysts read. Materializing a partition loads its accepted run; rejected runs are never "
    "loaded. The check `readable` shows what readers get of each day now; `complete` shows it for all days together. "
    "Dagster shows a partition as materialized for ever. When an operator's command removed its rows, its last "
    "materialization has 0 rows and says why."
)


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
    metadata = catalog.describe_tables(name, query, contracts) | catalog.describe_report(settings)
    raw = _build_raw(
        name,
        deps=[settings.google_apis.source],
        description=f"{RAW_DESCRIPTION.format(name)}\n\n```sql\n{query.gaql}\n```",
        metadata=metadata | {"dagster/uri": settings.raw_location},
        **shared,
    )
    warehouse = _build_warehouse(
        name,
        description=WAREHOUSE_DESCRIPTION.format(name),
        metadata=metadata | catalog.describe_location(name, settings),
        **shared,
    )
    return raw, warehouse


def _build_raw(name: str, **options: Any) -> Any:
    @dg.asset(  # type: ignore[untyped-decorator] # the options hide the overload
        key=raw_asset_key(name), group_name=catalog.RAW_GROUP, kinds={"googleads"}, **options
    )
    def raw(
        context: dg.AssetExecutionContext, step_resources: dg.ResourceParam[StepResources]
    ) -> dg.Output[SealedPartitions]:
        source = step_resources.source_name
        keys = step_resources.select_due(
            parse_partition_names(context.partition_keys, source=source, query_name=name, log=context.log)
        )
        claim = claim_and_warn(step_resources.claim, keys, context.log)
        backfill = find_backfill(context, source=source, query_name=name) if step_resources.fetches else None
        landed = step_resources.land(list(claim.granted), backfill)
        return suppress_materialization(SealedPartitions(landed=landed, held=claim.held))

    return raw


def _build_warehouse(name: str, **options: Any) -> Any:
    @dg.asset(  # type: ignore[untyped-decorator] # the same
        key=warehouse_asset_key(name),
        ins={"loadable": dg.AssetIn(key=raw_asset_key(name))},
        group_name=catalog.WAREHOUSE_GROUP,
        kinds={"deltalake", "pyspark"},
        pool=f"warehouse_{name}",  # concurrent loads of one table would conflict and retry
        **options,
    )
    def warehouse(
        loadable: LoadablePartitions,
        step_resources: dg.ResourceParam[StepResources],
        pyspark: dg.ResourceParam[SparkResource],
    ) -> dg.Output[CommittedPartitions]:
        committed = step_resources.commit(pyspark, loadable)
        return suppress_materialization(CommittedPartitions(loadable=loadable, committed=committed))

    return warehouse
