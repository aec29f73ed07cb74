"""Builds the check `valid` of each raw asset: it judges sealed runs and records the verdicts."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.orchestration.metadata import describe_status, describe_verdict, find_targets
from ads_pipeline.orchestration.partitions import raw_asset_key
from ads_pipeline.orchestration.resources import RunResources, claim_partitions
from ads_pipeline.pipeline.judging import JudgingResult

CHECK_NAME: Final = "valid"


def build_check(name: str, *, partitions: dg.MultiPartitionsDefinition) -> dg.AssetChecksDefinition:
    @dg.asset_check(  # type: ignore[arg-type] # Dagster's type lacks evaluations that name their partition
        asset=raw_asset_key(name),
        name=CHECK_NAME,
        description=f"Judges every sealed run by the contract of `{name}` and records the verdict in the ledger.",
        blocking=True,  # only orders the steps; the ledger holds back single bad partitions
        partitions_def=partitions,
    )
    def valid(
        context: dg.AssetCheckExecutionContext,
        run_resources: dg.ResourceParam[RunResources],
        pyspark: LazyPySparkResource,
    ) -> Iterator[Any]:
        granted = list(claim_partitions(context, run_resources, name).granted)
        validation = run_resources.pipeline(pyspark.spark_session).validation
        judged = validation.judge(run_resources.ledger.runs.unjudged(granted))
        yield from _evaluate(context, run_resources, raw_asset_key(name), granted, judged)
        yield dg.Output(None)

    return valid


def _evaluate(
    context: dg.AssetCheckExecutionContext,
    resources: RunResources,
    asset: dg.AssetKey,
    keys: list[PartitionKey],
    judged: JudgingResult,
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield one evaluation per partition that has a run: the recorded verdict on its newest run."""
    targets = find_targets(context, asset, keys)
    staleness = resources.staleness.calculate(resources.ledger.statuses, keys, now=datetime.now(UTC))
    judgements = {judgement.verdict.run: judgement for judgement in judged.judgements}
    for key, (registered, outcome) in resources.ledger.runs.newest(keys).items():
        run = registered.run
        yield dg.AssetCheckEvaluation(
            asset_key=asset,
            check_name=CHECK_NAME,
            partition=key.dagster_key,
            passed=outcome is Outcome.ACCEPTED,
            blocking=False,  # otherwise one rejected partition would stop the whole run
            severity=dg.AssetCheckSeverity.ERROR,
            metadata=describe_verdict(run.run_id, outcome, judgements.get(run), judged.unjudged.get(run))
            | describe_status(staleness[key].raw),
            target_materialization_data=targets.get(key),
        )
