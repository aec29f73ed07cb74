"""The table of operators' actions, their plans and reports, and the one execution of a plan.

`action_preview` makes the plans. Execution follows the plan: a partition that changed in between is left alone.
`row_actions` and `rejudging` perform the actions that change rows of the warehouse.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ads_pipeline.domain.errors import LedgerUnavailable
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.quoting import printable
from ads_pipeline.domain.transitions import Action, PartitionState, Status
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.sql.ledger_values import ActionRequest
from ads_pipeline.pipeline.progress import ProgressReporter, no_progress

PARTITIONS_PER_TRANSACTION: Final = 1_000  # bounds how long their rows stay locked
PARKED_BY_OPERATOR: Final = "parked_by_operator"
Target = PartitionKey | Parking


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAction:
    """An action, the statuses in which it can change a partition, and what a target becomes.

    `control` is the control action of the transition table. Other actions on partitions override a verdict.
    Actions that change rows of the warehouse take all partitions at once, because a table file holds many. Actions
    without statuses have an account or a query as their target.
    """

    name: str
    becomes: str
    control: Action | None = None
    statuses: frozenset[Status] = frozenset()
    changes_rows: bool = False


_FAILED, _SUCCESS, _ANY = frozenset({Status.FAILED}), frozenset({Status.SUCCESS}), frozenset(Status)
RETRY: Final = OperatorAction(name="retry", becomes="pending", control=Action.REQUEUE, statuses=_FAILED)
ENQUEUE: Final = OperatorAction(
    name="enqueue", becomes="pending, requested", control=Action.ENQUEUE, statuses=frozenset({Status.PENDING})
)
MARK: Final = OperatorAction(
    name="mark terminal", becomes="{status}, terminal", control=Action.MARK_TERMINAL, statuses=_FAILED
)
CLEAR: Final = OperatorAction(
    name="clear terminal", becomes="{status}, not marked", control=Action.CLEAR_TERMINAL, statuses=_ANY
)
ACKNOWLEDGE: Final = OperatorAction(
    name="acknowledge", becomes="acknowledged", control=Action.ACKNOWLEDGE, statuses=_ANY
)
REPROCESS: Final = OperatorAction(
    name="reprocess", becomes="{status}, requested", control=Action.REPROCESS, statuses=_SUCCESS
)
WITHDRAW: Final = OperatorAction(
    name="withdraw",
    becomes="pending, nothing to read",
    control=Action.WITHDRAW,
    statuses=_SUCCESS,
    changes_rows=True,
)
DEMOTE: Final = OperatorAction(name="demote", becomes="failed, nothing to read", statuses=_SUCCESS, changes_rows=True)
RESTORE: Final = OperatorAction(name="restore", becomes="success from {run_id}", statuses=_ANY, changes_rows=True)
REJUDGE: Final = OperatorAction(name="rejudge", becomes="{run_id} judged", statuses=_ANY, changes_rows=True)
PARK: Final = OperatorAction(name="park", becomes="parked")
RELEASE: Final = OperatorAction(name="release", becomes="fetched again")
ACTIONS: Final = (
    ACKNOWLEDGE,
    RETRY,
    ENQUEUE,
    MARK,
    CLEAR,
    REPROCESS,
    WITHDRAW,
    DEMOTE,
    RESTORE,
    REJUDGE,
    PARK,
    RELEASE,
)


class Result(StrEnum):
    """The result for a target: `unfinished` ones are changed in part, `remaining` ones not at all."""

    DONE = "done"
    UNCHANGED = "unchanged"
    REMAINING = "remaining"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One target: what it is and becomes, or why the action skips it. `run` is the one to change or judge."""

    target: Target
    now: str
    becomes: str = ""
    state: PartitionState | None = None
    run: Run | None = None
    clears_mark: bool = False
    why_skipped: str | None = None
    control: Action | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Targets that an action leaves out for one reason. `is_least`: there may be more."""

    reason: str
    count: int
    example: Target
    is_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The changes of an action, and the targets that it leaves out.

    `skipped` targets have a row each. Partitions that a filter selects and whose status does not permit the action
    are only counted, because there may be millions.
    """

    action: OperatorAction
    changes: tuple[PlanRow, ...]
    skipped: tuple[PlanRow, ...] = ()
    other_statuses: tuple[LeftOut, ...] = ()

    @property
    def left_out(self) -> list[LeftOut]:
        """All that is left out, by reason, the most common reason first."""
        by_reason: dict[str, list[Target]] = {}
        for row in self.skipped:
            by_reason.setdefault(row.why_skipped or "", []).append(row.target)
        counted = [LeftOut(reason=reason, count=len(found), example=found[0]) for reason, found in by_reason.items()]
        return sorted([*counted, *self.other_statuses], key=lambda each: -each.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """The result for one target, with the reason when it is not done."""

    target: Target
    result: Result
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of an executed plan."""

    action_id: str
    rows: tuple[ResultRow, ...] = ()

    def targets(self, *results: Result) -> list[Target]:
        return [row.target for row in self.rows if row.result in results]


Perform = Callable[[Sequence[PlanRow], ActionRequest], Sequence[ResultRow]]


def execute(
    plan: Plan,
    request: ActionRequest,
    perform: Perform,
    *,
    report_progress: ProgressReporter = no_progress,
) -> Report:
    """Execute a plan and report the result for each of its changes.

    `perform` gets batches of one transaction each, which are logged as parts of the action. An action that changes
    rows is one batch. When the database fails, finished batches stay, and the others remain.
    """
    rows: list[ResultRow] = []
    size = len(plan.changes) if plan.action.changes_rows else PARTITIONS_PER_TRANSACTION
    with report_progress(plan.action.name, len(plan.changes)) as advance:
        for start in range(0, len(plan.changes), size or 1):
            batch, part = plan.changes[start : start + size], request
            if len(plan.changes) > size:
                part = replace(request, action_id=f"{request.action_id}.{start // size + 1}")
            try:
                rows += perform(batch, part)
            except LedgerUnavailable as error:
                if plan.action.changes_rows:
                    raise
                rows += [
                    ResultRow(target=row.target, result=Result.REMAINING, why=str(error))
                    for row in plan.changes[start:]
                ]
                break
            advance(len(batch))
    return Report(action_id=request.action_id, rows=tuple(rows))


def performer(action: OperatorAction, control_actions: ControlActions) -> Perform:
    """Performs a control action, a parking or a release in the ledger."""
    if action.control is None:
        return lambda rows, request: list(_park_or_release(control_actions, action, rows, request))
    control = action.control
    return lambda rows, request: _perform(control_actions, control, rows, request)


def _perform(
    control_actions: ControlActions, control: Action, rows: Sequence[PlanRow], request: ActionRequest
) -> list[ResultRow]:
    """Execute the action in one transaction. Marks to clear are cleared first, as an action of their own."""
    to_clear = [row.state for row in rows if row.clears_mark and row.state]
    if to_clear:
        clearing = replace(request, action_id=f"{request.action_id}.clear")
        control_actions.execute(Action.CLEAR_TERMINAL, [state.key for state in to_clear], clearing, expected=to_clear)
    refetched = [row.state for row in rows if row.state and row.control is Action.REQUEUE]
    if refetched and len(refetched) < len(rows):
        own = [row for row in rows if row.control is None]
        part = replace(request, action_id=f"{request.action_id}.requeue")
        return [
            *_perform(control_actions, control, own, request),
            *_perform(control_actions, Action.REQUEUE, [row for row in rows if row.control is not None], part),
        ]
    states = [row.state for row in rows if row.state]
    control = Action.REQUEUE if refetched else control
    result = control_actions.execute(control, [state.key for state in states], request, expected=states)
    return [
        *(ResultRow(target=state.key, result=Result.DONE) for state in result.changed),
        *(ResultRow(target=key, result=Result.UNCHANGED) for key in result.unchanged),
        *(ResultRow(target=key, result=Result.REMAINING, why=error.problem) for key, error in result.refused.items()),
    ]


def _park_or_release(
    control_actions: ControlActions, action: OperatorAction, rows: Sequence[PlanRow], request: ActionRequest
) -> Iterator[ResultRow]:
    park_or_release = control_actions.park if action is PARK else control_actions.release
    for row in rows:
        if isinstance(row.target, Parking):
            parking = replace(row.target, error_class=PARKED_BY_OPERATOR, why=printable(request.reason))
            is_changed = park_or_release(parking, request)
            yield ResultRow(target=row.target, result=Result.DONE if is_changed else Result.UNCHANGED)
