"""Says what a verdict or a control act makes of a PartitionState: the only legal moves, as one table.

Plain values in, plain values out. Who locks the row and writes the answer is `ledger`'s business; whether a failed
partition deserves another attempt is `retry`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Self

from ads_pipeline.domain.partition import PartitionKey, Run, checked_name
from ads_pipeline.errors import IllegalTransition, printable


class Status(StrEnum):
    """Is the partition safe to read? Only success is."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"


class Outcome(StrEnum):
    """What the validator says of one run."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"


class Effect(StrEnum):
    """What a verdict did to the partition; kept with the attempt, so that history reads without replaying it."""

    PROMOTED = "promoted"  # the run took the authority
    CONFIRMED = "confirmed"  # the run had the authority and keeps it
    SUPERSEDED = "superseded"  # accepted, but a newer run already had the authority
    SET_ASIDE = "set_aside"  # rejected, and an earlier success stands
    FAILED = "failed"  # rejected, and nothing is safe to read
    DEMOTED = "demoted"  # rejected although it had the authority: its rows must go


class Action(StrEnum):
    """Everything that can happen to a partition. The values complete the sentence "cannot …"."""

    ACCEPT_NEWER = "accept a run newer than the current one"
    ACCEPT_CURRENT = "accept the current run again"
    ACCEPT_OLDER = "accept a run older than the current one"
    REJECT_CURRENT = "reject the current run"
    REJECT_OTHER = "reject a run that is not the current one"
    REDELIVER = "hear a recorded verdict again"
    END_UNJUDGED = "end a run without a verdict"
    ENQUEUE = "enqueue a backfill"
    REQUEUE = "requeue"
    REPROCESS = "request reprocessing"
    WITHDRAW = "withdraw"
    MARK_TERMINAL = "mark as terminal"
    CLEAR_TERMINAL = "clear the terminal mark"


class MessageRule(StrEnum):
    """What becomes of the error message."""

    KEEP = "keep"
    CLEAR = "clear"
    SET = "set"
    NEWEST = "newest"  # the rejection of the newest run speaks, whichever verdict arrives last


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One cell of the table. A move with an effect is a verdict's, and counts as an attempt; others never do."""

    to: Status | None
    effect: Effect | None = None
    takes_authority: bool = False
    message: MessageRule = MessageRule.KEEP


_PROMOTE = Transition(to=Status.SUCCESS, effect=Effect.PROMOTED, takes_authority=True, message=MessageRule.CLEAR)
_CONFIRM = Transition(to=Status.SUCCESS, effect=Effect.CONFIRMED)
_SUPERSEDE = Transition(to=Status.SUCCESS, effect=Effect.SUPERSEDED)
_SET_ASIDE = Transition(to=Status.SUCCESS, effect=Effect.SET_ASIDE)
_FAIL = Transition(to=Status.FAILED, effect=Effect.FAILED, message=MessageRule.NEWEST)
_DEMOTE = Transition(to=Status.FAILED, effect=Effect.DEMOTED, message=MessageRule.SET)
_TO_PENDING = Transition(to=Status.PENDING)
_STAY = {status: Transition(to=status) for status in (None, *Status)}

