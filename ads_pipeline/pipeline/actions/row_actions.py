"""Performs the actions that change rows of the warehouse: withdraw or demote the run readers see, restore another.

Demotions and restores are recorded as verdicts; the first transaction that changes something also logs the action.
After a crash, an unfinished demotion or withdrawal remains, and `reconcile` finishes it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ads_pipeline.domain.errors import PartitionRefused
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.reason import Reason
from ads_pipeline.domain.transitions import Effect, Outcome, PartitionState, Status, Verdict
from ads_pipeline.ledger.sql.ledger_values import ActionRequest, VerdictCause
from ads_pipeline.ledger.state.states import States
from ads_pipeline.pipeline.actions.operator_actions import (
    DEMOTE,
    RESTORE,
    WITHDRAW,
    OperatorAction,
    Perform,
    PlanRow,
    Result,
    ResultRow,
)
from ads_pipeline.pipeline.actions.rejudging import rejudge
from ads_pipeline.pipeline.hidden_rows import describe_left_rows
from ads_pipeline.pipeline.pipeline import Pipeline

SUPERSEDED: Final = "a newer run was accepted in the meantime and stays current; preview the action again"
STATE_CHANGED: Final = "it changed since the preview; preview the action again"


def row_performer(action: OperatorAction, pipeline: Pipeline, states: States) -> Perform:
    """Performs an action that changes rows. Partitions that changed since the preview stay."""
    if action is WITHDRAW:
        return lambda rows, request: withdraw(pipeline, [row.state for row in rows if row.state], request)

    def perform(rows: Sequence[PlanRow], request: ActionRequest) -> list[ResultRow]:
        if action is not DEMOTE:
            pipeline.validation.start_spark()  # takes seconds, so the states are compared with the preview later
        current = states.get_many(row.state.key for row in rows if row.state)
        runs = [row.run for row in rows if row.run and row.state == current[row.run.key]]
        same = {run.key for run in runs}
        changed = [_remaining(key, STATE_CHANGED) for key in current if key not in same]
        if not runs:
            return changed
        if action is RESTORE:
            return [*restore(pipeline, states, runs, request), *changed]
        override = demote if action is DEMOTE else rejudge
        return [*override(pipeline, runs, request), *changed]

    return perform


def withdraw(pipeline: Pipeline, states: Sequence[PartitionState], request: ActionRequest) -> list[ResultRow]:
    """Hide runs from readers, delete their rows from the table, and set the partitions to pending."""
    result = pipeline.withdrawing.withdraw([state.key for state in states], request, expected=states)
    return [
        *(ResultRow(target=key, result=Result.DONE) for key in result.withdrawn),
        *(ResultRow(target=key, result=Result.UNCHANGED) for key in result.unchanged),
        *(_remaining(key, STATE_CHANGED) for key in result.replaced),
        *(_remaining(key, error.problem) for key, error in result.refused.items()),
        *(
            ResultRow(target=key, result=Result.UNFINISHED, why=describe_left_rows(error))
            for key, error in result.left.items()
        ),
    ]


def demote(pipeline: Pipeline, runs: Sequence[Run], request: ActionRequest) -> list[ResultRow]:
    """Hide runs from readers, delete their rows from the table, and record them as rejected.

    Each demotion counts as an attempt. A run that is no longer current is rejected too, and the current run stays.
    """
    cause = VerdictCause(action="demote", request=request)
    recorded, refusals = pipeline.validation.record([_rejection(run, request) for run in runs], cause=cause)
    done = [ResultRow(target=result.state.key, result=Result.DONE) for result in recorded]
    return [*done, *_refused(refusals)]


def restore(pipeline: Pipeline, states: States, runs: Sequence[Run], request: ActionRequest) -> list[ResultRow]:
    """Validate earlier runs again, one per partition, and publish those that the validator still accepts.

    One transaction rejects the current run and accepts the earlier one. Until the load, readers see no rows.
    """
    judging = pipeline.validation.evaluate(runs, validation_id=f"restore-{request.action_id}")
    rows = [_remaining(run.key, str(error)) for run, error in judging.unjudged.items()]
    verdicts: list[Verdict] = []
    before = states.get_many(run.key for run in runs)
    for judgement in judging.judgements:
        verdict = judgement.verdict
        if verdict.outcome is Outcome.REJECTED:
            rows.append(_remaining(verdict.run.key, f"the validator rejects it now: {verdict.reason}"))
        else:
            verdicts += [*_rejections(before[verdict.run.key], verdict.run, request), verdict]
    if not verdicts:
        return rows
    recorded, refusals = pipeline.validation.record(verdicts, cause=VerdictCause(action="restore", request=request))
    accepted = [result for result in recorded if result.verdict.outcome is Outcome.ACCEPTED]
    rows += _refused(refusals)
    rows += [_remaining(each.state.key, SUPERSEDED) for each in accepted if each.effect is Effect.SUPERSEDED]
    promoted = [result.state.key for result in accepted if result.effect is Effect.PROMOTED]
    not_loaded = {run.key: (run, error) for run, error in pipeline.loader.load(promoted).not_loaded.items()}
    for key in promoted:
        if key not in not_loaded:
            rows.append(ResultRow(target=key, result=Result.DONE))
            continue
        run, error = not_loaded[key]
        why = f'{run.run_id} is accepted but not loaded; "ads-pipeline reconcile" tries again: {error}'
        rows.append(ResultRow(target=key, result=Result.UNFINISHED, why=why))
    return rows


def _rejections(state: PartitionState, run: Run, request: ActionRequest) -> Iterator[Verdict]:
    """The rejection of the current run, unless that is the run to restore."""
    if state.status is Status.SUCCESS and state.current_run_id != run.run_id:
        yield _rejection(Run(key=state.key, run_id=str(state.current_run_id)), request)


def _rejection(run: Run, request: ActionRequest) -> Verdict:
    return Verdict(
        run=run,
        outcome=Outcome.REJECTED,
        validation_id=f"overruled-{request.action_id}",
        reason=Reason.of_demotion(run.run_id, operator=request.operator, text=request.reason),
    )


def _refused(refusals: Mapping[Run, PartitionRefused]) -> Iterable[ResultRow]:
    return (_remaining(run.key, f"run {run.run_id}: {error.problem}") for run, error in refusals.items())


def _remaining(key: PartitionKey, why: str) -> ResultRow:
    return ResultRow(target=key, result=Result.REMAINING, why=why)
