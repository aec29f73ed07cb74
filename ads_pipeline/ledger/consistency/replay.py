"""Replays the logs of each partition, by the transition rules alone, to the state that must follow from them.

The logs are the registered runs, their verdicts, and the control actions. Nothing is written here.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.errors import IllegalTransition, LogContradicted, UnsoundAcceptance
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import (
    TRANSITIONS,
    Action,
    Effect,
    Outcome,
    PartitionState,
    RegisteredRun,
    Status,
    VerdictEffect,
    apply_control_action,
    apply_verdict,
)
from ads_pipeline.ledger.sql.ledger_tables import (
    KEY,
    attempts,
    control_action_partitions,
    control_actions,
    partition_state,
    runs,
)
from ads_pipeline.ledger.sql.row_mapping import (
    decode_key,
    decode_registered_run,
    decode_state,
    decode_verdict,
    key_of_table,
)
from ads_pipeline.ledger.state.verdict_recorder import require_sound_seal

ROWS_PER_FETCH: Final = 5_000
CLOCK_SKEW: Final = timedelta(hours=1)  # tolerated between the clocks of runs and verdicts
# The actions that change a partition's status. The replay leaves out the others.
STATUS_CHANGES: Final[Mapping[str, Action]] = {
    action.name.lower(): action
    for (status, action), transition in TRANSITIONS.items()
    if transition.effect is None and transition.target is not status
}
_Rows = Sequence[sa.Row[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHistory:
    """The logs of one partition and its recorded state, which is None when there is no row."""

    key: PartitionKey
    recorded: PartitionState | None
    registered_runs: Mapping[str, RegisteredRun]
    attempts: _Rows
    actions: _Rows
    first_registered_at: datetime | None

    @property
    def initial_state(self) -> PartitionState:
        """The state before the first verdict and action.

        A judged row no longer has the time of its creation: at most CLOCK_SKEW before its first run was registered.
        """
        created_at = self.recorded.updated_at if self.recorded is not None else self.first_registered_at
        if self.attempts and self.first_registered_at is not None:
            created_at = self.first_registered_at - CLOCK_SKEW
        if created_at is None or any(action.status_before is None for action in self.actions):
            return PartitionState.absent(self.key)
        return PartitionState(key=self.key, status=Status.PENDING, updated_at=created_at)

    @property
    def actions_by_attempt(self) -> dict[int, list[sa.Row[Any]]]:
        """The actions by the number of attempts before them. Times cannot order the two logs: clocks may go back."""
        actions: dict[int, list[sa.Row[Any]]] = {}
        for action in self.actions:
            actions.setdefault(action.attempt_no, []).append(action)
        return actions


def read_histories(connection: sa.Connection) -> Iterator[PartitionHistory]:
    """The history of every partition with a row or a log entry, in key order, streamed."""
    streams = [_read_rows(connection, number, statement) for number, statement in enumerate(_STATEMENTS)]
    for _key, members in groupby(heapq.merge(*streams, key=itemgetter(0)), key=itemgetter(0)):
        rows: list[list[sa.Row[Any]]] = [[] for _ in _STATEMENTS]
        for _row_key, number, row in members:
            rows[number].append(row)
        states, registered, judged, actions = rows
        yield PartitionHistory(
            key=decode_key(next(row for group in rows for row in group)),
            recorded=decode_state(states[0]) if states else None,
            registered_runs={row.run_id: decode_registered_run(row) for row in registered},
            attempts=judged,
            actions=actions,
            first_registered_at=registered[0].registered_at if registered else None,
        )


def replay(history: PartitionHistory) -> PartitionState:
    """The state that follows from the logs. Raises LogContradicted when the rules cannot produce these logs."""
    state, actions = history.initial_state, history.actions_by_attempt
    current_ordinal: int | None = None
    message_ordinal: int | None = None
    state = _apply_actions(state, actions.pop(0, ()))
    for number, attempt in enumerate(history.attempts, 1):
        registered = history.registered_runs.get(attempt.run_id)
        if registered is None or registered.ordinal != attempt.ordinal or attempt.attempt_no != number:
            raise _contradiction(state, attempt, "its number or its run does not match the registration")
        result = _apply_attempt(state, attempt, registered, current_ordinal, message_ordinal)
        state, message_ordinal = result.state, result.message_ordinal
        current_ordinal = registered.ordinal if result.effect is Effect.PROMOTED else current_ordinal
        expected = (result.effect, state.updated_at, current_ordinal, message_ordinal)
        logged = (attempt.effect, attempt.judged_at, attempt.current_ordinal, attempt.message_ordinal)
        if expected != logged:
            problem = f"the log says {_describe_effect(logged)}, the rules say {_describe_effect(expected)}"
            raise _contradiction(state, attempt, problem)
        state = _apply_actions(state, actions.pop(number, ()))
    if actions:
        problem = f"a control action follows attempt {min(actions)}, which is not in the log"
        raise LogContradicted(str(history.key), problem)
    return state


def _apply_attempt(
    state: PartitionState,
    attempt: sa.Row[Any],
    registered: RegisteredRun,
    current_ordinal: int | None,
    message_ordinal: int | None,
) -> VerdictEffect:
    try:
        verdict = decode_verdict(attempt, Outcome(attempt.outcome))
        require_sound_seal(verdict, registered)
        return apply_verdict(
            state,
            verdict,
            registered=registered,
            current_ordinal=current_ordinal,
            message_ordinal=message_ordinal,
            now=attempt.judged_at,
        )
    except (ValueError, IllegalTransition, UnsoundAcceptance) as error:
        raise _contradiction(state, attempt, str(error)) from error


def _apply_actions(state: PartitionState, actions: Iterable[sa.Row[Any]]) -> PartitionState:
    """Apply the actions between two attempts. The status before each gives their order, where clocks do not."""
    remaining = list(actions)
    while remaining:
        action = next((each for each in remaining if each.status_before == state.recorded_status), remaining[0])
        remaining.remove(action)
        state = _apply_action(state, action)
    return state


def _apply_action(state: PartitionState, action: sa.Row[Any]) -> PartitionState:
    if action.status_before != state.recorded_status:
        before, expected = action.status_before or "absent", state.recorded_status or "absent"
        problem = f"control action {action.action_id} logged the status {before}, the log leads to {expected}"
        raise LogContradicted(str(state.key), problem)
    try:
        return apply_control_action(state, STATUS_CHANGES[action.action], now=action.performed_at)
    except IllegalTransition as error:
        raise LogContradicted(str(state.key), f"control action {action.action_id}: {error}") from error


def _contradiction(state: PartitionState, attempt: sa.Row[Any], problem: str) -> LogContradicted:
    return LogContradicted(str(state.key), f"attempt {attempt.attempt_no}: {problem}")


def _describe_effect(values: Iterable[object]) -> str:
    effect, at, current, message = values
    return f"{effect} at {at}, with current run {current or 'none'} and message of run {message or 'none'}"


def _read_rows(
    connection: sa.Connection, number: int, statement: sa.Select[Any]
) -> Iterator[tuple[tuple[Any, ...], int, sa.Row[Any]]]:
    for row in connection.execute(statement, execution_options={"yield_per": ROWS_PER_FETCH}):
        yield tuple(getattr(row, name) for name in KEY), number, row


_STATEMENTS: Final[tuple[sa.Select[Any], ...]] = (
    sa.select(partition_state).order_by(*key_of_table(partition_state)),
    sa.select(runs).order_by(*key_of_table(runs), runs.c.ordinal),
    sa.select(attempts).order_by(*key_of_table(attempts), attempts.c.attempt_no),
    sa.select(control_action_partitions, control_actions.c.action, control_actions.c.performed_at)
    .join(control_actions, control_actions.c.action_id == control_action_partitions.c.action_id)
    .where(control_actions.c.action.in_(sorted(STATUS_CHANGES)))
    .order_by(
        *key_of_table(control_action_partitions),
        control_actions.c.performed_at,
        control_action_partitions.c.action_id,
    ),
)