# None is the absent row: it reads as pending, and only a write makes it one. A pair that is not listed is refused.
TRANSITIONS: Mapping[tuple[Status | None, Action], Transition] = {
    (None, Action.ACCEPT_NEWER): _PROMOTE,
    (None, Action.REJECT_OTHER): _FAIL,
    (None, Action.END_UNJUDGED): _STAY[None],
    (None, Action.ENQUEUE): _TO_PENDING,
    (None, Action.REQUEUE): _STAY[None],
    (Status.PENDING, Action.ACCEPT_NEWER): _PROMOTE,
    (Status.PENDING, Action.ACCEPT_CURRENT): _PROMOTE,
    (Status.PENDING, Action.ACCEPT_OLDER): _PROMOTE,
    (Status.PENDING, Action.REJECT_CURRENT): _FAIL,
    (Status.PENDING, Action.REJECT_OTHER): _FAIL,
    (Status.PENDING, Action.REDELIVER): _STAY[Status.PENDING],
    (Status.PENDING, Action.END_UNJUDGED): _STAY[Status.PENDING],
    (Status.PENDING, Action.ENQUEUE): _STAY[Status.PENDING],
    (Status.PENDING, Action.REQUEUE): _STAY[Status.PENDING],
    (Status.PENDING, Action.CLEAR_TERMINAL): _STAY[Status.PENDING],
    (Status.FAILED, Action.ACCEPT_NEWER): _PROMOTE,
    (Status.FAILED, Action.ACCEPT_CURRENT): _PROMOTE,
    (Status.FAILED, Action.ACCEPT_OLDER): _PROMOTE,
    (Status.FAILED, Action.REJECT_CURRENT): _FAIL,
    (Status.FAILED, Action.REJECT_OTHER): _FAIL,
    (Status.FAILED, Action.REDELIVER): _STAY[Status.FAILED],
    (Status.FAILED, Action.END_UNJUDGED): _STAY[Status.FAILED],
    (Status.FAILED, Action.ENQUEUE): _STAY[Status.FAILED],
    (Status.FAILED, Action.REQUEUE): _TO_PENDING,
    (Status.FAILED, Action.MARK_TERMINAL): _STAY[Status.FAILED],
    (Status.FAILED, Action.CLEAR_TERMINAL): _STAY[Status.FAILED],
    (Status.SUCCESS, Action.ACCEPT_NEWER): _PROMOTE,
    (Status.SUCCESS, Action.ACCEPT_CURRENT): _CONFIRM,
    (Status.SUCCESS, Action.ACCEPT_OLDER): _SUPERSEDE,
    (Status.SUCCESS, Action.REJECT_CURRENT): _DEMOTE,
    (Status.SUCCESS, Action.REJECT_OTHER): _SET_ASIDE,
    (Status.SUCCESS, Action.REDELIVER): _STAY[Status.SUCCESS],
    (Status.SUCCESS, Action.END_UNJUDGED): _STAY[Status.SUCCESS],
    (Status.SUCCESS, Action.ENQUEUE): _STAY[Status.SUCCESS],
    (Status.SUCCESS, Action.REPROCESS): _STAY[Status.SUCCESS],
    (Status.SUCCESS, Action.WITHDRAW): _TO_PENDING,
    (Status.SUCCESS, Action.CLEAR_TERMINAL): _STAY[Status.SUCCESS],
}

