"""Tests folding into stored snapshots: racing followers, batches, gaps and crashes."""

import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.run_events import Event
from ads_pipeline.domain.run_snapshots import RunSnapshot, RunStatus, StepStatus
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.events.snapshots import EVENTS_PER_TRANSACTION, Follower
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import run_events, run_head
from ads_pipeline.testing.event_strategies import STEP_EVENT_TYPES, make_completions, make_event
from ads_pipeline_tests.ledger.builders import FakeClock, open_part
from ads_pipeline_tests.ledger.events.builders import stored_steps
from ads_pipeline_tests.processes import run_script

RUNS = tuple(f"run-{number}" for number in range(3))


def make_step_events(engine_run_id: str, count: int) -> list[Event]:
    """Return random events of seven steps of a run."""
    chance = random.Random(engine_run_id)
    return [
        make_event(
            engine_run_id, chance.choice(STEP_EVENT_TYPES), f"s{chance.randrange(7)}", logical_attempt_id=number + 1
        )
        for number in range(count)
    ]


def stored_snapshot(log: EventReader, engine_run_id: str = "r") -> RunSnapshot:
    snapshot = log.get_snapshot(engine_run_id)
    assert snapshot is not None
    return snapshot


def last_seq(log: EventReader, engine_run_id: str) -> int:
    head = log.get_head(engine_run_id)
    return head.last_seq if head else 0


def check_current(log: EventLog, engine_run_id: str = "r") -> None:
    """Check that the stored snapshot and the stored steps are the fold of all events."""
    assert (
        stored_snapshot(log, engine_run_id)
        == log.project_snapshot(engine_run_id)
        == log.get_current_snapshot(engine_run_id)
    )
    last = {each.event.step_id: each.event.event_type for each in log.fetch(engine_run_id, limit=10_000)}
    names = dict(zip(STEP_EVENT_TYPES, ("RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED"), strict=True))
    steps = {step: StepStatus(names[event_type]) for step, event_type in last.items() if step and event_type in names}
    assert stored_steps(log, engine_run_id) == steps
    assert Counter(steps.values()) == dict(stored_snapshot(log, engine_run_id).steps)
    head = log.get_head(engine_run_id)
    assert head is not None
    assert head.projected_seq == head.last_seq


# Followers.


@pytest.mark.invariant("E9", "E10")
def test_racing_followers_fold_each_event_once(url: str, log: EventLog) -> None:
    """While two followers fold and two writers append, snapshots only advance and end as the fold of all events."""
    done = threading.Event()

    def append(writer: int) -> None:
        events = [event for engine_run_id in RUNS for event in make_step_events(engine_run_id, 200)[writer::2]]
        chance = random.Random(writer)
        chance.shuffle(events)
        while events:
            size = chance.randint(1, 20)
            log.append_many(events[:size])
            del events[:size]
            time.sleep(0.01)

    def follow() -> int:
        folded = 0
        with open_part(EventLog, url) as own:
            follower = Follower(own)
            while True:
                is_last_poll = done.is_set()
                new_count = follower.catch_up()
                folded += new_count
                if is_last_poll and not new_count:
                    return folded
                time.sleep(0 if new_count else 0.01)  # without a pause one thread would hold SQLite's lock

    with ThreadPoolExecutor(5) as pool:
        watching = pool.submit(_watch, url, done)
        followers = [pool.submit(follow) for _ in range(2)]
        list(pool.map(append, range(2)))
        done.set()
        folded = sum(follower.result(600) for follower in followers)
        assert watching.result(600) > 10
    assert folded == 3 * 200, "an event was folded twice or not at all"
    for engine_run_id in RUNS:
        check_current(log, engine_run_id)
    assert missing_events(log.engine) == [0, 0, 0]


def _watch(url: str, done: threading.Event) -> int:
    """Poll the snapshots and return how often one had advanced."""
    seen = {engine_run_id: RunSnapshot(engine_run_id=engine_run_id) for engine_run_id in RUNS}
    advances = 0
    with open_part(EventReader, url) as reader:
        while not done.is_set():
            for engine_run_id, before in seen.items():
                now = reader.get_snapshot(engine_run_id) or before
                assert before.last_event_seq <= now.last_event_seq <= last_seq(reader, engine_run_id)
                assert sum(now.steps.values()) <= 7
                assert now.stale_since is None, "there is no gap"
                advances += now.last_event_seq > before.last_event_seq
                seen[engine_run_id] = now
    return advances


