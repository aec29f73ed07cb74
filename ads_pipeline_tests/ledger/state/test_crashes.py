"""The process dies, or the answer is lost, at every step of recording: all of a call is there, or none of it."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psycopg2
import pytest
import sqlalchemy as sa

from ads_pipeline.domain.transitions import PartitionState, Verdict
from ads_pipeline.errors import LedgerRefused, LedgerUnavailable
from ads_pipeline.ledger import database
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline_tests.ledger.builders import acceptance, key, keys, registered_runs, rejection, run, sealed_runs

PARTITIONS = keys(4)

# Records a call of verdicts, and kills itself at the n-th moment: before and after each statement, and before and
# after the commit.
DYING = """
import os, signal, sys
import sqlalchemy as sa
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.state.test_crashes import verdicts

moments = int(sys.argv[2])
def moment(*_):
    global moments
    moments -= 1
    if moments == 0:
        os.kill(os.getpid(), signal.SIGKILL)

with Ledger.opened(sys.argv[1]) as ledger:
    engine = ledger._engine
    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        sa.event.listen(engine, name, moment)
    ledger.record_verdicts(verdicts())
    print("acknowledged", flush=True)
    moment()
"""


def verdicts() -> list[Verdict]:
    first, second, third, fourth = (run(partition, "r1") for partition in PARTITIONS)
    return [acceptance(first), rejection(second), acceptance(third), rejection(fourth)]


def story(reader: LedgerReader) -> tuple[list[tuple[Any, ...]], list[int]]:
    """States without their dates, and the number of attempts of each partition."""
    states = reader.states(PARTITIONS)
    return [_undated(state) for state in states.values()], [len(reader.attempts(each)) for each in PARTITIONS]


def _undated(state: PartitionState) -> tuple[Any, ...]:
    return (state.key, state.status, state.current_run_id, state.error_message, state.attempt_count)


@pytest.mark.invariant("S21")
def test_a_crash_leaves_all_of_a_call_or_none(url: str) -> None:
    """Killed at any moment, attempts and states agree; what was acknowledged is there; a second try completes it."""
    with Ledger.opened(url) as ledger:
        ledger.register(sealed_runs(*(verdict.run for verdict in verdicts())))
        untouched = story(ledger)
    deaths = 0
    while True:
        died, acknowledged = _die_at(url, deaths + 1)
        if not died:
            break
        deaths += 1
        with LedgerReader.opened(url) as reader:
            found = story(reader)
        if found == untouched:
            assert not acknowledged
            continue
        assert found[1] == [1, 1, 1, 1]
        assert [state[4] for state in found[0]] == [1, 1, 1, 1]
    assert deaths >= 6, "the call was hardly interrupted"
    with Ledger.opened(url) as ledger:
        settled = story(ledger)
        assert all(recorded.redelivered for recorded in ledger.record_verdicts(verdicts()))
        assert story(ledger) == settled


def _die_at(url: str, moment: int) -> tuple[bool, bool]:
    child = subprocess.run(
        [sys.executable, "-c", DYING, url, str(moment)], capture_output=True, text=True, check=False, timeout=60
    )
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
    """The engine's next commit takes place and reports a failure; "lost" is in the list once it has."""
    commit, lose, losses = engine.dialect.do_commit, _lost_acknowledgement(engine.dialect), list[str]()

    def commit_and_lose(connection: Any) -> None:
        commit(connection)
        if not losses:
            losses.append("lost")
            raise lose()

    monkeypatch.setattr(engine.dialect, "do_commit", commit_and_lose)
    return losses


@pytest.mark.invariant("S8", "S21")
def test_a_lost_acknowledgement_counts_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit took place but its answer was lost: the call is sent again by itself, and counts once."""
    (first,) = registered_runs(ledger, key(), "r1")
    losses = lose_one_commit(ledger._engine, monkeypatch)
    recorded = ledger.record_verdict(acceptance(first))
    assert losses == ["lost"]
    assert (recorded.redelivered, recorded.attempt_no) == (True, 1)
    assert ledger.state(key()).attempt_count == len(ledger.attempts(key())) == 1


@pytest.mark.invariant("X4")
def test_a_busy_database_is_given_up_on_after_a_bounded_time(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the lock never comes, the error says that waiting may cure it, and nothing was recorded."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    with Ledger.opened(sqlite_url) as ledger:
        (first,) = registered_runs(ledger, key(), "r1")
        other = database.open_engine(sqlite_url)
        with other.begin(), pytest.raises(LedgerUnavailable, match="locked") as caught:
            ledger.record_verdict(acceptance(first))
        assert caught.value.is_transient
        assert ledger.state(key()).attempt_count == 0
        other.dispose()


def test_an_unreachable_database_is_named_without_its_address() -> None:
    """A refused connection is an outage that waiting may cure, and its message tells neither host nor password."""
    with (
        pytest.raises(LedgerUnavailable) as caught,
        Ledger.opened("postgresql+psycopg2://ada:hunter2@127.0.0.1:1/ads"),
    ):
        pytest.fail("connected to nothing")
    assert caught.value.is_transient
    assert not any(secret in str(caught.value) for secret in ("hunter2", "ada", "127.0.0.1"))


def test_a_refused_statement_is_not_tried_again(ledger: Ledger) -> None:
    """What the database's rules refuse is refused at once, as a defect."""
    tries = []

    def work(connection: sa.Connection) -> None:
        tries.append(1)
        connection.exec_driver_sql("INSERT INTO partition_state (source) VALUES ('x')")

    with pytest.raises(LedgerRefused) as caught:
        database.transact(ledger._engine, work)
    assert (len(tries), caught.value.is_transient) == (1, False)
