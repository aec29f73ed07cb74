"""Builds the checks of each query: `valid` judges sealed runs, `readable` shows what readers get of each day.

`readable` only reads the ledger, so a run of this check alone brings the UI up to date after an operator's action.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from ads_pipeline.domain.conditions import QUIET_CONDITIONS, Condition
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.readability import DayCondition
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.orchestration.batching import batched_events
from ads_pipeline.orchestration.complete_check import report_complete
from ads_pipeline.orchestration.metadata import describe_status, describe_verdict, find_targets
from ads_pipeline.orchestration.partitions import (
    find_refused_names,
    parse_partition_names,
    raw_asset_key,
    warehouse_asset_key,
)
from ads_pipeline.orchestration.resources import RunResources, SparkResource, claim_partitions
from ads_pipeline.pipeline.day_conditions import DayRules, describe_days
from ads_pipeline.pipeline.next_steps import find_next_commands
from ads_pipeline.validator.judgement import Judgement

if TYPE_CHECKING:
    from ads_pipeline.pipeline.judging import JudgingResult

VALID, READABLE = "valid", "readable"
PASSED: Final = frozenset({Condition.READABLE, Condition.RESTATED})
WARNINGS: Final = frozenset(
    {
        Condition.REJECTED_RERUN,
        Condition.BLOCKED_RERUN,
        Condition.IN_PROGRESS,
        Condition.UNRECOVERABLE,
        *QUIET_CONDITIONS,
    }
)


def build_valid_check(name: str, *, partitions: dg.MultiPartitionsDefinition) -> dg.AssetChecksDefinition:
    @dg.asset_check(  # type: ignore[arg-type] # Dagster's type lacks evaluations that name their partition
        asset=raw_asset_key(name),
        name=VALID,
        description=f"Judges every sealed run by the contract of `{name}` and records the verdict in the ledger.",
        blocking=True,  # only orders the steps; the ledger holds back single bad partitions
        partitions_def=partitions,
    )
    def valid(
        context: dg.AssetCheckExecutionContext,
        run_resources: dg.ResourceParam[RunResources],
        pyspark: dg.ResourceParam[SparkResource],
    ) -> Iterator[Any]:
        granted = list(claim_partitions(context, run_resources, name).granted)
        judged = _judge(run_resources, pyspark, granted)
        with batched_events(context.instance):
            yield from _evaluate_verdicts(context, run_resources, raw_asset_key(name), granted, judged)
            yield from _repeat_verdicts(context, run_resources, name)
            yield from _evaluate_refused(context, raw_asset_key(name), VALID)
        yield dg.Output(None)

    return valid


def _judge(resources: RunResources, pyspark: SparkResource, keys: list[PartitionKey]) -> "JudgingResult | None":
    """Judge the runs of these partitions that have no verdict. Without any, Spark is not started."""
    runs = resources.ledger.runs.unjudged(keys)
    if not runs:
        return None
    return resources.pipeline(pyspark.spark_session).validation.judge(runs)


def _repeat_verdicts(
    context: dg.AssetCheckExecutionContext, resources: RunResources, query_name: str
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the last verdict of each partition that the run is not for. Without it, Dagster shows them as skipped."""
    keys = parse_partition_names(context.partition_keys, source=resources.source_name, query_name=query_name)
    due = set(resources.select_due(keys))
    verdicts = resources.ledger.runs.newest_verdicts(key for key in keys if key not in due)
    asset = raw_asset_key(query_name)
    targets = find_targets(context, asset, verdicts)
    staleness = resources.staleness.calculate(resources.ledger.statuses, verdicts, now=datetime.now(UTC))
    for key, verdict in verdicts.items():
        judgement = Judgement(verdict=verdict, unknown_columns=())
        yield dg.AssetCheckEvaluation(
            asset_key=asset,
            check_name=VALID,
            partition=key.dagster_key,
            passed=verdict.outcome is Outcome.ACCEPTED,
            blocking=False,
            severity=dg.AssetCheckSeverity.ERROR,
            metadata=describe_verdict(verdict.run.run_id, verdict.outcome, judgement, None)
            | describe_status(staleness[key].raw),
            target_materialization_data=targets.get(key),
        )


