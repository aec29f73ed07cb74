"""Snapshots are kept up to the events, by however many followers, across gaps, outages and crashes."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.run_events import Event
from ads_pipeline.domain.run_snapshots import LagLevel, RunSnapshot, RunStatus, StepStatus
from ads_pipeline.errors import LedgerUnavailable
from ads_pipeline.ledger import database
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.events.snapshots import EVENTS_PER_TRANSACTION, Follower, follow_in_background
from ads_pipeline.ledger.tables import run_events, run_head, run_snapshots
from ads_pipeline_tests.ledger.builders import FakeClock
from ads_pipeline_tests.ledger.events.builders import stored_steps
from ads_pipeline_tests.run_event_stores.builders import OF_STEPS, completions, told

RUNS = tuple(f"run-{number}" for number in range(3))


def busy_events(run_id: str, count: int) -> list[Event]:
    """A run whose few steps change again and again."""
    chance = random.Random(run_id)
    return [
        told(run_id, chance.choice(OF_STEPS), f"s{chance.randrange(7)}", logical_attempt_id=number + 1)
        for number in range(count)
    ]


def kept(log: EventReader, run_id: str = "r") -> RunSnapshot:
    snapshot = log.get_snapshot(run_id)
    assert snapshot is not None
    return snapshot


def last_seq(log: EventReader, run_id: str) -> int:
    head = log.get_head(run_id)
    return head.last_seq if head else 0


def check_caught_up(log: EventLog, run_id: str = "r") -> None:
    """The kept snapshot is the fold of all events, and so is each of the kept steps."""
    assert kept(log, run_id) == log.project_snapshot(run_id) == log.get_current_snapshot(run_id)
    last = {each.event.step_id: each.event.event_type for each in log.fetch(run_id, limit=10_000)}
    names = dict(zip(OF_STEPS, ("RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED"), strict=True))
    steps = {step: StepStatus(names[event_type]) for step, event_type in last.items() if step and event_type in names}
    assert stored_steps(log, run_id) == steps
    assert Counter(steps.values()) == dict(kept(log, run_id).steps)
    head = log.get_head(run_id)
    assert head is not None
    assert head.projected_seq == head.last_seq


# Many followers at once.


@pytest.mark.invariant("E9", "E10")
def test_followers_that_race_never_set_a_snapshot_back(url: str, log: EventLog) -> None:
    """Two follow while two append: what is kept only grows, never passes the log, and ends as the fold of all."""
    done = threading.Event()

    def append(writer: int) -> None:
        events = [event for run_id in RUNS for event in busy_events(run_id, 200)[writer::2]]
        chance = random.Random(writer)
        chance.shuffle(events)
        while events:
            size = chance.randint(1, 20)
            log.append_many(events[:size])
            del events[:size]
            time.sleep(0.01)

    def follow() -> int:
        projected = 0
        with EventLog.opened(url) as own:
            follower = Follower(own)
            while True:
                last_look = done.is_set()
                news = follower.catch_up()
                projected += news
                if last_look and not news:
                    return projected
                time.sleep(0 if news else 0.01)  # for SQLite gives its lock to whoever asks most often

    with ThreadPoolExecutor(5) as pool:
        watching = pool.submit(_watch, url, done)
        followers = [pool.submit(follow) for _ in range(2)]
        list(pool.map(append, range(2)))
        done.set()
        projected = sum(follower.result(60) for follower in followers)
        assert watching.result(60) > 10
    assert projected == 3 * 200, "an event was folded in twice, or by nobody"
    for run_id in RUNS:
        check_caught_up(log, run_id)
    assert holes(log.engine) == [0, 0, 0]


def _watch(url: str, done: threading.Event) -> int:
    """Look at snapshots all the time; how often one had moved."""
    seen = {run_id: RunSnapshot(run_id=run_id) for run_id in RUNS}
    moves = 0
    with EventReader.opened(url) as reader:
        while not done.is_set():
            for run_id, before in seen.items():
                now = reader.get_snapshot(run_id) or before
                assert before.last_event_seq <= now.last_event_seq <= last_seq(reader, run_id)
                assert sum(now.steps.values()) <= 7
                assert now.stale_since is None, "there never was a gap"
                moves += now.last_event_seq > before.last_event_seq
                seen[run_id] = now
    return moves


@pytest.mark.invariant("E9")
def test_a_long_run_is_projected_in_pieces(log: EventLog) -> None:
    """More events than fit one transaction, and more runs than one look finds, are all caught up with at once."""
    log.append_many(busy_events("r", EVENTS_PER_TRANSACTION + 1))
    log.append_many([told(f"r{number}", "RunStarted") for number in range(120)])
    follower = Follower(log)
    assert follower.fold_next_events("r").folded == EVENTS_PER_TRANSACTION
    assert kept(log).last_event_seq == EVENTS_PER_TRANSACTION
    assert log.get_snapshot("r7") is None
    assert follower.catch_up() == 121
    assert log.list_lagging_runs() == []
    check_caught_up(log)


def test_catching_up_ends_though_events_keep_coming(url: str, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that grows while it is projected does not hold the follower, nor keep it from the runs behind it."""
    monkeypatch.setattr(
        "ads_pipeline.ledger.events.snapshots.EVENTS_PER_TRANSACTION", 1
    )  # so that it grows as fast as it is projected
    grown = iter(busy_events("r", 100))
    log.append_many([next(grown), told("s", "RunStarted")])

    def grow(_connection: object, _record: object) -> None:
        """Between the follower's transactions."""
        other.append_many([event for event in [next(grown, None)] if event])

    with EventLog.opened(url) as other:
        sa.event.listen(log.engine, "checkin", grow)
        assert 2 <= Follower(log).catch_up() < 20
    assert kept(other, "s").last_event_seq == 1
    assert next(grown, None) is not None


