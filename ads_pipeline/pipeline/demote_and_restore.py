"""Overrules verdicts by an operator's order: takes back what readers get, or gives them an earlier run again.

Both end as verdicts, with the operator's act in the first transaction that changes something. What a death in between
leaves is a demotion that has begun, which every reconciliation finishes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.retry import DEMOTED
from ads_pipeline.domain.transitions import Effect, Outcome, PartitionState, Status, Verdict
from ads_pipeline.errors import LedgerError
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import ActionRequest, VerdictCause, VerdictResult
from ads_pipeline.pipeline.pipeline import LoadResult, Pipeline

NEWER: Final = "a newer run was accepted just before, and stays; look again"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideResult:
    """What came of it: the verdicts that stand, why partitions were left alone, and what loading came to."""

    recorded: Sequence[VerdictResult]
    loading: LoadResult = field(default_factory=LoadResult)
    problems: Mapping[PartitionKey, str] = field(default_factory=dict)
    refusals: Sequence[LedgerError] = ()


def earlier_accepted(ledger: LedgerReader, state: PartitionState) -> Run | None:
    """The newest accepted run before the current one; of a partition that is no success, the newest of all.

    What counts is the last verdict on each run, so one that was demoted is never among them.
    """
    outcomes = {attempt.run: attempt.outcome for attempt in ledger.attempts(state.key)}
    registered = [each.run for each in ledger.runs(state.key)]
    if state.status is Status.SUCCESS:
        registered = registered[: registered.index(Run(key=state.key, run_id=str(state.current_run_id)))]
    return next((run for run in reversed(registered) if outcomes.get(run) is Outcome.ACCEPTED), None)


def demote(pipeline: Pipeline, runs: Iterable[Run], order: ActionRequest) -> OverrideResult:
    """Take runs back that readers get: hidden first, gone from the table, then recorded as rejected.

    It counts as an attempt, as every verdict does. A run that is no longer its partition's current one is rejected
    all the same, and the current one stays.
    """
    recorded, refusals = pipeline.record(
        [_rejection(run, order) for run in runs], overruling=VerdictCause(act="demote", order=order)
    )
    return OverrideResult(recorded=recorded, refusals=refusals)


def restore(pipeline: Pipeline, ledger: LedgerReader, runs: Sequence[Run], order: ActionRequest) -> OverrideResult:
    """Give readers earlier runs again, one a partition, if the validator accepts them today as well.

    The current run is rejected and the earlier one accepted in one transaction; in between its rows are gone.
    """
    opinions = pipeline.opinions(runs, validation_id=f"restore-{order.act_id}")
    verdicts: list[Verdict] = []
    problems = {run.key: str(error) for run, error in opinions.unjudged.items()}
    states = ledger.states(run.key for run in runs)
    for judgement in opinions.judgements:
        verdict = judgement.verdict
        state = states[verdict.run.key]
        if verdict.outcome is Outcome.REJECTED:
            problems[verdict.run.key] = f"it would be rejected today: {verdict.error_message}"
            continue
        if state.status is Status.SUCCESS and state.current_run_id != verdict.run.run_id:
            verdicts.append(_rejection(Run(key=state.key, run_id=str(state.current_run_id)), order))
        verdicts.append(verdict)
    if not verdicts:
        return OverrideResult(recorded=(), problems=problems)
    recorded, refusals = pipeline.record(verdicts, overruling=VerdictCause(act="restore", order=order))
    accepted = [each for each in recorded if each.verdict.outcome is Outcome.ACCEPTED]
    promoted = [each for each in accepted if each.effect is Effect.PROMOTED]
    problems |= {each.state.key: NEWER for each in accepted if each.effect is Effect.SUPERSEDED}
    loading = pipeline.load(each.state.key for each in promoted)
    return OverrideResult(recorded=promoted, loading=loading, problems=problems, refusals=refusals)


def _rejection(run: Run, order: ActionRequest) -> Verdict:
    return Verdict(
        run=run,
        outcome=Outcome.REJECTED,
        validation_id=f"overruled-{order.act_id}",
        error_class=DEMOTED,
        error_message=f"{run}: taken back by {order.operator}: {order.reason}",
    )
