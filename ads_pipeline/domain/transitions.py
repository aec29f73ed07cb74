"""The state machine of a partition: PartitionState and the table of every legal transition.

Pure functions; `ledger` locks the rows and writes them. Whether a failed partition is retried is decided in `retry`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Self

from ads_pipeline.domain.errors import IllegalTransition
from ads_pipeline.domain.measures import NO_MEASURES, Measures
from ads_pipeline.domain.partition import PartitionKey, Run, validate_name
from ads_pipeline.domain.reason import Reason


class Status(StrEnum):
    """Is the partition safe to read? Only success is."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"


class Outcome(StrEnum):
    """The validator's decision about one run."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"


class Effect(StrEnum):
    """The effect of a verdict on the partition; stored with the attempt, so that history needs no replay."""

    PROMOTED = "promoted"  # the run got authority
    CONFIRMED = "confirmed"  # the run had authority and keeps it
    SUPERSEDED = "superseded"  # accepted, but a newer run has authority
    SET_ASIDE = "set_aside"  # rejected, and another run keeps its authority
    FAILED = "failed"  # rejected, and nothing is safe to read
    DEMOTED = "demoted"  # the run had authority and is now rejected: its rows must be removed


class Action(StrEnum):
    """Everything that can happen to a partition. The values complete the message "cannot …"."""

    ACCEPT_NEWER = "accept a run newer than the current one"
    ACCEPT_CURRENT = "accept the current run again"
    ACCEPT_OLDER = "accept a run older than the current one"
    REJECT_CURRENT = "reject the current run"
    REJECT_OTHER = "reject a run that is not the current one"
    REDELIVER = "record the same verdict again"
    END_UNJUDGED = "end a run without a verdict"
    ENQUEUE = "enqueue a backfill"
    REQUEUE = "requeue"
    REPROCESS = "request reprocessing"
    WITHDRAW = "withdraw"
    MARK_TERMINAL = "mark as terminal"
    CLEAR_TERMINAL = "clear the terminal mark"
    ACKNOWLEDGE = "acknowledge"


class MessageRule(StrEnum):
    """The change of the error message in a transition."""

    KEEP = "keep"
    CLEAR = "clear"
    SET = "set"
    NEWEST = "newest"  # keep the message of the newest rejected run, in whatever order verdicts arrive


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One entry of the table. Transitions with an effect are verdicts and count as attempts; others do not."""

    target: Status | None
    effect: Effect | None = None
    takes_authority: bool = False
    message: MessageRule = MessageRule.KEEP


_PROMOTE = Transition(target=Status.SUCCESS, effect=Effect.PROMOTED, takes_authority=True, message=MessageRule.CLEAR)
_CONFIRM = Transition(target=Status.SUCCESS, effect=Effect.CONFIRMED)
_SUPERSEDE = Transition(target=Status.SUCCESS, effect=Effect.SUPERSEDED)
_SET_ASIDE = Transition(target=Status.SUCCESS, effect=Effect.SET_ASIDE)
_FAIL = Transition(target=Status.FAILED, effect=Effect.FAILED, message=MessageRule.NEWEST)
_DEMOTE = Transition(target=Status.FAILED, effect=Effect.DEMOTED, message=MessageRule.SET)
_TO_PENDING = Transition(target=Status.PENDING)
_STAY = {status: Transition(target=status) for status in (None, *Status)}

# The status None is a partition without a row, which reads as pending. A pair that is not listed is illegal.
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
    **{(status, Action.ACKNOWLEDGE): _STAY[status] for status in (None, *Status)},
}

