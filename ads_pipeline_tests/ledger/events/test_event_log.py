"""What the log of run events keeps on both databases beyond the store's contract: its rules, its locks, its end."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.run_events import LEDGER_TYPES, AppendResult, Event
from ads_pipeline.domain.run_snapshots import RunSnapshot, RunStatus, StepStatus
from ads_pipeline.errors import BadEvent, EventsNotFound, RunClosed, RunOpen
from ads_pipeline.ledger import database
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.tables import run_events
from ads_pipeline.ledger.values import Publication
from ads_pipeline_tests.ledger.builders import FakeClock, accepted_runs, key, run
from ads_pipeline_tests.ledger.events.builders import stored_steps
from ads_pipeline_tests.ledger.state.test_concurrency import count_tries, wait_for_a_lock
from ads_pipeline_tests.ledger.state.test_crashes import lose_one_commit
from ads_pipeline_tests.ledger.test_database_constraints import everything, refused
from ads_pipeline_tests.run_event_stores.builders import EMITTED_AT, Happening, completions, history, told

THREADS = 8
RUNS = 500
TWICE: list[Happening] = [("StepStarted", "s1"), ("StepStarted", "s2"), ("StepCompleted", "s1")]
COLUMNS = ", ".join(column.name for column in run_events.c)


def ended(log: EventLog, run_id: str = "over", *, steps: int = 3) -> RunSnapshot:
    """A run that has ended, as it is projected."""
    log.append_many([told(run_id, "RunStarted"), *completions(run_id, steps), told(run_id, "RunCompleted")])
    Follower(log).catch_up()
    snapshot = log.get_snapshot(run_id)
    assert snapshot is not None
    return snapshot


# What plain SQL is refused.


@pytest.mark.invariant("E1")
@pytest.mark.parametrize(
    ("column", "other"), [("idempotency_key", f"'{'0' * 64}'"), ("run_seq", "run_seq + 10")], ids=["place", "key"]
)
def test_no_place_and_no_key_is_given_twice(log: EventLog, backdoor: sa.Engine, column: str, other: str) -> None:
    """A second row for a run's place, or for its key, is refused; a row that differs in both is not."""
    log.append_many(completions("r", 2))
    changed = COLUMNS.replace(column, other)
    copied = f"INSERT INTO run_events ({COLUMNS}) SELECT {{}} FROM run_events WHERE run_seq = 1"
    refused(backdoor, copied.format(changed))
    both = changed.replace("idempotency_key", f"'{'0' * 64}'").replace("run_seq,", "run_seq + 10,")
    database.transact(backdoor, lambda connection: connection.exec_driver_sql(copied.format(both)))


@pytest.mark.invariant("E6")
@pytest.mark.parametrize("table", ["run_events", "finished_attempts", "run_head"])
def test_what_was_told_is_append_only(url: str, backdoor: sa.Engine, table: str) -> None:
    """Events and finishes are neither changed nor removed, and heads never removed, by whatever connection."""
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, [key()])
        ledger.publish([Publication(run=run(key(), "r1"), table_version=0)])
    assert everything(backdoor)[table]
    column = "last_seq = last_seq - 1" if table == "run_head" else "run_id = run_id"
    refused(backdoor, f"UPDATE {table} SET {column}")
    refused(backdoor, f"DELETE FROM {table}")
    if backdoor.dialect.name == "postgresql":
        refused(backdoor, f"TRUNCATE {table} CASCADE")


@pytest.mark.invariant("E6")
@pytest.mark.parametrize(
    "assignment",
    [
        "last_seq = 4",
        "last_seq = 6",  # nor does a retired run take anything
        "projected_seq = 4",
        "last_at = '2000-01-01T00:00:00.000000Z'",
        "opened_at = '2000-01-01T00:00:00.000000Z'",
        "plan_version = 'other'",
        "run_id = 'other'",
        "retired_at = NULL",
        "retired_at = '2999-01-01T00:00:00.000000Z'",
    ],
)
def test_the_head_of_a_retired_run_stays(log: EventLog, backdoor: sa.Engine, assignment: str) -> None:
    """Its tombstone neither goes back nor forward, loses nothing, and is never deleted."""
    ended(log)
    log.retire("over")
    refused(backdoor, f"UPDATE run_head SET {assignment}")
    refused(backdoor, "DELETE FROM run_head")


