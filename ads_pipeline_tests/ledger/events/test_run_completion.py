"""Tests run completion: each unjudged partition of the run gets exactly one attempt without a verdict."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.days.materialization_status import RAW, AttemptOutcome
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.run_snapshots import RunStatus, StepStatus
from ads_pipeline.ledger.events.completed_runs import COMMAND_KILLED, COMMAND_SILENCE, RunCompletionLog
from ads_pipeline.ledger.events.event_log import EventLog, new_origin
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.write_steps.leases import Lease
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    key,
    keys,
    open_part,
    record_verdict,
    registered_runs,
    rejection,
    run,
    sealed_runs,
    set_on_exit,
)
from ads_pipeline_tests.ledger.status.finished_attempts import (
    last_attempt,
    materialization,
    read_attempts,
    read_status,
    read_statuses,
)
from ads_pipeline_tests.polling import wait_for

ORIGIN = EventOrigin(engine_run_id="engine-1", plan_version="p1")
T = TypeVar("T")
FINAL_STATUSES = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


def with_origin(ledger: Ledger, origin: EventOrigin = ORIGIN) -> Ledger:
    """Return the same ledger with the origin of a Dagster run."""
    return Ledger(ledger.engine, origin=origin)


def read_events(
    log: RunCompletionLog, engine_run_id: str = ORIGIN.engine_run_id
) -> list[tuple[str, str | None, Any]]:
    return [(each.event.event_type, each.event.step_id, each.event.event_data) for each in log.fetch(engine_run_id)]


def count_steps(log: RunCompletionLog, engine_run_id: str = ORIGIN.engine_run_id) -> dict[StepStatus, int]:
    return dict(log.project_snapshot(engine_run_id).steps)


def attempts_at(ledger: Ledger, partition: PartitionKey) -> list[tuple[str, AttemptOutcome]]:
    return [(each.run_id, each.outcome) for each in read_attempts(ledger.engine)[RAW, partition]]


@pytest.mark.invariant("P2", "P12")
@pytest.mark.parametrize(
    ("status", "step_event", "outcome", "run_event"),
    [
        (RunStatus.COMPLETED, "StepFailed", AttemptOutcome.FAILED, "RunCompleted"),
        (RunStatus.FAILED, "StepFailed", AttemptOutcome.FAILED, "RunFailed"),
        (RunStatus.CANCELLED, "StepCancelled", AttemptOutcome.CANCELLED, "RunCancelled"),
    ],
)
def test_sealed_and_unjudged_partition_gets_an_attempt(
    ledger: Ledger, status: RunStatus, step_event: str, outcome: AttemptOutcome, run_event: str
) -> None:
    """Each unjudged partition gets one event with the reason and one attempt for its newest unjudged run."""
    unjudged, judged = key(day=1), key(day=2)
    registered_runs(with_origin(ledger), unjudged, "r1", "r2")
    accepted_runs(with_origin(ledger), [judged])
    log = RunCompletionLog(ledger.engine)
    assert log.complete_run(ORIGIN, status, reason="the machine is gone") == [unjudged]
    assert read_events(log)[-2:] == [
        (step_event, str(unjudged), {"why": "the machine is gone"}),
        (run_event, None, {"why": "the machine is gone"}),
    ]
    assert attempts_at(ledger, unjudged) == [("r2", outcome)]
    assert attempts_at(ledger, judged) == [("r1", AttemptOutcome.SUCCEEDED)]
    row = read_status(ledger, unjudged)
    assert (last_attempt(row), materialization(row)) == (("r2", outcome), (None, None))
    snapshot = log.project_snapshot(ORIGIN.engine_run_id)
    assert (snapshot.status, snapshot.inconsistencies) == (status, 0)


@pytest.mark.invariant("P12")
def test_partition_that_awaits_no_verdict_gets_no_attempt(ledger: Ledger) -> None:
    """A step without a sealed run, or with a run that another process judged, is skipped. No status row changes."""
    log = RunCompletionLog(ledger.engine)
    unsealed, judged = key(day=1), key(day=2)
    log.append(ORIGIN.make_event("RunStarted", at=_now(log)))
    log.append(ORIGIN.make_event("StepStarted", at=_now(log), step_id=str(unsealed)))
    log.append(ORIGIN.make_event("StepStarted", at=_now(log), step_id="dbt:model"))
    (r1,) = registered_runs(with_origin(ledger), judged, "r1")
    record_verdict(ledger, acceptance(r1))
    before = read_statuses(StatusTable(ledger.engine))
    assert log.complete_run(ORIGIN, RunStatus.FAILED) == []
    event_types = {step: event_type for event_type, step, _ in read_events(log)}
    assert (event_types[str(unsealed)], event_types[str(judged)]) == ("StepSkipped", "StepSkipped")
    assert event_types["dbt:model"] == "StepStarted", "a step of another engine got an event"
    assert read_statuses(StatusTable(ledger.engine)) == before
    assert ledger.statuses.get_many(RAW, [unsealed]) == {unsealed: None}


def test_run_without_events_can_be_completed(ledger: Ledger) -> None:
    """A run that crashed before its first event gets only its last event."""
    log = RunCompletionLog(ledger.engine)
    assert log.complete_run(ORIGIN, RunStatus.CANCELLED) == []
    assert read_events(log) == [("RunCancelled", None, None)]


@pytest.mark.invariant("P12", "E12")
def test_completing_an_ended_run_does_nothing(ledger: Ledger) -> None:
    """A second completion with any status adds no event and no attempt, also for partitions registered since."""
    registered_runs(with_origin(ledger), key(), "r1")
    log = RunCompletionLog(ledger.engine)
    assert log.complete_run(ORIGIN, RunStatus.FAILED) == [key()]
    registered_runs(with_origin(ledger), key(day=2), "r1")
    before, rows = read_events(log), read_statuses(StatusTable(ledger.engine))
    for status in FINAL_STATUSES:
        assert log.complete_run(ORIGIN, status) == []
    assert read_events(log) == before
    assert read_statuses(StatusTable(ledger.engine)) == rows


@pytest.mark.invariant("P12")
def test_concurrent_completions_count_once(url: str) -> None:
    """Of threads that complete a run at once with different statuses, only one writes events and attempts."""
    partitions = keys(5)
    with Ledger.opened(url) as ledger:
        for turn in range(6):
            origin = EventOrigin(engine_run_id=f"engine-{turn}", plan_version="p1")
            with_origin(ledger, origin).registrations.register(
                sealed_runs(*(run(each, f"r{turn}") for each in partitions))
            )
            results = _complete_concurrently(url, origin)
            assert sorted(map(len, results)) == [0] * 5 + [5]
            event_types = [
                event_type for event_type, _, _ in read_events(RunCompletionLog(ledger.engine), origin.engine_run_id)
            ]
            assert len(event_types) == 5 + 5 + 1
            assert event_types[-1].startswith("Run")
        assert {len(attempts_at(ledger, each)) for each in partitions} == {6}


def _complete_concurrently(url: str, origin: EventOrigin) -> list[list[PartitionKey]]:
    barrier = threading.Barrier(6)

    def complete(number: int) -> list[PartitionKey]:
        with open_part(RunCompletionLog, url) as log:
            barrier.wait(300)
            return log.complete_run(origin, FINAL_STATUSES[number % 3])

    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(complete, range(6)))


@pytest.mark.invariant("P12")
@pytest.mark.parametrize(
    ("first", "event_types", "outcome"),
    [
        ("completion", ["StepFailed", "RunFailed"], AttemptOutcome.FAILED),
        ("own verdict", ["VerdictAccepted", "RunCancelled"], AttemptOutcome.SUCCEEDED),
        ("another's verdict", ["StepSkipped", "RunCancelled"], AttemptOutcome.SUCCEEDED),
    ],
)
def test_completion_reads_again_after_waiting_for_the_lock(
    postgres_url: str, first: str, event_types: list[str], outcome: AttemptOutcome
) -> None:
    """A completion that waited for another completion, or for a verdict, finds no unjudged partition."""
    with Ledger.opened(postgres_url) as ledger, database.open_checked_engine(postgres_url) as slow:
        (r1,) = registered_runs(with_origin(ledger), key(), "r1")
        actions: dict[str, Callable[[], object]] = {
            "completion": lambda: RunCompletionLog(slow).complete_run(ORIGIN, RunStatus.FAILED),
            "own verdict": lambda: record_verdict(Ledger(slow, origin=ORIGIN), acceptance(r1)),
            "another's verdict": lambda: record_verdict(Ledger(slow), acceptance(r1)),
        }
        log = RunCompletionLog(ledger.engine)
        assert (
            _run_during_commit(
                postgres_url, slow, actions[first], lambda: log.complete_run(ORIGIN, RunStatus.CANCELLED)
            )
            == []
        )
        assert [event_type for event_type, _, _ in read_events(log)] == ["RawSealed", *event_types]
        assert attempts_at(ledger, key()) == [("r1", outcome)]


@pytest.mark.invariant("P12", "E12")
def test_run_without_partitions_is_completed_once(postgres_url: str) -> None:
    """Of several completions that waited for one append, only the first adds an event."""
    with database.open_checked_engine(postgres_url) as engine, database.open_checked_engine(postgres_url) as slow:
        log = RunCompletionLog(engine)
        log.append(ORIGIN.make_event("RunStarted", at=_now(log)))

        def complete_concurrently() -> None:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda number: log.complete_run(ORIGIN, FINAL_STATUSES[number % 3]), range(4)))

        step = ORIGIN.make_event("StepStarted", at=_now(log), step_id="dbt:model")
        _run_during_commit(postgres_url, slow, lambda: EventLog(slow).append(step), complete_concurrently, waiters=4)
        event_types = [event_type for event_type, _, _ in read_events(log)]
        assert event_types[:2] == ["RunStarted", "StepStarted"]
        assert len(event_types) == 3


def _run_during_commit(
    url: str, slow: sa.Engine, first: Callable[[], object], second: Callable[[], T], *, waiters: int = 1
) -> T:
    """Return the result of `second`, which has to wait for the commit of `first`."""
    release, held = threading.Event(), threading.Event()

    def pause(_connection: sa.Connection) -> None:
        held.set()
        release.wait(300)

    sa.event.listen(slow, "commit", pause)
    with ThreadPoolExecutor(2) as pool, set_on_exit(release):
        holding = pool.submit(first)
        assert held.wait(300)
        waiting = pool.submit(second)
        _wait_for_locks(url, waiters)
        release.set()
        holding.result()
        return waiting.result()


@pytest.mark.invariant("P2", "P10", "P12")
def test_verdict_racing_a_completion_is_consistent(url: str) -> None:
    """In either order, steps, attempts and status rows agree, and the verdict stands."""
    partitions = keys(16)
    barrier = threading.Barrier(2)
    with Ledger.opened(url) as ledger, database.open_checked_engine(url) as other:
        log = RunCompletionLog(other)

        def complete(origin: EventOrigin) -> list[PartitionKey]:
            barrier.wait(300)
            return log.complete_run(origin, RunStatus.FAILED)

        for number, partition in enumerate(partitions):
            origin = EventOrigin(engine_run_id=f"engine-{number}", plan_version="p1")
            (r1,) = registered_runs(with_origin(ledger, origin), partition, "r1")
            with ThreadPoolExecutor(1) as pool:
                completion = pool.submit(complete, origin)
                barrier.wait(300)
                verdict = rejection(r1) if number % 4 == 3 else acceptance(r1)
                record_verdict(with_origin(ledger, origin), verdict)
            judged = AttemptOutcome.FAILED if number % 4 == 3 else AttemptOutcome.SUCCEEDED
            left = [("r1", AttemptOutcome.FAILED)] if completion.result() else []
            assert sorted(attempts_at(ledger, partition)) == sorted([*left, ("r1", judged)])
            assert last_attempt(read_status(ledger, partition)) == ("r1", judged)
            assert ledger.states.get(partition).attempt_count == 1
            expected = StepStatus.FAILED if left or number % 4 == 3 else StepStatus.SUCCEEDED
            assert count_steps(log, origin.engine_run_id) == {expected: 1}
        live = read_statuses(StatusTable(ledger.engine))
        StatusTable(ledger.engine).rebuild()
        assert read_statuses(StatusTable(ledger.engine)) == live


def test_completions_of_overlapping_runs_do_not_deadlock(url: str) -> None:
    """Runs that started the same partitions in different orders are completed at once, without a retry."""
    partitions = keys(20)
    with Ledger.opened(url) as ledger, database.open_checked_engine(url) as engine:
        origins = [EventOrigin(engine_run_id=f"engine-{number}", plan_version="p1") for number in range(4)]
        for number, origin in enumerate(origins):
            shuffled = random.Random(number).sample(partitions, len(partitions))
            with_origin(ledger, origin).registrations.register(
                sealed_runs(*(run(each, f"r{number}") for each in shuffled))
            )
        errors: list[int] = []
        sa.event.listen(engine, "handle_error", lambda _context: errors.append(1))
        log = RunCompletionLog(engine)
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda origin: log.complete_run(origin, RunStatus.FAILED), origins))
        assert [len(result) for result in results] == [20] * 4
        assert errors == []
        assert {len(attempts_at(ledger, each)) for each in partitions} == {4}


@pytest.mark.invariant("S12")
def test_run_completion_log_cannot_write_states(ledger: Ledger) -> None:
    """The class adds only run completion to the event log, and a completion writes no state."""
    assert {name for name in dir(RunCompletionLog) if not name.startswith("_")} - {
        name for name in dir(EventLog) if not name.startswith("_")
    } == {"close_silent_commands", "complete_run", "list_expired_runs", "list_open_runs"}
    registered_runs(with_origin(ledger), key(), "r1")
    before = ledger.states.get(key())
    statements: list[str] = []

    def record_statement(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(" ".join(statement.split()))

    sa.event.listen(ledger.engine, "before_cursor_execute", record_statement)
    log = RunCompletionLog(ledger.engine)
    log.complete_run(ORIGIN, RunStatus.FAILED)
    log.close_silent_commands()
    assert ledger.states.get(key()) == before
    verbs = ("INSERT INTO partition_state ", "UPDATE partition_state ", "DELETE FROM partition_state ")
    assert [text for text in statements if any(verb in text for verb in verbs)] == []
    assert any("finished_attempts" in text for text in statements)


def _now(log: RunCompletionLog) -> Any:
    return database.transact(log.engine, log.now)


def _wait_for_locks(url: str, waiters: int) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    engine = database.open_engine(url)
    wait_for(lambda: database.transact(engine, lambda c: c.exec_driver_sql(waiting).scalar_one()) >= waiters)
    engine.dispose()


@pytest.mark.invariant("L6")
def test_run_of_a_killed_command_is_closed_after_two_hours(url: str, clock: FakeClock) -> None:
    """It has no last event, and can be retired then. Runs of other engines, and with a lease, stay open."""
    with open_part(RunCompletionLog, url, clock=clock) as log:
        killed, other, leased = new_origin(), ORIGIN, new_origin()
        for origin in (killed, other, leased):
            log.append(origin.make_event("RunStarted", at=clock.now))
        Lease(log.engine, leased.engine_run_id, duration=timedelta(minutes=2), clock=clock).open()
        Follower(log).catch_up()
        clock.now += COMMAND_SILENCE - timedelta(seconds=1)
        assert log.close_silent_commands() == []
        clock.now += timedelta(seconds=2)
        assert log.close_silent_commands() == [killed.engine_run_id]
        Follower(log).catch_up()
        assert log.get_current_snapshot(killed.engine_run_id).status is RunStatus.FAILED
        assert read_events(log, killed.engine_run_id)[-1] == ("RunFailed", None, {"why": COMMAND_KILLED})
        assert log.list_open_runs() == sorted([other.engine_run_id, leased.engine_run_id])
        assert log.close_silent_commands() == []
        clock.now += timedelta(days=1)
        assert log.retire_before(clock.now) == [killed.engine_run_id]


@pytest.mark.invariant("L6")
def test_command_that_emits_events_stays_open(url: str, clock: FakeClock) -> None:
    """A long `reconcile` emits an event for each load."""
    with open_part(RunCompletionLog, url, clock=clock) as log:
        working = new_origin()
        log.append(working.make_event("RunStarted", at=clock.now))
        for number in range(4):
            clock.now += COMMAND_SILENCE - timedelta(minutes=1)
            log.append(working.make_event("StepStarted", at=clock.now, step_id=f"load-{number}"))
            Follower(log).catch_up()
            assert log.close_silent_commands() == []
