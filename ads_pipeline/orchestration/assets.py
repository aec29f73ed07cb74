"""Builds the assets of a query: `raw/<query>`, its check `valid`, and `warehouse/<query>`.

All three share partitions and backfill policy, because Dagster would otherwise run them as if they had nothing to do
with one another. The work is `pipeline`'s.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import dagster as dg

# It has no public name in this release.
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData as Target,
)
from dagster_pyspark import PySparkResource

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.ledger.values import ClaimResult
from ads_pipeline.orchestration import metadata
from ads_pipeline.orchestration.io_manager import LoadedPartitions, SealedPartitions, told_already
from ads_pipeline.orchestration.partitions import parsed, raw_asset, warehouse_asset
from ads_pipeline.orchestration.resources import RunResources
from ads_pipeline.orchestration.run_requests import QUERY_TAG
from ads_pipeline.pipeline.pipeline import JudgingResult
from ads_pipeline.settings import Query

MOST_IN_A_RUN: Final = 1_000
OWNERS: Final = ["team:ads-data"]
_CHECKED = "valid"


def build_query(
    name: str, query: Query, *, source: str, partitions: dg.MultiPartitionsDefinition
) -> tuple[list[dg.AssetsDefinition], dg.AssetChecksDefinition]:
    """The assets and the check of one query."""
    shared: dict[str, Any] = {
        "partitions_def": partitions,
        "backfill_policy": dg.BackfillPolicy.multi_run(max_partitions_per_run=MOST_IN_A_RUN),
        "group_name": name,
        "owners": OWNERS,
        "code_version": query.schema_version,
        "io_manager_key": "partition_state",
        "tags": {QUERY_TAG: name},
    }

    @dg.asset(  # type: ignore[untyped-decorator] # what is shared hides the overload
        key=raw_asset(name),
        description=f"Sealed runs of `{name}`, registered with the ledger.\n\n```sql\n{query.gaql}\n```",
        kinds={"googleads"},
        **shared,
    )
    def raw(context: dg.AssetExecutionContext, rooms: dg.ResourceParam[RunResources]) -> dg.Output[SealedPartitions]:
        keys = parsed(context.partition_keys, source=source, query_name=name)
        claimed = _begin(context, rooms, keys)
        runs = tuple(rooms.source.land(list(claimed.granted)))
        return told_already(SealedPartitions(runs=runs, held=claimed.held, code_version=query.schema_version))

    @dg.asset_check(  # type: ignore[arg-type] # its type does not know of evaluations that name their partition
        asset=raw,
        name=_CHECKED,
        description=f"The contract of `{name}`, run by run; the verdict is the ledger's from then on.",
        blocking=True,  # for the order of the steps; a bad partition alone is kept back, by the ledger
        partitions_def=partitions,
    )
    def valid(
        context: dg.AssetCheckExecutionContext, rooms: dg.ResourceParam[RunResources], pyspark: PySparkResource
    ) -> Iterator[Any]:
        keys = parsed(context.partition_keys, source=source, query_name=name)
        claimed = _begin(context, rooms, keys)
        judged = rooms.pipeline(pyspark.spark_session).judge(rooms.ledger.unjudged(claimed.granted))
        yield from _evaluations(context, rooms, name, list(claimed.granted), judged)
        yield dg.Output(None)

    @dg.asset(  # type: ignore[untyped-decorator] # the same
        key=warehouse_asset(name),
        ins={"loadable": dg.AssetIn(key=raw_asset(name))},
        description=f"`{name}` as readers see it: only partitions whose current run was accepted.",
        kinds={"deltalake", "pyspark"},
        pool=f"warehouse_{name}",  # two loaders of one table would only make each other try again
        **shared,
    )
    def warehouse(
        context: dg.AssetExecutionContext,
        loadable: list[PartitionKey],
        rooms: dg.ResourceParam[RunResources],
        pyspark: PySparkResource,
    ) -> dg.Output[LoadedPartitions]:
        claimed = _begin(context, rooms, parsed(context.partition_keys, source=source, query_name=name))
        own = [key for key in loadable if key in claimed.granted]
        before, cost_before = rooms.ledger.pointers(own), _cost(rooms, own)
        loading = rooms.pipeline(pyspark.spark_session).load(own)
        shown, cost = rooms.ledger.pointers(run.key for run in loading.published), _cost(rooms, own)
        current = rooms.currencies.of(rooms.ledger, shown, now=datetime.now(UTC))
        told = {
            key: metadata.of_load(pointer, before.get(key), cost=cost.get(key), cost_before=cost_before.get(key))
            | metadata.of_look(current[key].warehouse)
            for key, pointer in shown.items()
        }
        return told_already(LoadedPartitions(told=told, held=claimed.held, code_version=query.schema_version))

    return [raw, warehouse], valid


def _begin(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, rooms: RunResources, keys: list[PartitionKey]
) -> ClaimResult:
    """Claim the run's partitions. Those that another run is at work on are left to it, and told of."""
    claimed = rooms.begin(keys)
    if claimed.held:
        key, holder = next(iter(claimed.held.items()))
        told = "%d of %d partitions are left to other runs. First: %s, %s"
        context.log.warning(told, len(claimed.held), len(keys), key, holder)
    return claimed


def _cost(rooms: RunResources, keys: list[PartitionKey]) -> dict[PartitionKey, int]:
    """What the partitions cost as readers see them, so that a restatement tells by how much money it is one."""
    if not keys:
        return {}
    days = [key.logical_date for key in keys]
    return rooms.readers.sums(keys[0].query_name, "cost_micros", since=min(days), until=max(days))


def _evaluations(
    context: dg.AssetCheckExecutionContext,
    rooms: RunResources,
    name: str,
    keys: list[PartitionKey],
    judged: JudgingResult,
) -> Iterator[dg.AssetCheckEvaluation]:
    """One evaluation for each partition that has a run: what the ledger holds of its newest one."""
    asset = raw_asset(name)
    names = {key.dagster_key for key in keys}
    landed = context.instance.event_log_storage.get_latest_storage_id_by_partition(
        asset, dg.DagsterEventType.ASSET_MATERIALIZATION, names
    )
    current = rooms.currencies.of(rooms.ledger, keys, now=datetime.now(UTC))
    judgements = {each.verdict.run: each for each in judged.judgements}
    for key, (registered, outcome) in rooms.ledger.newest(keys).items():
        judgement, unjudged = judgements.get(registered.run), judged.unjudged.get(registered.run)
        place = landed.get(key.dagster_key)
        yield dg.AssetCheckEvaluation(
            asset_key=asset,
            check_name=_CHECKED,
            partition=key.dagster_key,
            passed=outcome is Outcome.ACCEPTED,
            blocking=False,  # else one bad partition would stop its neighbours
            severity=dg.AssetCheckSeverity.ERROR,
            metadata=metadata.of_verdict(registered.run.run_id, outcome, judgement, unjudged)
            | metadata.of_look(current[key].raw),
            target_materialization_data=place
            and Target(storage_id=place, run_id=context.run.run_id, timestamp=time.time()),
        )