@pytest.mark.invariant("E6")
def test_only_events_of_a_retired_run_may_be_deleted(log: EventLog, backdoor: sa.Engine) -> None:
    """Beside a run that was retired, the events of another, ended or open, are refused to be deleted."""
    for run_id in ("over", "also-over"):
        ended(log, run_id)
    log.append(told("open", "RunStarted"))
    log.retire("over")
    for run_id in ("also-over", "open"):
        refused(backdoor, f"DELETE FROM run_events WHERE run_id = '{run_id}'")


@pytest.mark.invariant("E10")
def test_a_snapshot_cannot_be_set_back(log: EventLog, backdoor: sa.Engine) -> None:
    """The database refuses a snapshot of fewer events than it had, or of another run."""
    ended(log)
    refused(backdoor, "UPDATE run_snapshots SET last_event_seq = last_event_seq - 1")
    refused(backdoor, "UPDATE run_snapshots SET run_id = 'other'")


# Retiring.


@pytest.mark.invariant("E6")
def test_retiring_leaves_head_and_snapshot(log: EventLog, backdoor: sa.Engine) -> None:
    """All events and steps of the run go at once, those of others stay, and what it came to is still known."""
    snapshot, other = ended(log), ended(log, "other")
    before = everything(backdoor)
    assert log.retire("over") == 5
    after = everything(backdoor)
    for table in ("run_events", "run_steps"):
        assert after[table] == [row for row in before[table] if row.run_id == "other"]
        assert after[table]
    assert (log.fetch("over"), log.get_snapshot("over"), log.get_current_snapshot("over")) == ([], snapshot, snapshot)
    assert (stored_steps(log, "over"), len(stored_steps(log, "other"))) == ({}, 3)
    assert log.project_snapshot("other") == other
    head = log.get_head("over")
    assert head is not None
    assert (head.last_seq, head.projected_seq, head.retired_at is not None) == (5, 5, True)


@pytest.mark.invariant("E6")
def test_a_retired_run_takes_nothing_more(log: EventLog) -> None:
    """What it had and what is new are refused, alone and among others; it is not projected, and retired once."""
    snapshot = ended(log)
    log.retire("over")
    head = log.get_head("over")
    known, new = told("over", "RunStarted"), told("over", "RunPaused")
    for events in ([known], [new], [told("other", "RunStarted"), known]):
        with pytest.raises(RunClosed) as closed:
            log.append_many(events)
        assert closed.value.run_id == "over"
    assert log.get_head("other") is None
    with pytest.raises(EventsNotFound, match="retired"):
        log.project_snapshot("over")
    follower = Follower(log)
    assert (follower.catch_up(), follower.fold_next_events("over").folded, follower.fold_next_events("over", resync=True).folded) == (0, 0, 0)
    assert log.retire("over") == 0
    assert (log.get_head("over"), log.get_snapshot("over")) == (head, snapshot)


@pytest.mark.invariant("E6")
def test_only_a_run_that_has_ended_and_was_projected_is_retired(log: EventLog) -> None:
    """Unknown, open, or with events that no snapshot has yet: it stays as it is."""
    with pytest.raises(EventsNotFound):
        log.retire("never")
    follower = Follower(log)
    log.append(told("r", "RunStarted"))
    for late, status in ((None, "not folded"), ("StepStarted", "RUNNING"), ("RunFailed", "RUNNING")):
        if late:
            follower.catch_up()
            log.append(told("r", late, "s1" if late.startswith("Step") else None))
        with pytest.raises(RunOpen, match=status):
            log.retire("r")
    follower.catch_up()
    log.append(told("r", "NoteTaken"))
    with pytest.raises(RunOpen):
        log.retire("r")
    follower.catch_up()
    assert log.retire("r") == 4


