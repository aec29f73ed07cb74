"""The end of a run: what it left without a verdict counts once as an attempt, and nothing else does."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.freshness import RAW, AttemptOutcome
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.run_snapshots import RunStatus, StepStatus
from ads_pipeline.ledger import database
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.run_completion import RunCompletionLog
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    accepted_runs,
    key,
    keys,
    registered_runs,
    rejection,
    run,
    sealed_runs,
    set_on_exit,
)
from ads_pipeline_tests.ledger.status.finishes import all_finishes, listed, made, status, tried

ORIGIN = EventOrigin(run_id="engine-1", plan_version="p1")
T = TypeVar("T")
ENDINGS = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


def telling(url_ledger: Ledger, origin: EventOrigin = ORIGIN) -> Ledger:
    """The same ledger, written by an engine's run."""
    return Ledger(url_ledger._engine, origin=origin)


def events_of(log: RunCompletionLog, run_id: str = ORIGIN.run_id) -> list[tuple[str, str | None, Any]]:
    return [(each.event.event_type, each.event.step_id, each.event.event_data) for each in log.fetch(run_id)]


def steps_of(log: RunCompletionLog, run_id: str = ORIGIN.run_id) -> dict[StepStatus, int]:
    return dict(log.project_snapshot(run_id).steps)


def finishes_of(ledger: Ledger, partition: PartitionKey) -> list[tuple[str, AttemptOutcome]]:
    return [(each.run_id, each.outcome) for each in all_finishes(ledger._engine)[RAW, partition]]


@pytest.mark.invariant("P2", "P12")
@pytest.mark.parametrize(
    ("ended", "told", "outcome", "last"),
    [
        (RunStatus.COMPLETED, "StepFailed", AttemptOutcome.FAILED, "RunCompleted"),
        (RunStatus.FAILED, "StepFailed", AttemptOutcome.FAILED, "RunFailed"),
        (RunStatus.CANCELLED, "StepCancelled", AttemptOutcome.CANCELLED, "RunCancelled"),
    ],
)
def test_what_was_sealed_and_not_judged_is_an_attempt(
    ledger: Ledger, ended: RunStatus, told: str, outcome: AttemptOutcome, last: str
) -> None:
    """Each such partition is told of, with the reason, and finished once under its newest run without a verdict."""
    unjudged, judged = key(day=1), key(day=2)
    registered_runs(telling(ledger), unjudged, "r1", "r2")
    accepted_runs(telling(ledger), [judged])
    log = RunCompletionLog(ledger._engine)
    assert log.complete_run(ORIGIN, ended, reason="the machine is gone") == [unjudged]
    assert events_of(log)[-2:] == [
        (told, str(unjudged), {"why": "the machine is gone"}),
        (last, None, {"why": "the machine is gone"}),
    ]
    assert finishes_of(ledger, unjudged) == [("r2", outcome)]
    assert finishes_of(ledger, judged) == [("r1", AttemptOutcome.SUCCEEDED)]
    row = status(ledger, unjudged)
    assert (tried(row), made(row)) == (("r2", outcome), (None, None))
    snapshot = log.project_snapshot(ORIGIN.run_id)
    assert (snapshot.status, snapshot.inconsistencies) == (ended, 0)


@pytest.mark.invariant("P12")
def test_what_awaits_no_verdict_is_no_attempt(ledger: Ledger) -> None:
    """A step that sealed nothing, or whose run somebody else judged, is skipped, and no row changes."""
    log = RunCompletionLog(ledger._engine)
    unsealed, elsewhere = key(day=1), key(day=2)
    log.append(ORIGIN.make_event("RunStarted", at=_now(log)))
    log.append(ORIGIN.make_event("StepStarted", at=_now(log), step_id=str(unsealed)))
    log.append(ORIGIN.make_event("StepStarted", at=_now(log), step_id="dbt:model"))
    (r1,) = registered_runs(telling(ledger), elsewhere, "r1")
    ledger.record_verdict(acceptance(r1))
    before = listed(StatusTable(ledger._engine))
    assert log.complete_run(ORIGIN, RunStatus.FAILED) == []
    told = {step: kind for kind, step, _ in events_of(log)}
    assert (told[str(unsealed)], told[str(elsewhere)]) == ("StepSkipped", "StepSkipped")
    assert told["dbt:model"] == "StepStarted", "the step of somebody else was told of"
    assert listed(StatusTable(ledger._engine)) == before
    assert ledger.partition_statuses(RAW, [unsealed]) == {unsealed: None}


def test_a_run_of_which_nothing_was_told_ends_too(ledger: Ledger) -> None:
    """A run that died before it told of anything is told as ended, which is all there is to tell."""
    log = RunCompletionLog(ledger._engine)
    assert log.complete_run(ORIGIN, RunStatus.CANCELLED) == []
    assert events_of(log) == [("RunCancelled", None, None)]


