"""Actions that override a verdict: `demote` rejects the run readers see, `restore` publishes an earlier run again.

Both are recorded as verdicts. The first transaction that changes something also logs the action. After a crash, an
unfinished demotion remains, and `reconcile` finishes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.reason import Reason
from ads_pipeline.domain.transitions import Effect, Outcome, PartitionState, Status, Verdict
from ads_pipeline.errors import PartitionRefused
from ads_pipeline.ledger.state.run_history import RunHistory
from ads_pipeline.ledger.state.states import States
from ads_pipeline.ledger.values import ActionRequest, VerdictCause, VerdictResult
from ads_pipeline.pipeline.loading import LoadResult
from ads_pipeline.pipeline.pipeline import Pipeline

SUPERSEDED: Final = "a newer run was accepted in the meantime and stays current; preview the action again"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideResult:
    """The recorded verdicts, the load that followed, and why other partitions were left unchanged."""

    recorded: Sequence[VerdictResult]
    loading: LoadResult = field(default_factory=LoadResult)
    problems: Mapping[PartitionKey, str] = field(default_factory=dict)
    refusals: Mapping[Run, PartitionRefused] = field(default_factory=dict)


def find_earlier_accepted(history: RunHistory, state: PartitionState) -> Run | None:
    """The newest accepted run before the current one. Without a current success, the newest of all.

    Only the last verdict on each run counts, so a demoted run is never returned.
    """
    outcomes = {attempt.verdict.run: attempt.verdict.outcome for attempt in history.attempts(state.key)}
    runs = [registered.run for registered in history.registered(state.key)]
    if state.status is Status.SUCCESS:
        runs = runs[: runs.index(Run(key=state.key, run_id=str(state.current_run_id)))]
    return next((run for run in reversed(runs) if outcomes.get(run) is Outcome.ACCEPTED), None)


def demote(pipeline: Pipeline, runs: Iterable[Run], request: ActionRequest) -> OverrideResult:
    """Hide runs from readers, delete their rows from the table, and record them as rejected.

    Each demotion counts as an attempt. A run that is no longer current is rejected too, and the current run stays.
    """
    cause = VerdictCause(action="demote", request=request)
    recorded, refusals = pipeline.validation.record([_rejection(run, request) for run in runs], cause=cause)
    return OverrideResult(recorded=recorded, refusals=refusals)


def restore(pipeline: Pipeline, states: States, runs: Sequence[Run], request: ActionRequest) -> OverrideResult:
    """Validate earlier runs again, one per partition, and publish those that the validator still accepts.

    One transaction rejects the current run and accepts the earlier one. Until the load, readers see no rows.
    """
    judging = pipeline.validation.evaluate(runs, validation_id=f"restore-{request.action_id}")
    verdicts: list[Verdict] = []
    problems = {run.key: str(error) for run, error in judging.unjudged.items()}
    before = states.get_many(run.key for run in runs)
    for judgement in judging.judgements:
        verdict = judgement.verdict
        state = before[verdict.run.key]
        if verdict.outcome is Outcome.REJECTED:
            problems[verdict.run.key] = f"the validator rejects it now: {verdict.reason}"
            continue
        if state.status is Status.SUCCESS and state.current_run_id != verdict.run.run_id:
            verdicts.append(_rejection(Run(key=state.key, run_id=str(state.current_run_id)), request))
        verdicts.append(verdict)
    if not verdicts:
        return OverrideResult(recorded=(), problems=problems)
    cause = VerdictCause(action="restore", request=request)
    recorded, refusals = pipeline.validation.record(verdicts, cause=cause)
    accepted = [result for result in recorded if result.verdict.outcome is Outcome.ACCEPTED]
    promoted = [result for result in accepted if result.effect is Effect.PROMOTED]
    problems |= {result.state.key: SUPERSEDED for result in accepted if result.effect is Effect.SUPERSEDED}
    loading = pipeline.loader.load(result.state.key for result in promoted)
    return OverrideResult(recorded=promoted, loading=loading, problems=problems, refusals=refusals)


def _rejection(run: Run, request: ActionRequest) -> Verdict:
    return Verdict(
        run=run,
        outcome=Outcome.REJECTED,
        validation_id=f"overruled-{request.action_id}",
        reason=Reason.of_demotion(run.run_id, operator=request.operator, text=request.reason),
    )
