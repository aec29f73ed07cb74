"""Previews and executes control actions for the command line and for the retry sensor.

A preview lists every partition that an action would change, and why it skips others. Execution follows the preview:
a partition that changed in between is refused. `demote_and_restore` holds the actions that override a verdict.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Final

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import Lane, RetryPolicy, Terminal, allocate_slots, decide_retry
from ads_pipeline.domain.transitions import Action, PartitionState, Status, transition_for
from ads_pipeline.errors import IllegalTransition, LedgerUnavailable, PartitionRefused
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.control.retry_queue import OpenRequest
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import ActionRequest, ActionResult, StateFilter
from ads_pipeline.progress import ProgressReporter, no_progress
from ads_pipeline.raw.landing import RawRuns

PARTITIONS_PER_TRANSACTION: Final = 1_000  # bounds how long their rows stay locked
# The statuses in which an action can change something.
CANDIDATES: Final[Mapping[Action, frozenset[Status]]] = {
    Action.ENQUEUE: frozenset({Status.PENDING}),
    Action.REQUEUE: frozenset({Status.FAILED}),
    Action.MARK_TERMINAL: frozenset({Status.FAILED}),
    Action.CLEAR_TERMINAL: frozenset(Status),
    Action.REPROCESS: frozenset({Status.SUCCESS}),
    Action.WITHDRAW: frozenset({Status.SUCCESS}),
}
ALREADY_RECORDED: Final = "already recorded"
NOT_MARKED: Final = "not marked as terminal"
ALREADY_MARKED: Final = "already marked as terminal"
ALREADY_REQUESTED: Final = "already requested; the next verdict closes the request"
NO_SEALED_RUN: Final = "no sealed run on disk; check the extractor, or retry with --force"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPreview:
    """The states that an action would change, and why it skips other partitions.

    A requeue first clears the terminal marks of `marks_to_clear`.
    """

    action: Action
    states: tuple[PartitionState, ...]
    skipped: Mapping[PartitionKey, str]
    marks_to_clear: tuple[PartitionState, ...] = ()


@dataclass(slots=True, kw_only=True)
class ActionOutcome:
    """What became of each previewed partition. The `outage` stopped the action before those `not_reached`."""

    changed: list[PartitionState] = field(default_factory=list)
    unchanged: list[PartitionKey] = field(default_factory=list)
    refused: list[PartitionRefused] = field(default_factory=list)
    not_reached: list[PartitionKey] = field(default_factory=list)
    outage: LedgerUnavailable | None = None


class OperatorActions:
    """Previews and retries under one retry policy, as of one day.

    It only reads the ledger. Methods that change something take a `ControlActions`.
    """

    def __init__(self, *, ledger: LedgerReader, policy: RetryPolicy, today: date, raw: RawRuns | None = None) -> None:
        self._ledger, self._policy, self._today, self._raw = ledger, policy, today, raw

    def preview(
        self, action: Action, selection: StateFilter | Sequence[PartitionKey], *, include_terminal: bool = False
    ) -> ActionPreview:
        """List what the action would change among the selected partitions. Nothing is written.

        A requeue skips terminal partitions unless `include_terminal`. Given raw runs, it also skips partitions that
        have none.
        """
        states, skipped = self._select(action, selection)
        skipped |= self._find_skipped(action, states, include_terminal=include_terminal)
        kept = tuple(state for state in states if state.key not in skipped)
        marked = self._find_marked(kept) if action is Action.REQUEUE else set()
        return ActionPreview(
            action=action,
            states=kept,
            skipped=skipped,
            marks_to_clear=tuple(state for state in kept if state.key in marked),
        )

    def find_terminal(self, states: Sequence[PartitionState]) -> dict[PartitionKey, Terminal]:
        """The terminal partitions among `states`, each with its reason."""
        failed = [state for state in states if state.status is Status.FAILED]
        failures = self._ledger.retry_queue.find_failures(state.key for state in failed)
        marked, terminal = self._find_marked(failed), dict[PartitionKey, Terminal]()
        for key, failure in failures.items():
            decision = decide_retry(failure, self._policy, marked=key in marked, today=self._today)
            if isinstance(decision, Terminal):
                terminal[key] = decision
        return terminal

    def requeue_due(
        self, control_actions: ControlActions, request: ActionRequest, *, source: str, slots: int
    ) -> ActionResult:
        """Schedule new failures, and requeue due ones until each lane has `slots` open requests.

        The lanes are filled separately, so a long queue in one does not block the other.
        """
        queue = self._ledger.retry_queue
        control_actions.schedule_failures(self._policy, today=self._today)
        due = list[PartitionKey]()
        for lane, waiting in self._find_due_requests(source, slots).items():
            if len(waiting) < slots:
                limit = slots - len(waiting)
                due += queue.find_due(self._policy, lane, source=source, today=self._today, limit=limit)
        attempts = {key: retry.attempt_no for key, retry in queue.find_scheduled(due).items()}
        failed = [state for state in self._ledger.states.get_many(due).values() if state.status is Status.FAILED]
        states = [state for state in failed if state.attempt_count == attempts.get(state.key)]
        if not states:
            return ActionResult(changed=(), unchanged=(), refused=())
        return control_actions.execute(Action.REQUEUE, [state.key for state in states], request, expected=states)

    def next_requests(self, *, source: str, slots: int) -> list[OpenRequest]:
        """The next requests to run, at most `slots`: fresh days first, with a share for backfills."""
        requests = self._find_due_requests(source, slots)
        keys = {lane: [request.key for request in queued] for lane, queued in requests.items()}
        running = self._ledger.retry_queue.count_claimed(source, self._today)
        chosen = set(allocate_slots(keys, slots, running=running))
        return [request for queued in requests.values() for request in queued if request.key in chosen]

    def _find_due_requests(self, source: str, slots: int) -> dict[Lane, list[OpenRequest]]:
        limit = max(slots, 1)
        return {
            lane: self._ledger.retry_queue.find_due_requests(
                self._policy, lane, source=source, today=self._today, limit=limit
            )
            for lane in Lane
        }

    def _select(
        self, action: Action, selection: StateFilter | Sequence[PartitionKey]
    ) -> tuple[list[PartitionState], dict[PartitionKey, str]]:
        """The selected states that permit the action. Only partitions selected by name get a skip reason."""
        if isinstance(selection, StateFilter):
            statuses = CANDIDATES[action] & (selection.statuses or CANDIDATES[action])
            return list(self._ledger.states.iterate(replace(selection, statuses=statuses))), {}
        states = list(self._ledger.states.get_many(selection).values())
        skipped = {}
        for state in states:
            try:
                transition_for(state.recorded_status, action, partition=state.key)
            except IllegalTransition as error:
                skipped[state.key] = error.problem
            else:
                if state.status not in CANDIDATES[action]:
                    skipped[state.key] = f"status is {state.recorded_status or 'absent'}"
        return [state for state in states if state.key not in skipped], skipped

    def _find_skipped(
        self, action: Action, states: Sequence[PartitionState], *, include_terminal: bool
    ) -> Mapping[PartitionKey, str]:
        """Why the action skips partitions whose status permits it."""
        match action:
            case Action.ENQUEUE:
                return {state.key: ALREADY_RECORDED for state in states if state.recorded_status is not None}
            case Action.REQUEUE:
                terminal = {} if include_terminal else self.find_terminal(states)
                reasons = {
                    key: f"terminal: {decision.explanation}; or use --clear-terminal"
                    for key, decision in terminal.items()
                }
                return reasons | {key: NO_SEALED_RUN for key in self._find_without_runs(states) if key not in reasons}
            case Action.REPROCESS:
                requests = self._ledger.retry_queue.find_requests(state.key for state in states)
                return {
                    state.key: ALREADY_REQUESTED
                    for state in states
                    if state.key in requests and requests[state.key].attempt_no == state.attempt_count
                }
            case Action.MARK_TERMINAL:
                return dict.fromkeys(self._find_marked(states), ALREADY_MARKED)
            case Action.CLEAR_TERMINAL:
                marked = self._find_marked(states)
                return {state.key: NOT_MARKED for state in states if state.key not in marked}
        return {}

    def _find_marked(self, states: Iterable[PartitionState]) -> set[PartitionKey]:
        return self._ledger.retry_queue.find_marked(state.key for state in states)

    def _find_without_runs(self, states: Iterable[PartitionState]) -> Iterator[PartitionKey]:
        if self._raw is not None:
            for state in states:
                if next(iter(self._raw.list_runs(state.key)), None) is None:
                    yield state.key


def execute_preview(
    control_actions: ControlActions,
    preview: ActionPreview,
    request: ActionRequest,
    *,
    report_progress: ProgressReporter = no_progress,
) -> ActionOutcome:
    """Execute a preview in batches of one transaction each. Every batch is logged as a part of the action.

    When the database fails, finished batches stay. The outcome lists the partitions that were not reached.
    """
    outcome = ActionOutcome()
    with report_progress(preview.action.name.lower(), len(preview.states)) as advance:
        for number, states in enumerate(_batches(preview.states)):
            part = request
            if len(preview.states) > PARTITIONS_PER_TRANSACTION:
                part = replace(request, action_id=f"{request.action_id}.{number + 1}")
            try:
                result = _execute_batch(control_actions, preview, states, part)
            except LedgerUnavailable as error:
                outcome.outage = error
                rest = preview.states[number * PARTITIONS_PER_TRANSACTION :]
                outcome.not_reached += [state.key for state in rest]
                break
            outcome.changed += result.changed
            outcome.unchanged += result.unchanged
            outcome.refused += result.refused
            advance(len(states))
    return outcome


def _execute_batch(
    control_actions: ControlActions,
    preview: ActionPreview,
    states: Sequence[PartitionState],
    request: ActionRequest,
) -> ActionResult:
    marked = set(preview.marks_to_clear)
    to_clear = [state for state in states if state in marked]
    if to_clear:
        clearing = replace(request, action_id=f"{request.action_id}.clear")
        control_actions.execute(Action.CLEAR_TERMINAL, [state.key for state in to_clear], clearing, expected=to_clear)
    return control_actions.execute(preview.action, [state.key for state in states], request, expected=states)


def _batches(states: Sequence[PartitionState]) -> Iterator[Sequence[PartitionState]]:
    size = PARTITIONS_PER_TRANSACTION
    return (states[start : start + size] for start in range(0, len(states), size))
