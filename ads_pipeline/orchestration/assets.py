"""Builds the assets `raw/<query>` and `warehouse/<query>` of each query.

The check `valid` between them is in `orchestration.asset_checks`.
"""

from typing import Any, Final

import dagster as dg

from ads_pipeline.domain.rectangles import MAX_PARTITIONS
from ads_pipeline.orchestration import catalog
from ads_pipeline.orchestration.fetching import find_backfill
from ads_pipeline.orchestration.io_manager import IO_MANAGER, suppress_materialization
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import parse_partition_names
from ads_pipeline.orchestration.resources import SPARK, STEP_RESOURCES, claim_and_warn
from ads_pipeline.orchestration.runs.run_tags import QUERY_TAG
from ads_pipeline.orchestration.step_values import CommittedPartitions, LoadablePartitions, SealedPartitions
from ads_pipeline.settings.environment import Settings
from ads_pipeline.settings.query_file import Query
from ads_pipeline.validation.contract_registry import Contracts

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
    names: Names,
    labels: catalog.Labels,
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
        "owners": labels.owners,
        "code_version": query.schema_version,
        "io_manager_key": names.name(IO_MANAGER.text),
        "tags": {**labels.tags, names.tag(QUERY_TAG): name},
    }
    metadata = catalog.describe_tables(name, query, contracts) | catalog.describe_report(settings)
    raw = _build_raw(
        names,
        name,
        deps=[names.key(settings.google_apis.source)],
        description=f"{RAW_DESCRIPTION.format(name)}\n\n```sql\n{query.gaql}\n```",
        metadata=metadata | {"dagster/uri": settings.raw_location},
        **shared,
    )
    warehouse = _build_warehouse(
        names,
        name,
        description=WAREHOUSE_DESCRIPTION.format(name),
        metadata=metadata | catalog.describe_location(name, settings),
        **shared,
    )
    return raw, warehouse


def _build_raw(names: Names, name: str, **options: Any) -> Any:
    @dg.asset(  # type: ignore[untyped-decorator] # the options hide the overload
        key=names.raw(name),
        group_name=names.name(catalog.RAW_GROUP),
        kinds={"googleads"},
        required_resource_keys=names.require(STEP_RESOURCES),
        **options,
    )
    def raw(context: dg.AssetExecutionContext) -> dg.Output[SealedPartitions]:
        step_resources = names.find(context, STEP_RESOURCES)
        source = step_resources.source_name
        keys = step_resources.select_due(
            parse_partition_names(context.partition_keys, source=source, query_name=name, log=context.log)
        )
        claim = claim_and_warn(step_resources.claim, keys, context.log)
        backfill = find_backfill(names, context, source=source, query_name=name) if step_resources.fetches else None
        landed = step_resources.land(list(claim.granted), backfill)
        return suppress_materialization(SealedPartitions(landed=landed, held=claim.held))

    return raw


def _build_warehouse(names: Names, name: str, **options: Any) -> Any:
    @dg.asset(  # type: ignore[untyped-decorator] # the same
        key=names.warehouse(name),
        ins={"loadable": dg.AssetIn(key=names.raw(name))},
        group_name=names.name(catalog.WAREHOUSE_GROUP),
        kinds={"deltalake", "pyspark"},
        pool=names.name(f"warehouse_{name}"),  # concurrent loads of one table would conflict and retry
        required_resource_keys=names.require(STEP_RESOURCES, SPARK),
        **options,
    )
    def warehouse(context: dg.AssetExecutionContext, loadable: LoadablePartitions) -> dg.Output[CommittedPartitions]:
        committed = names.find(context, STEP_RESOURCES).commit(names.find(context, SPARK), loadable)
        return suppress_materialization(CommittedPartitions(loadable=loadable, committed=committed))

    return warehouse