@pytest.mark.invariant("E6")
def test_runs_are_retired_by_their_age(timed_log: EventLog, clock: FakeClock) -> None:
    """Those that ended before the moment are, once; open ones, later ones and unprojected ones are not."""
    timed_log.append(told("open", "RunStarted"))
    for name in ("first", "second"):
        ended(timed_log, name)
        clock.tick()
    moment = clock.now
    ended(timed_log, "later")
    ended(timed_log, "unprojected")
    timed_log.append(told("unprojected", "NoteTaken"))
    assert timed_log.retire_before(moment) == ["first", "second"]
    assert timed_log.retire_before(moment) == []
    assert timed_log.retire_before(clock.now) == []
    assert timed_log.retire_before(clock.now + timedelta(microseconds=1)) == ["later"]
    head = timed_log.get_head("first")
    assert head is not None
    assert head.retired_at == moment + timedelta(0)


# Dates.


@pytest.mark.invariant("E15")
def test_persisted_times_never_go_back(timed_log: EventLog, clock: FakeClock) -> None:
    """A clock that goes back dates an event like the one before it; what the producer wrote stays as it is."""
    seconds = [0, 5, -60, 2, 58, -1, 1]
    for number, by in enumerate(seconds):
        clock.tick(timedelta(seconds=by))
        timed_log.append_many(completions("r", number + 1))
    logged = timed_log.fetch("r")
    since = [(each.persisted_at - logged[0].persisted_at).total_seconds() for each in logged]
    assert since == [0, 5, 5, 5, 5, 5, 5]
    assert {each.event.emitted_at for each in logged} == {EMITTED_AT}
    clock.tick(timedelta(seconds=7))
    timed_log.append(told("r", "RunPaused"))
    (last,) = timed_log.fetch("r", after_seq=7)
    assert last.persisted_at == clock.now > logged[-1].persisted_at