def _evaluate_verdicts(
    context: dg.AssetCheckExecutionContext,
    resources: RunResources,
    asset: dg.AssetKey,
    keys: list[PartitionKey],
    judged: "JudgingResult | None",
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield one evaluation per partition that has a run: the recorded verdict on its newest run."""
    targets = find_targets(context, asset, keys)
    staleness = resources.staleness.calculate(resources.ledger.statuses, keys, now=datetime.now(UTC))
    judgements = {judgement.verdict.run: judgement for judgement in judged.judgements} if judged else {}
    unjudged = judged.unjudged if judged else {}
    for key, (registered, outcome) in resources.ledger.runs.newest(keys).items():
        run = registered.run
        yield dg.AssetCheckEvaluation(
            asset_key=asset,
            check_name=VALID,
            partition=key.dagster_key,
            passed=outcome is Outcome.ACCEPTED,
            blocking=False,  # otherwise one rejected partition would stop the whole run
            severity=dg.AssetCheckSeverity.ERROR,
            metadata=describe_verdict(run.run_id, outcome, judgements.get(run), unjudged.get(run))
            | describe_status(staleness[key].raw),
            target_materialization_data=targets.get(key),
        )


def build_readable_check(name: str, *, partitions: dg.MultiPartitionsDefinition) -> dg.AssetChecksDefinition:
    @dg.asset_check(  # type: ignore[arg-type] # Dagster's type lacks evaluations that name their partition
        asset=warehouse_asset_key(name),
        name=READABLE,
        description=(
            "Shows for each expected partition what readers get now. Failed: they get no rows; the metadata has the "
            "reason and the next command. Warning: a newer run was rejected or is blocked, or a run is in progress."
        ),
        partitions_def=partitions,
    )
    def readable(
        context: dg.AssetCheckExecutionContext, run_resources: dg.ResourceParam[RunResources]
    ) -> Iterator[Any]:
        keys = parse_partition_names(
            context.partition_keys, source=run_resources.source_name, query_name=name, log=context.log
        )
        rules = DayRules.read(
            run_resources.ledger,
            run_resources.settings,
            now=datetime.now(UTC),
        )
        described = describe_days(run_resources.ledger, keys, rules)
        not_passed = {key: day for key, day in described.items() if day.condition not in PASSED}
        commands = find_next_commands(run_resources.ledger, not_passed, run_resources.settings.retry_policy)
        with batched_events(context.instance):
            yield from _evaluate_days(context, warehouse_asset_key(name), described, commands)
            yield from _evaluate_refused(context, warehouse_asset_key(name), READABLE)
        if context.run.asset_check_selection is not None:  # a run of single checks; others run `complete` too
            report_complete(context.instance, run_resources, name)
        yield dg.Output(None)

    return readable


def _evaluate_days(
    context: dg.AssetCheckExecutionContext,
    asset: dg.AssetKey,
    described: Mapping[PartitionKey, DayCondition],
    commands: Mapping[PartitionKey, str],
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield one evaluation per expected partition. A day that is not expected has none."""
    expected = {key: day for key, day in described.items() if day.condition is not Condition.NOT_EXPECTED}
    targets = find_targets(context, asset, expected)
    for key, day in expected.items():
        is_warning = day.condition in WARNINGS
        yield dg.AssetCheckEvaluation(
            asset_key=asset,
            check_name=READABLE,
            partition=key.dagster_key,
            passed=day.condition in PASSED,
            blocking=False,
            severity=dg.AssetCheckSeverity.WARN if is_warning else dg.AssetCheckSeverity.ERROR,
            description=f"{day.text.label}: {day.reason}",
            metadata=describe_condition(day, commands.get(key) or f"ads-pipeline state why {key}"),
            target_materialization_data=targets.get(key),
        )


def _evaluate_refused(
    context: dg.AssetCheckExecutionContext, asset: dg.AssetKey, check: str
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield a warning for each partition of an invalid customer, which nothing is judged or loaded of."""
    for name, problem in find_refused_names(context.partition_keys).items():
        yield dg.AssetCheckEvaluation(
            asset_key=asset,
            check_name=check,
            partition=name,
            passed=False,
            blocking=False,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"Left out: {problem}",
        )


def describe_condition(day: DayCondition, command: str) -> dict[str, Any]:
    """The metadata of an evaluation."""
    metadata: dict[str, Any] = {
        "condition": day.text.label,
        "meaning": day.text.meaning,
        "reason": day.reason,
        "since": dg.MetadataValue.timestamp(day.since),
        "attempts": str(day.attempts),  # Dagster would plot a number over unrelated partitions
        "next_command": command,
    }
    if day.report is not None and day.settles_at is not None:
        metadata |= {"report": str(day.report), "final_from": dg.MetadataValue.timestamp(day.settles_at)}
    return metadata | ({"operator": day.operator} if day.operator else {})