@pytest.mark.invariant("P12", "E12")
def test_a_run_that_has_ended_is_left_alone(ledger: Ledger) -> None:
    """Ended again in whatever way, nothing is told and nothing counts, also of what was begun afterwards."""
    registered_runs(telling(ledger), key(), "r1")
    log = RunCompletionLog(ledger._engine)
    assert log.complete_run(ORIGIN, RunStatus.FAILED) == [key()]
    registered_runs(telling(ledger), key(day=2), "r1")
    before, rows = events_of(log), listed(StatusTable(ledger._engine))
    for ended in ENDINGS:
        assert log.complete_run(ORIGIN, ended) == []
    assert events_of(log) == before
    assert listed(StatusTable(ledger._engine)) == rows


@pytest.mark.invariant("P12")
def test_many_who_end_a_run_count_once(url: str) -> None:
    """Of threads that end a run at once in different ways one is heard: by events, finishes and its answer."""
    partitions = keys(5)
    with Ledger.opened(url) as ledger:
        for turn in range(6):
            origin = EventOrigin(run_id=f"engine-{turn}", plan_version="p1")
            telling(ledger, origin).register(sealed_runs(*(run(each, f"r{turn}") for each in partitions)))
            answers = _all_at_once(url, origin)
            assert sorted(map(len, answers)) == [0] * 5 + [5]
            told = [kind for kind, _, _ in events_of(RunCompletionLog(ledger._engine), origin.run_id)]
            assert len(told) == 5 + 5 + 1
            assert told[-1].startswith("Run")
        assert {len(finishes_of(ledger, each)) for each in partitions} == {6}


def _all_at_once(url: str, origin: EventOrigin) -> list[list[PartitionKey]]:
    together = threading.Barrier(6)

    def end(number: int) -> list[PartitionKey]:
        with RunCompletionLog.opened(url) as log:
            together.wait(30)
            return log.complete_run(origin, ENDINGS[number % 3])

    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(end, range(6)))


@pytest.mark.invariant("P12")
@pytest.mark.parametrize(
    ("first", "told", "outcome"),
    [
        ("end", ["StepFailed", "RunFailed"], AttemptOutcome.FAILED),
        ("own verdict", ["VerdictAccepted", "RunCancelled"], AttemptOutcome.SUCCEEDED),
        ("another's verdict", ["StepSkipped", "RunCancelled"], AttemptOutcome.SUCCEEDED),
    ],
)
def test_who_waited_for_the_lock_sees_what_it_waited_for(
    postgres_url: str, first: str, told: list[str], outcome: AttemptOutcome
) -> None:
    """An end that had to wait for another end, or for a verdict whoever told of it, finds nothing left to end."""
    with Ledger.opened(postgres_url) as ledger, database.opened(postgres_url) as slow:
        (r1,) = registered_runs(telling(ledger), key(), "r1")
        acts: dict[str, Callable[[], object]] = {
            "end": lambda: RunCompletionLog(slow).complete_run(ORIGIN, RunStatus.FAILED),
            "own verdict": lambda: Ledger(slow, origin=ORIGIN).record_verdict(acceptance(r1)),
            "another's verdict": lambda: Ledger(slow).record_verdict(acceptance(r1)),
        }
        log = RunCompletionLog(ledger._engine)
        assert _while_held(postgres_url, slow, acts[first], lambda: log.complete_run(ORIGIN, RunStatus.CANCELLED)) == []
        assert [kind for kind, _, _ in events_of(log)] == ["RawSealed", *told]
        assert finishes_of(ledger, key()) == [("r1", outcome)]


@pytest.mark.invariant("P12", "E12")
def test_a_run_without_partitions_ends_once(postgres_url: str) -> None:
    """Of several ends that waited for one event of a run with nothing to end, only the first tells of any."""
    with database.opened(postgres_url) as engine, database.opened(postgres_url) as slow:
        log = RunCompletionLog(engine)
        log.append(ORIGIN.make_event("RunStarted", at=_now(log)))

        def end_in_many_ways() -> None:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda number: log.complete_run(ORIGIN, ENDINGS[number % 3]), range(4)))

        step = ORIGIN.make_event("StepStarted", at=_now(log), step_id="dbt:model")
        _while_held(postgres_url, slow, lambda: EventLog(slow).append(step), end_in_many_ways, waiters=4)
        told = [kind for kind, _, _ in events_of(log)]
        assert told[:2] == ["RunStarted", "StepStarted"]
        assert len(told) == 3