# What to do instead, for the acts an operator may ask for in the wrong state.
_INSTEAD = {
    Action.REQUEUE: "a success is reprocessed or withdrawn, not requeued",
    Action.REPROCESS: "only a success is reprocessed; requeue a failed partition, wait for a pending one",
    Action.WITHDRAW: "there is nothing to withdraw; only a success is served",
    Action.MARK_TERMINAL: "only a failed partition can be terminal",
    Action.CLEAR_TERMINAL: "nobody has heard of it, so nobody has marked it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The ledger's row for one partition. A partition without a row reads as `absent(key)`."""

    key: PartitionKey
    status: Status
    current_run_id: str | None = None
    schema_version: str | None = None
    record_count: int | None = None
    updated_at: datetime | None = None
    error_message: str | None = None
    attempt_count: int = 0

    @classmethod
    def absent(cls, key: PartitionKey) -> Self:
        return cls(key=key, status=Status.PENDING)

    @property
    def recorded(self) -> Status | None:
        """The status as the table's row names it: None until a row exists."""
        return None if self.updated_at is None else self.status


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredRun:
    """A run the ledger was told of. The ordinal orders the runs of a partition; no clock and no name does.

    The last three fields are the seal's; all three are None for a run that was found damaged.
    """

    run: Run
    ordinal: int
    schema_version: str | None
    record_count: int | None
    payload_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the validator says of one run. A re-validation carries a validation_id of its own."""

    run: Run
    outcome: Outcome
    validation_id: str = ""
    rows_read: int | None = None
    rows_failed: int | None = None
    error_class: str | None = None
    error_message: str | None = None

    def __post_init__(self) -> None:
        if self.validation_id:
            checked_name("validation_id", self.validation_id)
        if self.error_class is not None:
            checked_name("error_class", self.error_class)
        told = self.error_class is not None and bool(self.error_message)
        silent = self.error_class is None and self.error_message is None
        if not (told if self.outcome is Outcome.REJECTED else silent):
            raise ValueError(f"{self.run}: a rejection has an error class and a message, an acceptance neither")
        if self.outcome is Outcome.ACCEPTED and self.rows_read is None:
            raise ValueError(f"{self.run}: an acceptance says how many rows were read")
        if self.error_message is not None:
            object.__setattr__(self, "error_message", printable(self.error_message))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictEffect:
    """The state after a verdict, what the verdict did, and the run whose rejection the message tells."""

    state: PartitionState
    effect: Effect
    message_ordinal: int | None


def move_for(recorded: Status | None, act: Action, *, partition: object) -> Transition:
    """The cell of the table, or IllegalMove."""
    move = TRANSITIONS.get((recorded, act))
    if move is None:
        hint = _INSTEAD.get(act, "the transition table has no such move")
        raise IllegalTransition(str(partition), recorded or "absent", act.value, hint)
    return move


def act_of(outcome: Outcome, *, ordinal: int, current_ordinal: int | None) -> Action:
    """Which act a verdict is, from where its run stands beside the current one."""
    if outcome is Outcome.REJECTED:
        return Action.REJECT_CURRENT if ordinal == current_ordinal else Action.REJECT_OTHER
    if current_ordinal is None or ordinal > current_ordinal:
        return Action.ACCEPT_NEWER
    return Action.ACCEPT_CURRENT if ordinal == current_ordinal else Action.ACCEPT_OLDER


def rule_on(
    state: PartitionState,
    verdict: Verdict,
    *,
    registered: RegisteredRun,
    current_ordinal: int | None,
    message_ordinal: int | None,
    now: datetime,
) -> VerdictEffect:
    """What a verdict that was not heard before makes of the partition."""
    act = act_of(verdict.outcome, ordinal=registered.ordinal, current_ordinal=current_ordinal)
    move = move_for(state.recorded, act, partition=state.key)
    if move.to is None or move.effect is None:
        raise IllegalTransition(str(state.key), state.recorded or "absent", act.value, "a verdict always counts")
    message, message_ordinal = _message(state, verdict, move, registered.ordinal, message_ordinal)
    taken = move.takes_authority
    ruled = PartitionState(
        key=state.key,
        status=move.to,
        current_run_id=registered.run.run_id if taken else state.current_run_id,
        schema_version=registered.schema_version if taken else state.schema_version,
        record_count=registered.record_count if taken else state.record_count,
        updated_at=later(state.updated_at, now),
        error_message=message,
        attempt_count=state.attempt_count + 1,
    )
    return VerdictEffect(state=ruled, effect=move.effect, message_ordinal=message_ordinal)


def carry_out(state: PartitionState, act: Action, *, now: datetime) -> PartitionState:
    """What a control act makes of the partition: the same value where nothing changes."""
    move = move_for(state.recorded, act, partition=state.key)
    if move.effect is not None:
        raise IllegalTransition(
            str(state.key), state.recorded or "absent", act.value, "a verdict is recorded, not ordered"
        )
    if move.to is state.recorded or move.to is None:
        return state
    return replace(state, status=move.to, updated_at=later(state.updated_at, now))


def later(previous: datetime | None, now: datetime) -> datetime:
    """Now, or the next instant after the previous one when the clock stands still or goes back."""
    return now if previous is None else max(now, previous + timedelta(microseconds=1))


def _message(
    state: PartitionState, verdict: Verdict, move: Transition, ordinal: int, told_by: int | None
) -> tuple[str | None, int | None]:
    match move.message:
        case MessageRule.CLEAR:
            return None, None
        case MessageRule.KEEP:
            return state.error_message, told_by
        case MessageRule.NEWEST if told_by is not None and told_by > ordinal:
            return state.error_message, told_by
    return verdict.error_message, ordinal