@pytest.mark.invariant("E9")
def test_long_run_is_folded_in_batches(log: EventLog) -> None:
    """One `catch_up` folds more events than one transaction and more runs than one page."""
    log.append_many(make_step_events("r", EVENTS_PER_TRANSACTION + 1))
    log.append_many([make_event(f"r{number}", "RunStarted") for number in range(120)])
    follower = Follower(log)
    assert follower.fold_next_events("r").folded == EVENTS_PER_TRANSACTION
    assert stored_snapshot(log).last_event_seq == EVENTS_PER_TRANSACTION
    assert log.get_snapshot("r7") is None
    assert follower.catch_up() == 121
    assert log.list_lagging_runs() == []
    check_current(log)


def test_catch_up_ends_while_a_run_grows(url: str, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that grows during the fold does not block `catch_up` or the runs after it."""
    monkeypatch.setattr(
        "ads_pipeline.ledger.events.snapshots.EVENTS_PER_TRANSACTION", 1
    )  # the run grows as fast as it is folded
    new_events = iter(make_step_events("r", 100))
    log.append_many([next(new_events), make_event("s", "RunStarted")])

    def grow(_connection: object, _record: object) -> None:
        """Append one event between the follower's transactions."""
        other.append_many([event for event in [next(new_events, None)] if event])

    with open_part(EventLog, url) as other:
        sa.event.listen(log.engine, "checkin", grow)
        assert 2 <= Follower(log).catch_up() < 20
    assert stored_snapshot(other, "s").last_event_seq == 1
    assert next(new_events, None) is not None


# Gaps.


def append_with_a_gap(log: EventLog, backdoor: sa.Engine, engine_run_id: str = "r") -> Event:
    """Append seven events without the fourth, and return the fourth."""
    events = make_step_events(engine_run_id, 7)
    log.append_many(events[:3])
    _skip_seq(backdoor, engine_run_id)
    log.append_many(events[4:])
    assert [each.run_seq for each in log.fetch(engine_run_id)] == [1, 2, 3, 5, 6, 7]
    return events[3]


def _skip_seq(backdoor: sa.Engine, engine_run_id: str) -> None:
    skipped = (
        sa.update(run_head).where(run_head.c.engine_run_id == engine_run_id).values(last_seq=run_head.c.last_seq + 1)
    )
    database.transact(backdoor, lambda connection: connection.execute(skipped))


def _insert_at(log: EventLog, backdoor: sa.Engine, event: Event, run_seq: int) -> None:
    """Insert the event with this `run_seq`, as a late commit would."""
    log.append(replace(event, engine_run_id="elsewhere"))
    names = [column.name for column in run_events.c]
    given = {"engine_run_id": event.engine_run_id, "run_seq": run_seq, "idempotency_key": event.idempotency_key}
    row = [sa.literal(given[name]).label(name) if name in given else run_events.c[name] for name in names]
    moved = sa.insert(run_events).from_select(names, sa.select(*row).where(run_events.c.engine_run_id == "elsewhere"))
    database.transact(backdoor, lambda connection: connection.execute(moved))


def missing_events(engine: sa.Engine) -> list[int]:
    folded = sa.select(run_head.c.missing_events).where(run_head.c.status.is_not(None))
    return list(
        database.transact(
            engine, lambda connection: connection.scalars(folded.order_by(run_head.c.engine_run_id)).all()
        )
    )


@pytest.mark.invariant("E13")
def test_late_event_closes_the_gap(timed_log: EventLog, clock: FakeClock, backdoor: sa.Engine) -> None:
    """A gap stops the fold and marks the snapshot stale. When the event arrives, nothing is missing or stale."""
    missing = append_with_a_gap(timed_log, backdoor)
    follower = Follower(timed_log)
    assert follower.fold_next_events("r").folded == 3
    assert (stored_snapshot(timed_log).last_event_seq, stored_snapshot(timed_log).stale_since) == (3, clock.now)
    _insert_at(timed_log, backdoor, missing, 4)
    assert follower.fold_next_events("r").folded == 4
    assert (stored_snapshot(timed_log).last_event_seq, stored_snapshot(timed_log).stale_since) == (7, None)
    check_current(timed_log)
    assert missing_events(backdoor) == [0]


@pytest.mark.invariant("E13")
def test_permanent_gap_is_skipped_and_counted(log: EventLog, backdoor: sa.Engine) -> None:
    """The next fold holds the run's lock, skips the gap, counts the missing event and clears the staleness."""
    append_with_a_gap(log, backdoor)
    follower = Follower(log)
    assert (follower.fold_next_events("r").folded, stored_snapshot(log).stale_since is None) == (3, False)
    assert follower.fold_next_events("r").folded == 3
    assert (stored_snapshot(log).last_event_seq, stored_snapshot(log).stale_since, missing_events(backdoor)) == (
        7,
        None,
        [1],
    )
    check_current(log)
    log.append_many([make_event("r", "RunPaused"), *make_completions("r", 2)])
    assert (follower.catch_up(), missing_events(backdoor)) == (3, [1])
    check_current(log)


@pytest.mark.invariant("E13")
@pytest.mark.parametrize("fold_first", [True, False], ids=["folded before", "unknown"])
def test_gap_at_the_end_is_skipped(log: EventLog, backdoor: sa.Engine, fold_first: bool) -> None:
    """Missing sequence numbers at the end of a run are skipped and cause no lag."""
    log.append_many(make_step_events("r", 2))
    follower = Follower(log)
    if fold_first:
        follower.catch_up()
    _skip_seq(backdoor, "r")
    _skip_seq(backdoor, "r")
    if fold_first:
        assert log.get_lag() == timedelta(0)
        assert follower.fold_next_events("r").folded == 0
        assert stored_snapshot(log).stale_since is not None
    follower.catch_up()
    assert (stored_snapshot(log).last_event_seq, stored_snapshot(log).stale_since, missing_events(backdoor)) == (
        4,
        None,
        [2],
    )
    assert (log.list_lagging_runs(), log.get_lag()) == ([], timedelta(0))
    log.append(make_event("r", "RunCompleted"))
    follower.catch_up()
    assert (stored_snapshot(log).last_event_seq, stored_snapshot(log).status) == (5, RunStatus.COMPLETED)
    assert log.retire("r") == 3


@pytest.mark.invariant("E13")
def test_one_catch_up_skips_all_gaps(log: EventLog, backdoor: sa.Engine) -> None:
    """One `catch_up` skips gaps near the start of runs and after whole batches."""
    for engine_run_id in RUNS:
        log.append(make_event(engine_run_id, "RunStarted"))
        Follower(log).fold_next_events(engine_run_id)
        _skip_seq(backdoor, engine_run_id)
        log.append_many(make_step_events(engine_run_id, EVENTS_PER_TRANSACTION + 3))
        _skip_seq(backdoor, engine_run_id)
    follower = Follower(log)
    assert follower.catch_up() == 3 * (EVENTS_PER_TRANSACTION + 3)
    assert (follower.catch_up(), log.list_lagging_runs(), missing_events(backdoor)) == (0, [], [2, 2, 2])
    assert {stored_snapshot(log, engine_run_id).stale_since for engine_run_id in RUNS} == {None}


# Catches up and kills itself at the n-th point: before each statement, before each commit, and at the end.
CRASHING_FOLLOWER = """
import os, signal, sys
import sqlalchemy as sa
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline_tests.ledger.builders import open_part
from ads_pipeline.ledger.events.snapshots import Follower

points = int(sys.argv[2])
def crash_point(*_):
    global points
    points -= 1
    if points == 0:
        os.kill(os.getpid(), signal.SIGKILL)

with open_part(EventLog, sys.argv[1]) as log:
    for name in ("before_cursor_execute", "commit"):
        sa.event.listen(log.engine, name, crash_point)
    Follower(log).catch_up()
    crash_point()
"""


@pytest.mark.invariant("E9", "E10", "E13")
def test_crashed_follower_leaves_consistent_snapshots(url: str, log: EventLog) -> None:
    """After a kill at any point, snapshot, steps and watermark agree, and the next follower continues."""
    events, crashes = make_step_events("r", 200), 0
    while True:
        log.append_many(events[crashes * 3 : crashes * 3 + 3])
        before = log.get_snapshot("r")
        child = run_script(CRASHING_FOLLOWER, url, str(crashes + 1))
        after = log.get_snapshot("r")
        if after is not None:
            head = log.get_head("r")
            assert head is not None
            assert head.projected_seq == after.last_event_seq >= (before.last_event_seq if before else 0)
            assert sum(after.steps.values()) == len(stored_steps(log, "r"))
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL
        crashes += 1
    assert crashes >= 11, "too few crash points"
    check_current(log)