# Gaps.


def tell_with_a_gap(log: EventLog, backdoor: sa.Engine, run_id: str = "r") -> Event:
    """A run of seven events whose fourth is not there, and that one."""
    events = busy_events(run_id, 7)
    log.append_many(events[:3])
    _skip(backdoor, run_id)
    log.append_many(events[4:])
    assert [each.run_seq for each in log.fetch(run_id)] == [1, 2, 3, 5, 6, 7]
    return events[3]


def _skip(backdoor: sa.Engine, run_id: str) -> None:
    skipped = sa.update(run_head).where(run_head.c.run_id == run_id).values(last_seq=run_head.c.last_seq + 1)
    database.transact(backdoor, lambda connection: connection.execute(skipped))


def _arrive(log: EventLog, backdoor: sa.Engine, event: Event, run_seq: int) -> None:
    """The event as it would have been appended there."""
    log.append(replace(event, run_id="elsewhere"))
    names = [column.name for column in run_events.c]
    given = {"run_id": event.run_id, "run_seq": run_seq, "idempotency_key": event.idempotency_key}
    row = [sa.literal(given[name]).label(name) if name in given else run_events.c[name] for name in names]
    moved = sa.insert(run_events).from_select(names, sa.select(*row).where(run_events.c.run_id == "elsewhere"))
    database.transact(backdoor, lambda connection: connection.execute(moved))


def holes(engine: sa.Engine) -> list[int]:
    statement = sa.select(run_snapshots.c.missing_events).order_by(run_snapshots.c.run_id)
    return list(database.transact(engine, lambda connection: connection.scalars(statement).all()))


@pytest.mark.invariant("E13")
def test_an_event_that_comes_late_is_read_from_before_the_gap(
    timed_log: EventLog, clock: FakeClock, backdoor: sa.Engine
) -> None:
    """A gap marks the snapshot and stops it; once the event is there, nothing is missing and nothing marked."""
    missing = tell_with_a_gap(timed_log, backdoor)
    follower = Follower(timed_log)
    assert follower.fold_next_events("r").folded == 3
    assert (kept(timed_log).last_event_seq, kept(timed_log).stale_since) == (3, clock.now)
    _arrive(timed_log, backdoor, missing, 4)
    assert follower.fold_next_events("r").folded == 4
    assert (kept(timed_log).last_event_seq, kept(timed_log).stale_since) == (7, None)
    check_caught_up(timed_log)
    assert holes(backdoor) == [0]


@pytest.mark.invariant("E13")
def test_a_hole_that_stays_is_crossed_and_counted(log: EventLog, backdoor: sa.Engine) -> None:
    """Under the run's lock nothing can be on its way: the hole is known then, and the snapshot whole without it."""
    tell_with_a_gap(log, backdoor)
    follower = Follower(log)
    assert (follower.fold_next_events("r").folded, kept(log).stale_since is None) == (3, False)
    assert follower.fold_next_events("r").folded == 3
    assert (kept(log).last_event_seq, kept(log).stale_since, holes(backdoor)) == (7, None, [1])
    check_caught_up(log)
    log.append_many([told("r", "RunPaused"), *completions("r", 2)])
    assert (follower.catch_up(), holes(backdoor)) == (3, [1])
    check_caught_up(log)