# Advice for operators who request an action in a status that does not allow it.
_ADVICE = {
    Action.REQUEUE: "reprocess or withdraw a success instead",
    Action.REPROCESS: "only a success can be reprocessed; requeue a failed partition, wait for a pending one",
    Action.WITHDRAW: "only a success can be withdrawn",
    Action.MARK_TERMINAL: "only a failed partition can be terminal",
    Action.CLEAR_TERMINAL: "the partition has no row, so it has no terminal mark",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The ledger's row of one partition. A partition without a row reads as `absent(key)`."""

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
    def recorded_status(self) -> Status | None:
        """The status in the partition's row; None when there is no row."""
        return None if self.updated_at is None else self.status


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredRun:
    """A run that the ledger registered. Only the ordinal orders the runs of a partition.

    The last four fields come from the seal. They are None when the run was damaged at registration.
    """

    run: Run
    ordinal: int
    schema_version: str | None
    record_count: int | None
    payload_sha256: str | None = None
    extracted_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The validator's decision about one run. A rejection has a reason; a re-validation has its own validation_id.

    `payload_bytes` and `payload_sha256` describe the bytes that were judged, if they could be read.
    """

    run: Run
    outcome: Outcome
    validation_id: str = ""
    reason: Reason | None = None
    rows_read: int | None = None
    payload_bytes: int | None = None
    payload_sha256: str | None = None
    measures: Measures = NO_MEASURES

    def __post_init__(self) -> None:
        if self.validation_id:
            validate_name("validation_id", self.validation_id)
        if (self.reason is not None) is not (self.outcome is Outcome.REJECTED):
            raise ValueError(f"{self.run}: a rejection needs a reason, and an acceptance has none")
        if self.reason is not None and self.reason.run_id != self.run.run_id:
            raise ValueError(f"{self.run}: the reason is about run {self.reason.run_id}")
        read = self.rows_read, self.payload_bytes, self.payload_sha256
        if self.outcome is Outcome.ACCEPTED and None in read:
            raise ValueError(f"{self.run}: an acceptance needs the rows, the bytes and the digest that were read")

    @property
    def error_class(self) -> str | None:
        return None if self.reason is None else self.reason.error_class

    @property
    def error_message(self) -> str | None:
        """The text of the reason."""
        return None if self.reason is None else str(self.reason)

    @property
    def rows_failed(self) -> int | None:
        """The number of rows that break a rule; None when no row was read."""
        if self.rows_read is None:
            return None
        return 0 if self.reason is None else self.reason.rows_failed


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictEffect:
    """The state after a verdict, the verdict's effect, and the ordinal of the run that the message is about."""

    state: PartitionState
    effect: Effect
    message_ordinal: int | None


def transition_for(status: Status | None, action: Action, *, partition: object) -> Transition:
    """The table's entry for this status and action, or IllegalTransition."""
    transition = TRANSITIONS.get((status, action))
    if transition is None:
        advice = _ADVICE.get(action, "the transition table has no such entry")
        raise IllegalTransition(str(partition), status or "absent", action.value, advice)
    return transition


def advice_for(status: Status | None, action: Action) -> str:
    """The advice where the table does not allow this action in this status; empty where it does."""
    return "" if (status, action) in TRANSITIONS else _ADVICE.get(action, "")


def action_for(outcome: Outcome, *, ordinal: int, current_ordinal: int | None) -> Action:
    """The action that a verdict on this run is, given the run that has authority."""
    if outcome is Outcome.REJECTED:
        return Action.REJECT_CURRENT if ordinal == current_ordinal else Action.REJECT_OTHER
    if current_ordinal is None or ordinal > current_ordinal:
        return Action.ACCEPT_NEWER
    return Action.ACCEPT_CURRENT if ordinal == current_ordinal else Action.ACCEPT_OLDER


def apply_verdict(
    state: PartitionState,
    verdict: Verdict,
    *,
    registered: RegisteredRun,
    current_ordinal: int | None,
    message_ordinal: int | None,
    now: datetime,
) -> VerdictEffect:
    """The effect of a verdict that was not recorded before."""
    action = action_for(verdict.outcome, ordinal=registered.ordinal, current_ordinal=current_ordinal)
    transition = transition_for(state.recorded_status, action, partition=state.key)
    if transition.target is None or transition.effect is None:
        status = state.recorded_status or "absent"
        raise IllegalTransition(str(state.key), status, action.value, "a verdict must have an effect")
    message, message_ordinal = _message_after(state, verdict, transition, registered.ordinal, message_ordinal)
    takes_authority = transition.takes_authority
    new_state = PartitionState(
        key=state.key,
        status=transition.target,
        current_run_id=registered.run.run_id if takes_authority else state.current_run_id,
        schema_version=registered.schema_version if takes_authority else state.schema_version,
        record_count=registered.record_count if takes_authority else state.record_count,
        updated_at=next_timestamp(state.updated_at, now),
        error_message=message,
        attempt_count=state.attempt_count + 1,
    )
    return VerdictEffect(state=new_state, effect=transition.effect, message_ordinal=message_ordinal)


def apply_control_action(state: PartitionState, action: Action, *, now: datetime) -> PartitionState:
    """The state after a control action; the same object when nothing changes."""
    transition = transition_for(state.recorded_status, action, partition=state.key)
    if transition.effect is not None:
        status = state.recorded_status or "absent"
        raise IllegalTransition(str(state.key), status, action.value, "a verdict is not a control action")
    if transition.target is state.recorded_status or transition.target is None:
        return state
    return replace(state, status=transition.target, updated_at=next_timestamp(state.updated_at, now))


def next_timestamp(previous: datetime | None, now: datetime) -> datetime:
    """Now, or one microsecond after the previous time when the clock stands still or goes back."""
    return now if previous is None else max(now, previous + timedelta(microseconds=1))


def _message_after(
    state: PartitionState, verdict: Verdict, transition: Transition, ordinal: int, message_ordinal: int | None
) -> tuple[str | None, int | None]:
    """The error message after the transition, and the ordinal of the run that it is about."""
    match transition.message:
        case MessageRule.CLEAR:
            return None, None
        case MessageRule.KEEP:
            return state.error_message, message_ordinal
        case MessageRule.NEWEST if message_ordinal is not None and message_ordinal > ordinal:
            return state.error_message, message_ordinal
    return verdict.error_message, ordinal
