"""Offers the acts that operators and the retry policy share: looked at first, then carried out on what was seen.

A preview names every partition an act would touch, and why it leaves others out. What is carried out is that preview
and nothing else: a partition that changed in between is left as it is. What overrules a verdict is in `overruling`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Final

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import Lane, RetryPolicy, Terminal, decide, shares
from ads_pipeline.domain.transitions import Action, PartitionState, Status, move_for
from ads_pipeline.errors import IllegalTransition, LedgerError, LedgerUnavailable
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.control.retry_queue import OpenRequest
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import ActionRequest, ActionResult, StateFilter
from ads_pipeline.progress import ProgressReporter, silence
from ads_pipeline.raw.landing import RawRuns

AT_ONCE: Final = 1_000  # partitions in one transaction: bounds how long their rows are locked
# The states in which an act finds something to do.
CANDIDATES: Final[Mapping[Action, frozenset[Status]]] = {
    Action.ENQUEUE: frozenset({Status.PENDING}),
    Action.REQUEUE: frozenset({Status.FAILED}),
    Action.MARK_TERMINAL: frozenset({Status.FAILED}),
    Action.CLEAR_TERMINAL: frozenset(Status),
    Action.REPROCESS: frozenset({Status.SUCCESS}),
    Action.WITHDRAW: frozenset({Status.SUCCESS}),
}
KNOWN: Final = "it is recorded already"
NOT_MARKED: Final = "it is not marked as terminal"
MARKED: Final = "it is marked as terminal already"
ASKED: Final = "it was asked for already, and no verdict has followed"
NO_RAW: Final = "raw holds no run of it; look at the extractor first, or say --force"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPreview:
    """The partitions that an act would change, as they were seen, and why others that were meant are left out.

    `cleared` are those of them whose terminal mark is to be cleared first.
    """

    act: Action
    states: tuple[PartitionState, ...]
    skipped: Mapping[PartitionKey, str]
    cleared: tuple[PartitionState, ...] = ()


@dataclass(slots=True, kw_only=True)
class ActionOutcome:
    """What became of a preview. What is in `left` was not reached because of `problem`."""

    changed: list[PartitionState] = field(default_factory=list)
    unchanged: list[PartitionKey] = field(default_factory=list)
    refused: list[LedgerError] = field(default_factory=list)
    left: list[PartitionKey] = field(default_factory=list)
    problem: LedgerUnavailable | None = None

    @property
    def is_whole(self) -> bool:
        return not self.refused and not self.left


class OperatorActions:
    """The acts under one policy, as of one day. It reads; what changes something takes the desk as well."""

    def __init__(self, *, ledger: LedgerReader, policy: RetryPolicy, today: date, raw: RawRuns | None = None) -> None:
        self._ledger, self._policy, self._today, self._raw = ledger, policy, today, raw

    def preview(
        self, act: Action, wanted: StateFilter | Sequence[PartitionKey], *, even_terminal: bool = False
    ) -> ActionPreview:
        """What the act would do to the partitions that match, or to those that are named. Changes nothing.

        A terminal partition is requeued only if that is asked for. One of which raw holds no run is left out too, if
        this control was given raw runs to look at.
        """
        states, skipped = self._meant(act, wanted)
        skipped |= self._held_back(act, states, even_terminal=even_terminal)
        kept = tuple(state for state in states if state.key not in skipped)
        marked = self._marked(kept) if act is Action.REQUEUE else set()
        return ActionPreview(
            act=act, states=kept, skipped=skipped, cleared=tuple(state for state in kept if state.key in marked)
        )

    def terminal(self, states: Sequence[PartitionState]) -> dict[PartitionKey, Terminal]:
        """Those of the states that policy or a mark gives no more attempts, and why."""
        failed = [state for state in states if state.status is Status.FAILED]
        failures = self._ledger.schedule.failures(state.key for state in failed)
        marked, found = self._marked(failed), dict[PartitionKey, Terminal]()
        for key, failure in failures.items():
            answer = decide(failure, self._policy, marked=key in marked, today=self._today)
            if isinstance(answer, Terminal):
                found[key] = answer
        return found

    def requeue_due(self, desk: ControlActions, order: ActionRequest, *, source: str, room: int) -> ActionResult:
        """Plan what failed, and put back to pending what is due: in each lane as much as there could be room for.

        The lanes are filled apart, so that a long queue in one keeps nothing out of the other.
        """
        desk.schedule.plan(self._policy, today=self._today)
        turn = list[PartitionKey]()
        for lane, waiting in self._open(source, room).items():
            if len(waiting) < room:
                limit = room - len(waiting)
                turn += desk.schedule.due(self._policy, lane, source=source, today=self._today, limit=limit)
        planned = {key: plan.attempt_no for key, plan in desk.schedule.of(turn).items()}
        states = [state for state in desk.states(turn).values() if state.status is Status.FAILED]
        seen = [state for state in states if state.attempt_count == planned.get(state.key)]
        if not seen:
            return ActionResult(changed=(), unchanged=(), refused=())
        return desk.carry_out(Action.REQUEUE, [state.key for state in seen], order, seen=seen)

    def wanted(self, *, source: str, room: int) -> list[OpenRequest]:
        """The requests whose turn it is, at most as many as there is room: fresh days first, backfills their part."""
        found = self._open(source, room)
        keys = {lane: [each.key for each in listed] for lane, listed in found.items()}
        turn = set(shares(keys, room, running=self._ledger.schedule.at_work(source, self._today)))
        return [each for listed in found.values() for each in listed if each.key in turn]

    def _open(self, source: str, room: int) -> dict[Lane, list[OpenRequest]]:
        limit = max(room, 1)
        return {
            lane: self._ledger.schedule.wanted(self._policy, lane, source=source, today=self._today, limit=limit)
            for lane in Lane
        }

    def _meant(
        self, act: Action, wanted: StateFilter | Sequence[PartitionKey]
    ) -> tuple[list[PartitionState], dict[PartitionKey, str]]:
        """The states that are meant: of a filter those in which there is something to do, of names all of them."""
        if isinstance(wanted, StateFilter):
            statuses = CANDIDATES[act] & (wanted.statuses or CANDIDATES[act])
            return list(self._ledger.pages(replace(wanted, statuses=statuses))), {}
        states = list(self._ledger.states(wanted).values())
        skipped = {}
        for state in states:
            try:
                move_for(state.recorded, act, partition=state.key)
            except IllegalTransition as error:
                skipped[state.key] = str(error).removeprefix(f"{state.key}: ")
            else:
                if state.status not in CANDIDATES[act]:
                    skipped[state.key] = f"it is {state.recorded or 'absent'}"
        return [state for state in states if state.key not in skipped], skipped

    def _held_back(
        self, act: Action, states: Sequence[PartitionState], *, even_terminal: bool
    ) -> Mapping[PartitionKey, str]:
        """Why partitions that the act is legal for are left out of it."""
        match act:
            case Action.ENQUEUE:
                return {state.key: KNOWN for state in states if state.recorded is not None}
            case Action.REQUEUE:
                terminal = {} if even_terminal else self.terminal(states)
                why = {key: f"terminal: {answer.why}" for key, answer in terminal.items()}
                return why | {key: NO_RAW for key in self._rawless(states) if key not in why}
            case Action.REPROCESS:
                requested = self._ledger.schedule.requested(state.key for state in states)
                return {
                    state.key: ASKED
                    for state in states
                    if state.key in requested and requested[state.key].attempt_no == state.attempt_count
                }
            case Action.MARK_TERMINAL:
                return dict.fromkeys(self._marked(states), MARKED)
            case Action.CLEAR_TERMINAL:
                marked = self._marked(states)
                return {state.key: NOT_MARKED for state in states if state.key not in marked}
        return {}

    def _marked(self, states: Iterable[PartitionState]) -> set[PartitionKey]:
        return self._ledger.schedule.marked(state.key for state in states)

    def _rawless(self, states: Iterable[PartitionState]) -> Iterator[PartitionKey]:
        if self._raw is not None:
            for state in states:
                if next(iter(self._raw.runs(state.key)), None) is None:
                    yield state.key


def carry_out(
    desk: ControlActions, preview: ActionPreview, order: ActionRequest, *, tell: ProgressReporter = silence
) -> ActionOutcome:
    """Do what was previewed, a portion a transaction; each leaves its row in the log of acts.

    When the database fails on the way, what was done stands, and the answer says what is left.
    """
    done = ActionOutcome()
    with tell(preview.act.name.lower(), len(preview.states)) as told:
        for number, some in enumerate(_portions(preview.states)):
            part = order if len(preview.states) <= AT_ONCE else replace(order, act_id=f"{order.act_id}.{number + 1}")
            try:
                acted = _act(desk, preview, some, part)
            except LedgerUnavailable as error:
                done.problem = error
                done.left += [state.key for state in preview.states[number * AT_ONCE :]]
                break
            done.changed += acted.changed
            done.unchanged += acted.unchanged
            done.refused += acted.refused
            told(len(some))
    return done


def _act(
    desk: ControlActions, preview: ActionPreview, states: Sequence[PartitionState], order: ActionRequest
) -> ActionResult:
    marked = set(preview.cleared)
    cleared = [state for state in states if state in marked]
    if cleared:
        first = replace(order, act_id=f"{order.act_id}.clear")
        desk.carry_out(Action.CLEAR_TERMINAL, [state.key for state in cleared], first, seen=cleared)
    return desk.carry_out(preview.act, [state.key for state in states], order, seen=states)


def _portions(states: Sequence[PartitionState]) -> Iterator[Sequence[PartitionState]]:
    return (states[start : start + AT_ONCE] for start in range(0, len(states), AT_ONCE))