@pytest.mark.invariant("E13")
@pytest.mark.parametrize("project_first", [True, False], ids=["projected before", "unknown"])
def test_a_hole_at_the_end_is_crossed_too(log: EventLog, backdoor: sa.Engine, project_first: bool) -> None:
    """Places that were given to nothing, with nothing behind them, keep nobody waiting and are no lag."""
    log.append_many(busy_events("r", 2))
    follower = Follower(log)
    if project_first:
        follower.catch_up()
    _skip(backdoor, "r")
    _skip(backdoor, "r")
    if project_first:
        assert log.get_lag() == timedelta(0)
        assert follower.fold_next_events("r").folded == 0
        assert kept(log).stale_since is not None
    follower.catch_up()
    assert (kept(log).last_event_seq, kept(log).stale_since, holes(backdoor)) == (4, None, [2])
    assert (log.list_lagging_runs(), log.get_lag()) == ([], timedelta(0))
    log.append(told("r", "RunCompleted"))
    follower.catch_up()
    assert (kept(log).last_event_seq, kept(log).status) == (5, RunStatus.COMPLETED)
    assert log.retire("r") == 3


@pytest.mark.invariant("E13")
def test_holes_among_the_first_events_of_many_runs_clear(log: EventLog, backdoor: sa.Engine) -> None:
    """One pass crosses every hole, at the very first place and behind whole pages, and ends."""
    for run_id in RUNS:
        log.append(told(run_id, "RunStarted"))
        Follower(log).fold_next_events(run_id)
        _skip(backdoor, run_id)
        log.append_many(busy_events(run_id, EVENTS_PER_TRANSACTION + 3))
        _skip(backdoor, run_id)
    follower = Follower(log)
    assert follower.catch_up() == 3 * (EVENTS_PER_TRANSACTION + 3)
    assert (follower.catch_up(), log.list_lagging_runs(), holes(backdoor)) == (0, [], [2, 2, 2])
    assert {kept(log, run_id).stale_since for run_id in RUNS} == {None}


# Lag.


@pytest.mark.invariant("E14")
def test_lag_is_the_age_of_the_oldest_event_that_is_in_no_snapshot(timed_log: EventLog, clock: FakeClock) -> None:
    """Nothing unprojected is no lag, whatever its age; else the oldest counts, in whichever run, by one clock."""
    follower = Follower(timed_log)
    assert timed_log.get_lag() == timedelta(0)
    timed_log.append(told("b", "RunStarted"))
    follower.catch_up()
    clock.tick(timedelta(days=1))
    assert timed_log.get_lag() == timedelta(0)
    timed_log.append(told("b", "RunPaused"))
    clock.tick()
    timed_log.append_many([told("a", "RunStarted"), told("b", "RunResumed")])
    clock.tick()
    assert timed_log.get_lag() == timedelta(seconds=2)
    follower.fold_next_events("b").folded
    assert timed_log.get_lag() == timedelta(seconds=1)
    clock.tick(timedelta(seconds=-30))
    assert timed_log.get_lag() == timedelta(0)
    clock.tick(timedelta(seconds=30))
    follower.fold_next_events("a").folded
    assert timed_log.get_lag() == timedelta(0)


@pytest.mark.invariant("E14")
def test_alarms_are_raised_once_an_episode(timed_log: EventLog, clock: FakeClock) -> None:
    """Above five seconds, and above ten, each once while events wait; once more when it is over, then anew."""
    raised = list[tuple[LagLevel, float]]()

    def hear(lag: LagLevel, behind: timedelta) -> None:
        raised.append((lag, behind.total_seconds()))

    follower, number = Follower(timed_log), 0

    def look(seconds: float) -> list[tuple[LagLevel, float]]:
        """A look at the log when its oldest unprojected event is so old."""
        nonlocal number
        number += 1
        raised.clear()
        timed_log.append(told("r", "StepStarted", f"s{number}"))
        clock.tick(timedelta(seconds=seconds))
        assert follower.catch_up(hear) == 1
        return list(raised)

    assert [look(seconds) for seconds in (0, 1, 1.000001, 5)] == [[], [], [], []]
    assert look(5.000001) == [(LagLevel.HIGH, 5.000001)]
    assert [look(seconds) for seconds in (9, 10, 2)] == [[], [], []]
    assert look(10.000001) == [(LagLevel.RESYNC, 10.000001)]
    assert [look(seconds) for seconds in (60, 7)] == [[], []]
    assert look(1) == [(LagLevel.NORMAL, 1)]
    assert look(1) == []
    assert look(60) == [(LagLevel.HIGH, 60), (LagLevel.RESYNC, 60)]
    check_caught_up(timed_log)


