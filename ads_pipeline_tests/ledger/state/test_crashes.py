"""Recording verdicts is atomic: killed processes, lost acknowledgements, and unavailable databases."""

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg2
import pytest
import sqlalchemy as sa

from ads_pipeline.domain.errors import LedgerRefused, LedgerUnavailable
from ads_pipeline.domain.transitions import PartitionState, Verdict
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.sql import database
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    key,
    keys,
    record_verdict,
    registered_runs,
    rejection,
    run,
    sealed_runs,
)
from ads_pipeline_tests.processes import run_script

PARTITIONS = keys(4)

# Records verdicts in one call, and kills itself at the n-th interruption point. There is one before and after each
# statement, and before and after the commit.
KILLED_PROCESS = """
import os, signal, sys
import sqlalchemy as sa
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.state.test_crashes import verdicts

points_left = int(sys.argv[2])
def interruption_point(*_):
    global points_left
    points_left -= 1
    if points_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

with Ledger.opened(sys.argv[1]) as ledger:
    engine = ledger.engine
    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        sa.event.listen(engine, name, interruption_point)
    ledger.verdicts.record(verdicts())
    print("acknowledged", flush=True)
    interruption_point()
"""


def verdicts() -> list[Verdict]:
    first, second, third, fourth = (run(partition, "r1") for partition in PARTITIONS)
    return [acceptance(first), rejection(second), acceptance(third), rejection(fourth)]


def states_and_attempts(reader: LedgerReader) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Return the states without their dates, and the attempt count of each partition."""
    states = reader.states.get_many(PARTITIONS)
    return [_without_date(state) for state in states.values()], [
        len(reader.runs.attempts(each)) for each in PARTITIONS
    ]


def _without_date(state: PartitionState) -> tuple[Any, ...]:
    return (state.key, state.status, state.current_run_id, state.error_message, state.attempt_count)


@pytest.mark.invariant("S21")
def test_crash_leaves_all_of_a_call_or_nothing(url: str) -> None:
    """After a kill at any point, states match attempts, and no acknowledged verdict is lost."""
    with Ledger.opened(url) as ledger:
        ledger.registrations.register(sealed_runs(*(verdict.run for verdict in verdicts())))
        before = states_and_attempts(ledger)
    kills = 0
    while True:
        killed, acknowledged = _record_and_kill(url, kills + 1)
        if not killed:
            break
        kills += 1
        with LedgerReader.opened(url) as reader:
            states, attempt_counts = states_and_attempts(reader)
        if (states, attempt_counts) == before:
            assert not acknowledged
            continue
        assert attempt_counts == [1, 1, 1, 1]
        assert [state[4] for state in states] == [1, 1, 1, 1]
    assert kills >= 6, "the call had too few interruption points"
    with Ledger.opened(url) as ledger:
        complete = states_and_attempts(ledger)
        assert all(recorded.redelivered for recorded in ledger.verdicts.record(verdicts()))
        assert states_and_attempts(ledger) == complete


def _record_and_kill(url: str, point: int) -> tuple[bool, bool]:
    child = run_script(KILLED_PROCESS, url, str(point))
    assert child.returncode in (0, -9), child.stderr
    return child.returncode == -9, "acknowledged" in child.stdout


def _lost_acknowledgement(dialect: sa.Dialect) -> Callable[[], Exception]:
    def postgres() -> Exception:
        return psycopg2.OperationalError("server closed the connection unexpectedly")

    def sqlite() -> Exception:
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        return error

    return sqlite if dialect.name == "sqlite" else postgres


def lose_one_commit(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make the engine's next commit succeed and report a failure. The returned list then holds "lost"."""
    commit, make_error, losses = engine.dialect.do_commit, _lost_acknowledgement(engine.dialect), list[str]()

    def commit_and_lose(connection: Any) -> None:
        commit(connection)
        if not losses:
            losses.append("lost")
            raise make_error()

    monkeypatch.setattr(engine.dialect, "do_commit", commit_and_lose)
    return losses


@pytest.mark.invariant("S8", "S21")
def test_lost_acknowledgement_counts_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the acknowledgement of a commit is lost, the transaction is retried and counts once."""
    (first,) = registered_runs(ledger, key(), "r1")
    losses = lose_one_commit(ledger.engine, monkeypatch)
    recorded = record_verdict(ledger, acceptance(first))
    assert losses == ["lost"]
    assert (recorded.redelivered, recorded.attempt_no) == (True, 1)
    assert ledger.states.get(key()).attempt_count == len(ledger.runs.attempts(key())) == 1


@pytest.mark.invariant("X4")
def test_busy_database_fails_after_a_bounded_time(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is transient, and nothing is recorded."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    with Ledger.opened(sqlite_url) as ledger:
        (first,) = registered_runs(ledger, key(), "r1")
        other = database.open_engine(sqlite_url)
        with other.begin(), pytest.raises(LedgerUnavailable, match="locked") as caught:
            record_verdict(ledger, acceptance(first))
        assert caught.value.is_transient
        assert ledger.states.get(key()).attempt_count == 0
        other.dispose()


def test_unreachable_database_error_hides_the_address() -> None:
    """The error is transient, and its message contains neither host nor credentials."""
    with (
        pytest.raises(LedgerUnavailable) as caught,
        Ledger.opened("postgresql+psycopg2://ada:hunter2@127.0.0.1:1/ads"),
    ):
        pytest.fail("connected to nothing")
    assert caught.value.is_transient
    assert not any(secret in str(caught.value) for secret in ("hunter2", "ada", "127.0.0.1"))


def test_refused_statement_is_not_retried(ledger: Ledger) -> None:
    """A statement that violates a constraint fails at once, and is not transient."""
    calls = []

    def work(connection: sa.Connection) -> None:
        calls.append(1)
        connection.exec_driver_sql("INSERT INTO partition_state (source) VALUES ('x')")

    with pytest.raises(LedgerRefused) as caught:
        database.transact(ledger.engine, work)
    assert (len(calls), caught.value.is_transient) == (1, False)
