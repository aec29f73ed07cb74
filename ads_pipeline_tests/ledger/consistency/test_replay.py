"""Replaying the logs of partitions to their states."""

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.errors import LogContradicted
from ads_pipeline.domain.transitions import Action, Effect
from ads_pipeline.ledger.consistency.replay import PartitionHistory, read_histories, replay
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.sql import database
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import FakeClock, accepted_runs, key
from ads_pipeline_tests.ledger.histories import OPERATIONS, SCRIPTED_HISTORY, Step, apply_history

FREQUENT = ("register", "accept", "execute")
ACTIONS = (
    *(Action.REQUEUE, Action.WITHDRAW, Action.ENQUEUE),
    *(Action.REPROCESS, Action.MARK_TERMINAL, Action.CLEAR_TERMINAL),
)
random_histories = st.lists(
    st.builds(
        Step,
        operation=st.sampled_from([*FREQUENT, *FREQUENT, *OPERATIONS]),
        partition_no=st.integers(0, 1),
        run_no=st.integers(1, 2),
        clock_change=st.sampled_from([-5_000_000, -1, 0, 0, 1, 1_000, 60_000_000]).map(
            lambda microseconds: timedelta(microseconds=microseconds)
        ),
        validation_id=st.sampled_from(["", "", "v2"]),
        action=st.sampled_from(ACTIONS),
    ),
    min_size=10,
    max_size=60,
)


@pytest.fixture
def scripted_url(url: str) -> str:
    """A ledger after the scripted history."""
    clock = FakeClock()
    with Ledger.opened(url, clock=clock) as ledger:
        apply_history(ledger, clock, SCRIPTED_HISTORY)
    return url


def histories_of(url: str) -> list[PartitionHistory]:
    with (
        database.open_checked_engine(url, read_only=True) as engine,
        database.open_snapshot(engine) as connection,
    ):
        return list(read_histories(connection))


@pytest.mark.invariant("C3", "S22")
def test_replay_gives_the_recorded_states(scripted_url: str) -> None:
    """Over a history with a verdict of each effect, every replayed state equals the recorded row."""
    histories = histories_of(scripted_url)
    assert len(histories) == 6
    assert all(replay(history) == history.recorded for history in histories)
    with LedgerReader.opened(scripted_url) as ledger:
        effects = {attempt.effect for history in histories for attempt in ledger.runs.attempts(history.key)}
    assert effects == set(Effect)


@pytest.mark.invariant("C3")
def test_replay_gives_the_recorded_states_of_any_history(sqlite_template: Path, tmp_path: Path) -> None:
    """Registrations, verdicts and actions in any order and with any clock lead to the recorded rows."""
    numbers = itertools.count()

    @settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
    @given(random_histories)
    def check(steps: list[Step]) -> None:
        path, clock = tmp_path / f"{next(numbers)}.db", FakeClock()
        shutil.copy(sqlite_template, path)
        with Ledger.opened(f"sqlite:///{path}", clock=clock) as ledger:
            apply_history(ledger, clock, steps)
        for history in histories_of(f"sqlite:///{path}"):
            assert replay(history) == history.recorded

    check()


def test_replay_accepts_a_row_older_than_its_first_run(url: str, clock: FakeClock) -> None:
    """The row was inserted as pending before the run was registered and accepted in one instant."""
    with Ledger.opened(url, clock=clock) as ledger:
        ledger.registrations.insert_pending([key()])
        clock.tick()
        accepted_runs(ledger, [key()])
    (history,) = histories_of(url)
    assert replay(history) == history.recorded


def changed_row(row: Any, **values: Any) -> Any:
    columns = dict(row._mapping) | values
    return SimpleNamespace(**columns, _mapping=columns)


def change_attempt(number: int, **values: Any) -> Callable[[PartitionHistory], PartitionHistory]:
    def change(history: PartitionHistory) -> PartitionHistory:
        attempts = list(history.attempts)
        attempts[number] = changed_row(attempts[number], **values)
        return replace(history, attempts=attempts)

    return change


def change_action(action: str, **values: Any) -> Callable[[PartitionHistory], PartitionHistory]:
    def change(history: PartitionHistory) -> PartitionHistory:
        assert action in {row.action for row in history.actions}
        actions = [changed_row(row, **values) if row.action == action else row for row in history.actions]
        return replace(history, actions=actions)

    return change


CONTRADICTIONS: dict[str, tuple[Callable[[PartitionHistory], PartitionHistory], str]] = {
    "effect": (change_attempt(0, effect="superseded"), "attempt 1: the log says superseded"),
    "unregistered run": (change_attempt(0, run_id="r9"), "attempt 1: its number or its run"),
    "current run": (change_attempt(0, current_ordinal=2), "attempt 1: the log says promoted .* current run 2"),
    "time": (change_attempt(1, judged_at=FakeClock().now - timedelta(days=9)), "attempt 2: the log says"),
    "row count": (change_attempt(0, rows_read=4), "attempt 1: "),
    "number": (change_attempt(1, attempt_no=99), "attempt 99: its number or its run"),
    "missing attempt": (lambda history: replace(history, attempts=history.attempts[1:]), "attempt 2: its number"),
    "status before": (change_action("requeue", status_before="success"), "logged the status success"),
    "later attempt": (change_action("requeue", attempt_no=77), "follows attempt 77, which is not in the log"),
    "earlier attempt": (change_action("requeue", attempt_no=1), "logged the status failed, the log leads to success"),
}


@pytest.mark.invariant("C3", "S5")
@pytest.mark.parametrize("change", CONTRADICTIONS)
def test_replay_refuses_logs_that_break_the_rules(scripted_url: str, change: str) -> None:
    """A log that the transition rules cannot produce is named with its partition and its first contradiction."""
    history = histories_of(scripted_url)[0]
    apply_change, message = CONTRADICTIONS[change]
    with pytest.raises(LogContradicted, match=message) as refused:
        replay(apply_change(history))
    assert refused.value.partition == str(history.key)