@pytest.mark.invariant("E13", "E14")
def test_what_is_too_far_behind_is_made_whole_at_once(
    url: str, timed_log: EventLog, clock: FakeClock, backdoor: sa.Engine
) -> None:
    """Above ten seconds a gap is not waited at: the run is read again under its lock, and never becomes stale."""
    tell_with_a_gap(timed_log, backdoor)
    clock.tick(timedelta(seconds=11))
    stale = list[object]()

    def look(_connection: object, _record: object) -> None:
        """Between the follower's transactions."""
        stale.append(getattr(reader.get_snapshot("r"), "stale_since", None))

    raised = list[LagLevel]()
    with EventReader.opened(url) as reader:
        sa.event.listen(timed_log.engine, "checkin", look)
        assert Follower(timed_log).catch_up(lambda lag, _behind: raised.append(lag)) == 6
    sa.event.remove(timed_log.engine, "checkin", look)
    assert set(stale) == {None}
    assert raised == [LagLevel.HIGH, LagLevel.RESYNC]
    assert (kept(timed_log).stale_since, holes(backdoor)) == (None, [1])


# Following in the background.


def test_a_block_is_followed_and_caught_up_with_at_its_end(log: EventLog) -> None:
    """While the block runs snapshots follow by themselves, and when it ends nothing is missing in them."""
    with follow_in_background(log):
        log.append_many(busy_events("r", 3))
        _wait_until(lambda: log.get_snapshot("r") is not None and kept(log).last_event_seq == 3)
        log.append_many([*busy_events("r", 9), *completions("other", 2)])
    for run_id in ("r", "other"):
        check_caught_up(log, run_id)


def test_a_block_that_fails_is_caught_up_with_too(log: EventLog) -> None:
    """The block's own failure is what is raised, and its events are projected."""
    log.append(told("r", "RunStarted"))
    with pytest.raises(KeyError, match="mine"), follow_in_background(log):
        raise KeyError("mine")
    check_caught_up(log)


def test_an_outage_is_waited_for(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is out of reach does not end the following; back again, it is caught up with."""
    outage, refusals = threading.Event(), list[int]()

    def begin(_connection: sa.Connection) -> None:
        if outage.is_set() and threading.current_thread().name == "run-events":
            refusals.append(1)
            raise LedgerUnavailable("the ledger's database is busy or out of reach: planned")

    sa.event.listen(log.engine, "begin", begin)
    with follow_in_background(log):
        outage.set()
        log.append_many(busy_events("r", 3))
        _wait_until(lambda: len(refusals) > 0)
        assert log.get_snapshot("r") is None
        outage.clear()
        _wait_until(lambda: log.get_snapshot("r") is not None)
    check_caught_up(log)


def _wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Follows, and kills itself at the n-th moment: before each statement, before each commit, and at the end.
DYING = """
import os, signal, sys
import sqlalchemy as sa
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.snapshots import Follower

moments = int(sys.argv[2])
def moment(*_):
    global moments
    moments -= 1
    if moments == 0:
        os.kill(os.getpid(), signal.SIGKILL)

with EventLog.opened(sys.argv[1]) as log:
    for name in ("before_cursor_execute", "commit"):
        sa.event.listen(log.engine, name, moment)
    Follower(log).catch_up()
    moment()
"""


@pytest.mark.invariant("E9", "E10", "E13")
def test_a_follower_that_dies_loses_nothing(url: str, log: EventLog) -> None:
    """Killed at any moment, it leaves snapshot, steps and watermark of one place, and the next goes on from there."""
    events, deaths = busy_events("r", 200), 0
    while True:
        log.append_many(events[deaths * 3 : deaths * 3 + 3])
        before = log.get_snapshot("r")
        child = subprocess.run([sys.executable, "-c", DYING, url, str(deaths + 1)], check=False, timeout=60)
        after = log.get_snapshot("r")
        if after is not None:
            head = log.get_head("r")
            assert head is not None
            assert head.projected_seq == after.last_event_seq >= (before.last_event_seq if before else 0)
            assert sum(after.steps.values()) == len(stored_steps(log, "r"))
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL
        deaths += 1
    assert deaths >= 11, "the projection was hardly interrupted"
    check_caught_up(log)