def _while_held(
    url: str, slow: sa.Engine, first: Callable[[], object], second: Callable[[], T], *, waiters: int = 1
) -> T:
    """What the second says, which has to wait for the first to commit."""
    hold, held = threading.Event(), threading.Event()

    def pause(_connection: sa.Connection) -> None:
        held.set()
        hold.wait(20)

    sa.event.listen(slow, "commit", pause)
    with ThreadPoolExecutor(2) as pool, set_on_exit(hold):
        holding = pool.submit(first)
        assert held.wait(20)
        waiting = pool.submit(second)
        _wait_for_locks(url, waiters)
        hold.set()
        holding.result()
        return waiting.result()


@pytest.mark.invariant("P2", "P10", "P12")
def test_a_verdict_that_races_the_end_leaves_one_story(url: str) -> None:
    """Whichever is first, step, finishes and row tell the same, and the verdict stands."""
    partitions = keys(16)
    together = threading.Barrier(2)
    with Ledger.opened(url) as ledger, database.opened(url) as other:
        log = RunCompletionLog(other)

        def end(origin: EventOrigin) -> list[PartitionKey]:
            together.wait(30)
            return log.complete_run(origin, RunStatus.FAILED)

        for number, partition in enumerate(partitions):
            origin = EventOrigin(run_id=f"engine-{number}", plan_version="p1")
            (r1,) = registered_runs(telling(ledger, origin), partition, "r1")
            with ThreadPoolExecutor(1) as pool:
                ending = pool.submit(end, origin)
                together.wait(30)
                verdict = rejection(r1) if number % 4 == 3 else acceptance(r1)
                telling(ledger, origin).record_verdict(verdict)
            judged = AttemptOutcome.FAILED if number % 4 == 3 else AttemptOutcome.SUCCEEDED
            left = [("r1", AttemptOutcome.FAILED)] if ending.result() else []
            assert sorted(finishes_of(ledger, partition)) == sorted([*left, ("r1", judged)])
            assert tried(status(ledger, partition)) == ("r1", judged)
            assert ledger.state(partition).attempt_count == 1
            expected = StepStatus.FAILED if left or number % 4 == 3 else StepStatus.SUCCEEDED
            assert steps_of(log, origin.run_id) == {expected: 1}
        live = listed(StatusTable(ledger._engine))
        StatusTable(ledger._engine).rebuild()
        assert listed(StatusTable(ledger._engine)) == live


def test_ends_of_overlapping_runs_do_not_deadlock(url: str) -> None:
    """Runs that began the same partitions in different orders end at once, each at the first try."""
    partitions = keys(20)
    with Ledger.opened(url) as ledger, database.opened(url) as engine:
        origins = [EventOrigin(run_id=f"engine-{number}", plan_version="p1") for number in range(4)]
        for number, origin in enumerate(origins):
            shuffled = random.Random(number).sample(partitions, len(partitions))
            telling(ledger, origin).register(sealed_runs(*(run(each, f"r{number}") for each in shuffled)))
        lost: list[int] = []
        sa.event.listen(engine, "handle_error", lambda _context: lost.append(1))
        log = RunCompletionLog(engine)
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda origin: log.complete_run(origin, RunStatus.FAILED), origins))
        assert [len(answer) for answer in answers] == [20] * 4
        assert lost == []
        assert {len(finishes_of(ledger, each)) for each in partitions} == {4}


@pytest.mark.invariant("S12")
def test_who_ends_runs_cannot_write_states(ledger: Ledger) -> None:
    """Beside what the event log can do there is only the end of a run, and that writes no state."""
    assert {name for name in dir(RunCompletionLog) if not name.startswith("_")} - {
        name for name in dir(EventLog) if not name.startswith("_")
    } == {"end", "overdue", "unended", "watching"}
    registered_runs(telling(ledger), key(), "r1")
    before = ledger.state(key())
    written: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        written.append(" ".join(statement.split()))

    sa.event.listen(ledger._engine, "before_cursor_execute", note)
    RunCompletionLog(ledger._engine).complete_run(ORIGIN, RunStatus.FAILED)
    assert ledger.state(key()) == before
    verbs = ("INSERT INTO partition_state ", "UPDATE partition_state ", "DELETE FROM partition_state ")
    assert [text for text in written if any(verb in text for verb in verbs)] == []
    assert any("finished_attempts" in text for text in written)


def _now(log: RunCompletionLog) -> Any:
    return database.transact(log.engine, log.now)


def _wait_for_locks(url: str, waiters: int) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    engine = database.open_engine(url)
    until = time.monotonic() + 20
    while database.transact(engine, lambda connection: connection.exec_driver_sql(waiting).scalar_one()) < waiters:
        assert time.monotonic() < until, "nobody ever waited for the lock"
        time.sleep(0.02)
    engine.dispose()
