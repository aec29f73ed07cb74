"""Replays what is logged of each partition, by the rules alone, to the state that must follow from it.

The logs are the registered runs, the verdicts on them and the acts of operators. Nothing is written here:
`rebuilding` writes the states, and an examination holds them against those that stand.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import (
    TRANSITIONS,
    Action,
    Effect,
    Outcome,
    PartitionState,
    RegisteredRun,
    Status,
    Verdict,
    VerdictEffect,
    apply_control_action,
    apply_verdict,
)
from ads_pipeline.errors import IllegalTransition, LogContradicted, UnsoundAcceptance
from ads_pipeline.ledger.row_mapping import fields_for, key_in, key_of, registered_of, run_in, state_of
from ads_pipeline.ledger.state.verdict_recorder import require_sound_seal
from ads_pipeline.ledger.tables import KEY, control_action_partitions, attempts, control_actions, partition_state, runs

AT_ONCE: Final = 5_000
CLOCKS_GO_BACK: Final = timedelta(hours=1)  # and no further, or it is the log that is wrong
# The acts by which a partition's status changes. Others are noted beside it, and are no part of the replay.
MOVING: Final[Mapping[str, Action]] = {
    act.name.lower(): act
    for (status, act), move in TRANSITIONS.items()
    if move.effect is None and move.target is not status
}
_Rows = Sequence[sa.Row[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHistory:
    """What is logged of one partition, and its state as it stands; None where there is no row."""

    key: PartitionKey
    recorded: PartitionState | None
    registered: Mapping[str, RegisteredRun]
    attempts: _Rows
    acts: _Rows
    heard_at: datetime | None

    @property
    def begun(self) -> PartitionState:
        """The row before its first verdict. When it was made nothing says any more once it was judged.

        It was no later than its first run was heard of, but for what a clock goes back.
        """
        made = self.recorded.updated_at if self.recorded is not None else self.heard_at
        if self.attempts and self.heard_at is not None:
            made = self.heard_at - CLOCKS_GO_BACK
        if made is None or any(act.status_before is None for act in self.acts):
            return PartitionState.absent(self.key)
        return PartitionState(key=self.key, status=Status.PENDING, updated_at=made)

    @property
    def placed(self) -> dict[int, list[sa.Row[Any]]]:
        """The acts by the number of attempts before them; where that was not kept, as far as their times tell it."""
        found: dict[int, list[sa.Row[Any]]] = {}
        for act in self.acts:
            before = act.attempt_no
            if before is None:
                before = sum(attempt.judged_at <= act.performed_at for attempt in self.attempts)
            found.setdefault(before, []).append(act)
        return found


def histories(connection: sa.Connection) -> Iterator[PartitionHistory]:
    """Every partition of which anything is logged or recorded, in key order, a portion at a time."""
    streams = [_stream(connection, number, statement) for number, statement in enumerate(_STREAMS)]
    for _key, members in groupby(heapq.merge(*streams, key=itemgetter(0)), key=itemgetter(0)):
        rows: list[list[sa.Row[Any]]] = [[] for _ in _STREAMS]
        for _place, number, row in members:
            rows[number].append(row)
        states, registered, judged, acts = rows
        yield PartitionHistory(
            key=key_in(next(row for some in rows for row in some)),
            recorded=state_of(states[0]) if states else None,
            registered={row.run_id: registered_of(row) for row in registered},
            attempts=judged,
            acts=acts,
            heard_at=registered[0].registered_at if registered else None,
        )


def replay(history: PartitionHistory) -> PartitionState:
    """The state that follows from the logs; LogContradicted where the rules cannot have led to them."""
    state, placed = history.begun, history.placed
    current: int | None = None
    speaker: int | None = None
    state = _moved(state, placed.pop(0, ()))
    for number, attempt in enumerate(history.attempts, 1):
        registered = history.registered.get(attempt.run_id)
        if registered is None or registered.ordinal != attempt.ordinal or attempt.attempt_no != number:
            raise _contradicted(state, attempt, "its number or its run is not the one that is registered")
        ruling = _ruled(state, attempt, registered, current, speaker)
        state, speaker = ruling.state, ruling.message_ordinal
        current = registered.ordinal if ruling.effect is Effect.PROMOTED else current
        found = (ruling.effect, state.updated_at, current, speaker)
        logged = (attempt.effect, attempt.judged_at, attempt.current_ordinal, attempt.message_ordinal)
        if found != logged:
            raise _contradicted(state, attempt, f"it is logged as {_told(logged)}, the rules make it {_told(found)}")
        state = _moved(state, placed.pop(number, ()))
    if placed:
        raise LogContradicted(str(history.key), f"an act stands behind attempt {min(placed)}, which is missing")
    return state


def _ruled(
    state: PartitionState, attempt: sa.Row[Any], registered: RegisteredRun, current: int | None, speaker: int | None
) -> VerdictEffect:
    try:
        verdict = Verdict(
            run=run_in(attempt),
            outcome=Outcome(attempt.outcome),
            **fields_for(Verdict, attempt, "run", "outcome"),
        )
        require_sound_seal(verdict, registered)
        return apply_verdict(
            state,
            verdict,
            registered=registered,
            current_ordinal=current,
            message_ordinal=speaker,
            now=attempt.judged_at,
        )
    except (ValueError, IllegalTransition, UnsoundAcceptance) as error:
        raise _contradicted(state, attempt, str(error)) from error


def _moved(state: PartitionState, acts: Iterable[sa.Row[Any]]) -> PartitionState:
    """The state after acts that no verdict parts: their order is told by what each found, where clocks do not."""
    waiting = list(acts)
    while waiting:
        act = next((each for each in waiting if each.status_before == state.recorded_status), waiting[0])
        waiting.remove(act)
        state = _acted(state, act)
    return state


def _acted(state: PartitionState, act: sa.Row[Any]) -> PartitionState:
    if act.status_before != state.recorded_status:
        problem = f"act {act.action_id} found it {act.status_before or 'absent'}, the log has it {state.recorded_status or 'absent'}"
        raise LogContradicted(str(state.key), problem)
    try:
        return apply_control_action(state, MOVING[act.action], now=act.performed_at)
    except IllegalTransition as error:
        raise LogContradicted(str(state.key), f"act {act.action_id}: {error}") from error


def _contradicted(state: PartitionState, attempt: sa.Row[Any], problem: str) -> LogContradicted:
    return LogContradicted(str(state.key), f"attempt {attempt.attempt_no}: {problem}")


def _told(logged: Iterable[object]) -> str:
    effect, at, current, speaker = logged
    return f"{effect} at {at}, with current run {current or 'none'} and message of run {speaker or 'none'}"


def _stream(
    connection: sa.Connection, number: int, statement: sa.Select[Any]
) -> Iterator[tuple[tuple[Any, ...], int, sa.Row[Any]]]:
    for row in connection.execute(statement, execution_options={"yield_per": AT_ONCE}):
        yield tuple(getattr(row, name) for name in KEY), number, row


_STREAMS: Final[tuple[sa.Select[Any], ...]] = (
    sa.select(partition_state).order_by(*key_of(partition_state)),
    sa.select(runs).order_by(*key_of(runs), runs.c.ordinal),
    sa.select(attempts).order_by(*key_of(attempts), attempts.c.attempt_no),
    sa.select(control_action_partitions, control_actions.c.action, control_actions.c.performed_at)
    .join(control_actions, control_actions.c.action_id == control_action_partitions.c.action_id)
    .where(control_actions.c.action.in_(sorted(MOVING)))
    .order_by(*key_of(control_action_partitions), control_actions.c.performed_at, control_action_partitions.c.action_id),
)