@pytest.mark.invariant("E15")
def test_the_ledgers_own_events_share_the_order_of_times(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Whoever appends to a run, and with whatever clock: times only grow along its order."""
    log = EventLog(timed_ledger._engine)  # with the database's clock, which is years or months away
    origin = timed_ledger.origin
    accepted_runs(timed_ledger, [key("1")])
    log.append(origin.make_event("StepStarted", at=clock.now, step_id="s"))
    clock.tick()
    accepted_runs(timed_ledger, [key("2")])
    logged = log.fetch(origin.run_id)
    assert len(logged) == 5
    assert all(earlier.persisted_at <= later.persisted_at for earlier, later in pairwise(logged))


# Appending.


@pytest.mark.parametrize("event_type", sorted(LEDGER_TYPES))
def test_nobody_else_tells_what_the_ledger_did(log: EventLog, event_type: str) -> None:
    """An event of the ledger's own types is refused from outside, and the rest of its call with it."""
    with pytest.raises(BadEvent, match=event_type):
        log.append_many([told("r", "RunStarted"), told("r", event_type, "s1")])
    assert log.get_head("r") is None


@pytest.mark.invariant("E4")
def test_a_lost_acknowledgement_is_answered_by_the_first_place(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit took place but its answer was lost: the call is sent again by itself, and nothing is kept twice."""
    log.append_many([told("r", "RunStarted"), told("r", "RunPaused")])
    losses = lose_one_commit(log.engine, monkeypatch)
    appended = log.append_many([told("r", "RunResumed"), told("r", "RunPaused"), *completions("new", 1)])
    assert losses == ["lost"]
    assert appended == [AppendResult(run_seq=seq, idempotent=True) for seq in (3, 4, 1)]
    assert [each.event.logical_attempt_id for each in log.fetch("r")] == [1, 1, 1, 2]
    assert len(log.fetch("new")) == 1


@pytest.mark.invariant("E4", "E5")
@pytest.mark.parametrize("unborn", [True, False], ids=["new run", "known run"])
def test_of_one_event_told_by_many_at_once_one_is_kept(log: EventLog, unborn: bool) -> None:
    """Whoever is first, also to open the run: one telling is persisted, and all are told its place."""
    for turn in range(12):
        events = [told(f"r{turn}", "RunPaused"), *completions(f"r{turn}", 2)]
        if not unborn:
            log.append(told(f"r{turn}", "RunStarted"))
        answers = at_once([[event] for event in events for _ in range(THREADS // 2)], log)
        for number in range(len(events)):
            mine = [answer for (answer,) in answers[number * THREADS // 2 : (number + 1) * THREADS // 2]]
            assert sum(answer.persisted for answer in mine) == 1
            assert len({answer.run_seq for answer in mine}) == 1
        _check_gapless(log, f"r{turn}", len(events) + (not unborn))


@pytest.mark.invariant("E4")
@pytest.mark.parametrize("unborn", [True, False], ids=["new runs", "known runs"])
@pytest.mark.parametrize("numbered", [0, 3], ids=["numbered before", "numbered by the log"])
def test_calls_over_the_same_runs_in_any_order_do_not_deadlock(log: EventLog, unborn: bool, numbered: int) -> None:
    """Threads that append to the same runs in different orders all finish at the first try."""
    tries = count_tries(log.engine)
    runs = [f"r{number}" for number in range(RUNS)]
    if not unborn:
        log.append_many([told(run_id, "RunStarted") for run_id in runs])
    calls = list[list[Event]]()
    for thread in range(4):
        events = [told(run_id, "StepStarted", f"s{thread}") for run_id in runs]
        events += [told(run_id, "RunPaused") for run_id in random.Random(thread).sample(runs, numbered)]
        calls.append(events[:: 1 if thread % 2 else -1])
    answers = at_once(calls, log)
    assert tries["begun"] == tries["committed"], "a transaction had to be tried again"
    assert all(answer.persisted for each in answers for answer in each)
    seqs = {run_id: [each.run_seq for each in log.fetch(run_id)] for run_id in runs[::20]}
    assert all(places == list(range(1, len(places) + 1)) for places in seqs.values())
    heads = [head.last_seq for head, _snapshot in log.list_newest_runs(RUNS)]
    assert sum(heads) == 4 * (RUNS + numbered) + (0 if unborn else RUNS)


@pytest.mark.invariant("E4", "E5")
def test_who_waited_for_the_lock_knows_what_it_waited_for(postgres_url: str) -> None:
    """A telling that finds its run unborn, and then waits while another tells the same, is the second of them."""
    event, (other,) = told("r", "RunStarted"), completions("r", 1)
    hold, held, first = threading.Event(), threading.Event(), list[Future[AppendResult]]()

    def pause(_connection: sa.Connection) -> None:
        held.set()
        hold.wait(20)

    def open_the_run() -> None:
        slow.append(other)

    def tell_it_slowly() -> None:
        sa.event.listen(slow.engine, "commit", pause)
        first.append(pool.submit(slow.append, event))
        assert held.wait(20)

    moments = iter([lambda: None, open_the_run, tell_it_slowly])

    def on_the_way(*arguments: Any) -> None:
        """Before the first look nothing; the run is born before this call opens it, and locked at the second look."""
        if arguments[2].startswith("EXECUTE"):
            next(moments, lambda: None)()

    with EventLog.opened(postgres_url) as log, EventLog.opened(postgres_url) as slow, ThreadPoolExecutor(2) as pool:
        sa.event.listen(log.engine, "before_cursor_execute", on_the_way)
        # The second way of `append`, which it takes when the first was refused.
        waiting = pool.submit(database.transact, log.engine, lambda c: log._append_many(c, [event]))
        wait_for_a_lock(postgres_url)
        hold.set()
        assert first[0].result() == AppendResult(run_seq=2, idempotent=False)
        assert waiting.result() == [AppendResult(run_seq=2, idempotent=True)]


@pytest.mark.invariant("E2", "E4")
def test_an_append_that_waited_for_the_same_one_is_the_second(postgres_url: str) -> None:
    """Two tell the same at once: the one that had to wait learns the first one's place, and leaves no gap."""
    (event, other) = completions("r", 2)
    hold, held = threading.Event(), threading.Event()

    def pause(_connection: sa.Connection) -> None:
        held.set()
        hold.wait(20)

    with EventLog.opened(postgres_url) as log, EventLog.opened(postgres_url) as slow, ThreadPoolExecutor(2) as pool:
        sa.event.listen(slow.engine, "commit", pause)
        first = pool.submit(slow.append, event)
        assert held.wait(20)
        waiting = pool.submit(log.append, event)
        wait_for_a_lock(postgres_url)
        hold.set()
        assert first.result() == AppendResult(run_seq=1, idempotent=False)
        assert waiting.result() == AppendResult(run_seq=1, idempotent=True)
        assert log.append(other) == AppendResult(run_seq=2, idempotent=False)


@pytest.mark.invariant("E4")
def test_a_number_within_the_call_swallows_no_event(log: EventLog) -> None:
    """An occurrence without a number is kept beside one of the same call that brings its own."""
    numbered, free = told("r", "RunPaused", logical_attempt_id=1), told("r", "RunPaused")
    assert [each.persisted for each in log.append_many([numbered, free, free])] == [True, True, False]
    assert [each.event.logical_attempt_id for each in log.fetch("r")] == [1, 2]


@pytest.mark.invariant("E17")
def test_conflicts_are_counted_by_run(log: EventLog) -> None:
    """How often another payload came under a known key stands with the run, and with no other."""
    first = told("r", "RunStarted", event_data=1)
    log.append_many([first, told("s", "RunStarted")])
    other = told("r", "RunStarted", event_data=2)
    log.append_many([other, told("s", "RunStarted"), other])
    assert [head.payload_conflicts for head in map(log.get_head, "rs") if head] == [2, 0]


# Reading several things that belong together.


@pytest.mark.invariant("E10")
def test_an_open_snapshot_is_of_one_moment(url: str, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A projection between its reads changes nothing of what is seen, and counts no step twice."""
    log.append_many([told("r", "StepStarted", "s1"), told("r", "StepStarted", "s2")])
    follower = Follower(log)
    follower.catch_up()
    log.append(told("r", "StepCompleted", "s1"))
    with EventReader.opened(url) as reader:
        _meanwhile(reader, "run_snapshots", follower.catch_up)
        seen = reader.get_current_snapshot("r")
    assert seen == log.project_snapshot("r") == log.get_snapshot("r")
    assert seen.steps == {StepStatus.RUNNING: 1, StepStatus.SUCCEEDED: 1}


@pytest.mark.invariant("E9")
def test_a_projection_is_of_all_events_or_none(url: str, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is retired while it is projected page by page is not told by halves."""
    monkeypatch.setattr("ads_pipeline.ledger.events.event_reader._REPLAYED", 2)
    snapshot = ended(log)
    with EventReader.opened(url) as reader:
        _meanwhile(reader, "run_events", lambda: log.retire("over"))
        assert reader.project_snapshot("over") == snapshot
        assert snapshot.status is RunStatus.COMPLETED
        with pytest.raises(EventsNotFound):
            reader.project_snapshot("over")


def _meanwhile(reader: EventReader, table: str, act: Callable[[], object]) -> None:
    """Once, right after the reader's next statement on a table."""
    acts = [act]

    def look(*arguments: Any) -> None:
        if acts and f"FROM {table}" in arguments[2].replace("\n", " "):
            acts.pop()()

    sa.event.listen(reader.engine, "after_cursor_execute", look)


def at_once(calls: list[list[Event]], log: EventLog) -> list[list[AppendResult]]:
    """Each call appended in a thread of its own, all at the same moment."""
    barrier = threading.Barrier(len(calls))

    def append(events: list[Event]) -> list[AppendResult]:
        barrier.wait(30)
        return log.append_many(events)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(append, calls))


def _check_gapless(log: EventLog, run_id: str, count: int) -> None:
    assert [each.run_seq for each in log.fetch(run_id)] == list(range(1, count + 1))


# What was told of one step, in whatever run.


def test_the_last_events_of_a_step_are_found_in_every_run(timed_log: EventLog, clock: FakeClock) -> None:
    """Oldest first, whether a run is projected or not; not those of other steps, of the run, or of a retired run."""
    for number in range(4):
        clock.tick()
        timed_log.append_many([told(f"r{number}", "RunStarted"), *history(f"r{number}", TWICE)])
        if number == 0:
            timed_log.append(told("r0", "RunCompleted"))
        if number < 3:
            Follower(timed_log).catch_up()
    timed_log.retire("r0")
    places = [(each.event.run_id, each.run_seq) for each in timed_log.find_step_events("s1")]
    assert places == [(f"r{number}", seq) for number in (1, 2, 3) for seq in (2, 4)]
    assert [(each.event.run_id, each.run_seq) for each in timed_log.find_step_events("s1", limit=3)] == places[-3:]
    assert timed_log.find_step_events("s3") == []
    assert timed_log.find_step_events("s1")[0] == timed_log.fetch("r1")[1]
