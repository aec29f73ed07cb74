"""Builds the checks of each query: `valid` judges sealed runs, `readable` shows what readers get of each day.

A run of these checks alone brings the UI up to date after an operator's action: `readable` only reads the ledger, and
reports what the action did to the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.orchestration.complete_check import report_complete
from ads_pipeline.orchestration.event_storage.batching import batched_events
from ads_pipeline.orchestration.materializations import find_unreported
from ads_pipeline.orchestration.metadata import describe_status, describe_verdict, find_targets
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import find_refused_names, parse_partition_names
from ads_pipeline.orchestration.resources import (
    SPARK,
    STEP_RESOURCES,
    SparkResource,
    StepResources,
    claim_and_warn,
)
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days
from ads_pipeline.pipeline.days.deciding_verdicts import DecidingVerdict, find_deciding_verdicts
from ads_pipeline.pipeline.days.next_steps import find_next_commands
from ads_pipeline.pipeline.days.staleness import PartitionStaleness, calculate_staleness
from ads_pipeline.validation.judgement import Judgement

if TYPE_CHECKING:
    from ads_pipeline.pipeline.validation import JudgingResult

VALID, READABLE = "valid", "readable"


def check_keys(names: Names, query_name: str) -> tuple[dg.AssetCheckKey, dg.AssetCheckKey]:
    """The keys of `valid` and `readable` of a query."""
    return (
        dg.AssetCheckKey(names.raw(query_name), VALID),
        dg.AssetCheckKey(names.warehouse(query_name), READABLE),
    )


def build_valid_check(
    names: Names, name: str, *, partitions: dg.MultiPartitionsDefinition
) -> dg.AssetChecksDefinition:
    @dg.asset_check(  # type: ignore[arg-type] # Dagster's type lacks evaluations that name their partition
        asset=names.raw(name),
        name=VALID,
        description=f"Judges every sealed run by the contract of `{name}` and records the verdict in the ledger.",
        blocking=True,  # only orders the steps; the ledger holds back single bad partitions
        partitions_def=partitions,
        required_resource_keys=names.require(STEP_RESOURCES, SPARK),
    )
    def valid(context: dg.AssetCheckExecutionContext) -> Iterator[Any]:
        step_resources = names.find(context, STEP_RESOURCES)
        keys = parse_partition_names(
            context.partition_keys, source=step_resources.source_name, query_name=name, log=context.log
        )
        judged = _judge(context, step_resources, names.find(context, SPARK), keys)
        with batched_events(context.instance):
            yield from _evaluate_verdicts(context, step_resources, names.raw(name), keys, judged)
            yield from _evaluate_refused(context, names.raw(name), VALID)
        yield dg.Output(None)

    return valid


def _judge(
    context: dg.AssetCheckExecutionContext,
    resources: StepResources,
    pyspark: SparkResource,
    keys: Sequence[PartitionKey],
) -> "JudgingResult | None":
    """Judge the runs of the due partitions that have no verdict. Without any, Spark is not started.

    A run of this check alone claims no other partitions, which a run of the assets may want at the same time.
    """
    runs = resources.ledger.runs.unjudged(resources.select_due(keys))
    unjudged = list(dict.fromkeys(run.key for run in runs))
    claim = claim_and_warn(resources.claim, unjudged, context.log)
    to_judge = [run for run in runs if run.key in claim.granted]
    return resources.judge(pyspark.spark_session, to_judge) if to_judge else None


def _evaluate_verdicts(
    context: dg.AssetCheckExecutionContext,
    resources: StepResources,
    asset: dg.AssetKey,
    keys: Sequence[PartitionKey],
    judged: "JudgingResult | None",
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield one evaluation per partition with a run that was judged, or that could not be judged in this run.

    A partition that the run is not for gets its verdict again. Without it, Dagster shows the partition as skipped.
    """
    unjudged = {run.key: (run, error) for run, error in judged.unjudged.items()} if judged else {}
    judgements = {judgement.verdict.run: judgement for judgement in judged.judgements} if judged else {}

    def read(
        ledger: LedgerReader,
    ) -> tuple[Mapping[PartitionKey, DecidingVerdict], Mapping[PartitionKey, PartitionStaleness]]:
        verdicts, now = find_deciding_verdicts(ledger, keys), datetime.now(UTC)
        shown = [key for key in keys if key in verdicts or key in unjudged]
        return verdicts, calculate_staleness(ledger, resources.settings.google_apis, shown, now=now)

    verdicts, staleness = resources.ledger.read_at_once(read)
    targets = find_targets(context, asset, staleness)
    for key in staleness:
        if key in unjudged:
            run, error = unjudged[key]
            passed, text = False, f"{run.run_id} has no verdict: {error}"
            metadata = describe_verdict(run.run_id, None, None, error)
        else:
            deciding = verdicts[key]
            verdict, passed, text = deciding.verdict, deciding.verdict.outcome is Outcome.ACCEPTED, str(deciding)
            judgement = judgements.get(verdict.run) or Judgement(verdict=verdict, unknown_columns=())
            metadata = describe_verdict(verdict.run.run_id, verdict.outcome, judgement, None)
        yield dg.AssetCheckEvaluation(
            asset_key=asset,
            check_name=VALID,
            partition=key.dagster_key,
            passed=passed,
            blocking=False,  # otherwise one rejected partition would stop the whole run
            severity=dg.AssetCheckSeverity.ERROR,
            description=text,
            metadata=metadata | describe_status(staleness[key].raw),
            target_materialization_data=targets.get(key),
        )


