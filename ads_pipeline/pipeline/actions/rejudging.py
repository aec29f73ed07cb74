"""Performs the operator's action `rejudge`: the validator judges runs again, by the contracts of today.

The rows of a current run that it rejects now are removed before the verdict is recorded, as for any rejection. After
a crash, `reconcile` finishes what began.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ads_pipeline.domain.errors import AdsPipelineError, PartitionRefused
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Effect, Outcome, Verdict
from ads_pipeline.ledger.sql.ledger_values import ActionRequest, VerdictCause, VerdictResult
from ads_pipeline.pipeline.actions.operator_actions import Result, ResultRow
from ads_pipeline.pipeline.pipeline import Pipeline


def rejudge(pipeline: Pipeline, runs: Sequence[Run], request: ActionRequest) -> list[ResultRow]:
    """Judge these runs, one per partition, record the verdicts, and load the accepted runs.

    A verdict on a run that has one counts as another attempt. A run that cannot be judged keeps what it has.
    """
    first = set(pipeline.loader.history.unjudged({run.key for run in runs}))
    rows: list[ResultRow] = []
    verdicts: list[Verdict] = []
    for group, validation_id in (
        ([run for run in runs if run in first], ""),
        ([run for run in runs if run not in first], f"rejudge-{request.action_id}"),
    ):
        judging = pipeline.validation.evaluate(group, validation_id=validation_id)
        verdicts += [judgement.verdict for judgement in judging.judgements]
        rows += [_remaining(run.key, str(error)) for run, error in judging.unjudged.items()]
    by_outcome = [[each for each in verdicts if each.outcome is outcome] for outcome in reversed(Outcome)]
    parts = [each for each in by_outcome if each]
    for number, part in enumerate(parts, 1):
        action_id = request.action_id if len(parts) == 1 else f"{request.action_id}.{number}"
        rows += _record(pipeline, part, replace(request, action_id=action_id))
    return rows


def _record(pipeline: Pipeline, verdicts: Sequence[Verdict], request: ActionRequest) -> list[ResultRow]:
    """Record verdicts of one outcome, which are logged as one part of the action. Load the accepted runs."""
    recorded, refusals = pipeline.validation.record(verdicts, cause=VerdictCause(action="rejudge", request=request))
    loadable = {Effect.PROMOTED, Effect.CONFIRMED}
    loading = pipeline.loader.load([each.state.key for each in recorded if each.effect in loadable])
    not_loaded = {run.key: error for run, error in loading.unreadable.items()}
    return [*_refused(refusals), *(_describe(each, not_loaded) for each in recorded)]


def _describe(result: VerdictResult, not_loaded: Mapping[PartitionKey, AdsPipelineError]) -> ResultRow:
    key, reason = result.state.key, result.verdict.reason
    if key in not_loaded:
        why = f'accepted but not loaded; "ads-pipeline reconcile" tries again: {not_loaded[key]}'
        return ResultRow(target=key, result=Result.UNFINISHED, why=why)
    return ResultRow(target=key, result=Result.DONE, why=None if reason is None else f"rejected: {reason.text}")


def _refused(refusals: Mapping[Run, PartitionRefused]) -> list[ResultRow]:
    return [_remaining(run.key, f"run {run.run_id}: {error.problem}") for run, error in refusals.items()]


def _remaining(key: PartitionKey, why: str) -> ResultRow:
    return ResultRow(target=key, result=Result.REMAINING, why=why)