def build_readable_check(
    names: Names, name: str, *, partitions: dg.MultiPartitionsDefinition
) -> dg.AssetChecksDefinition:
    @dg.asset_check(  # type: ignore[arg-type] # Dagster's type lacks evaluations that name their partition
        asset=names.warehouse(name),
        name=READABLE,
        description=(
            "Shows for each expected partition what readers get now. Failed: they get no rows; the metadata has the "
            "reason and the next command. Warning: a newer run was rejected or is blocked, or a run is in progress."
        ),
        partitions_def=partitions,
        required_resource_keys=names.require(STEP_RESOURCES),
    )
    def readable(context: dg.AssetCheckExecutionContext) -> Iterator[Any]:
        step_resources = names.find(context, STEP_RESOURCES)
        keys = parse_partition_names(
            context.partition_keys, source=step_resources.source_name, query_name=name, log=context.log
        )

        settings, now = step_resources.settings, datetime.now(UTC)

        def read(ledger: LedgerReader) -> tuple[DayRules, dict[PartitionKey, DayCondition], dict[PartitionKey, str]]:
            rules = DayRules.read(ledger, settings, now=now)
            described = describe_days(ledger, keys, rules)
            not_passed = {key: day for key, day in described.items() if not day.entry.is_fine}
            commands = find_next_commands(ledger, not_passed, settings.retry_policy)
            return rules, described, {key: settings.command(command) for key, command in commands.items()}

        rules, described, commands = step_resources.ledger.read_at_once(read)
        asset = names.warehouse(name)
        is_alone = not _is_run(context.run, asset)
        unreported = find_unreported(context.instance, step_resources, asset, described) if is_alone else ()
        with batched_events(context.instance):
            yield from unreported
            yield from _evaluate_days(context, asset, described, commands)
            yield from _evaluate_refused(context, asset, READABLE)
        if is_alone:  # other runs run `complete` too
            report_complete(context.instance, step_resources, name, rules)
        yield dg.Output(None)

    return readable


def _is_run(run: dg.DagsterRun, asset: dg.AssetKey) -> bool:
    """Return whether the run also runs the asset of the check. Without any selection, it runs all assets."""
    has_selection = run.asset_selection is not None or run.asset_check_selection is not None
    return asset in (run.asset_selection or ()) or not has_selection


def _evaluate_days(
    context: dg.AssetCheckExecutionContext,
    asset: dg.AssetKey,
    described: Mapping[PartitionKey, DayCondition],
    commands: Mapping[PartitionKey, str],
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield one evaluation per expected partition. A day that is not expected has none."""
    expected = {key: day for key, day in described.items() if day.is_expected}
    targets = find_targets(context, asset, expected)
    for key, day in expected.items():
        is_error = day.entry.needs_operator and not day.entry.has_rows
        yield dg.AssetCheckEvaluation(
            asset_key=asset,
            check_name=READABLE,
            partition=key.dagster_key,
            passed=day.entry.is_fine,
            blocking=False,
            severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
            description=f"{day.entry.label}: {day.reason}",
            metadata=describe_condition(day, commands.get(key, "")),
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
    """The metadata of an evaluation. A day that needs nothing has no command."""
    metadata: dict[str, Any] = {
        "condition": day.entry.label,
        "meaning": day.entry.meaning,
        "reason": day.reason,
        "since": dg.MetadataValue.timestamp(day.since),
        "attempts": str(day.attempts),  # Dagster would plot a number over unrelated partitions
        **({"next_command": command} if command else {}),
    }
    if day.report is not None and day.settles_at is not None:
        metadata |= {"report": str(day.report), "final_from": dg.MetadataValue.timestamp(day.settles_at)}
    return metadata | ({"operator": day.operator} if day.operator else {})
