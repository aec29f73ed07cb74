"""Tests lag alarms, and the folds of a run after its writes."""

import traceback
from datetime import timedelta

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.errors import LedgerUnavailable
from ads_pipeline.domain.run_snapshots import LagLevel
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.write_steps.leases import Lease
from ads_pipeline.testing.event_strategies import make_event
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    key,
    open_part,
    registered_runs,
    run,
    sealed_runs,
)
from ads_pipeline_tests.ledger.events.test_snapshots import (
    append_with_a_gap,
    check_current,
    last_seq,
    missing_events,
    stored_snapshot,
)

# Lag.


@pytest.mark.invariant("E14")
def test_lag_is_the_age_of_the_oldest_unfolded_event(timed_log: EventLog, clock: FakeClock) -> None:
    """Without unfolded events the lag is zero. Else it is the age of the oldest one in any run."""
    follower = Follower(timed_log)
    assert timed_log.get_lag() == timedelta(0)
    timed_log.append(make_event("b", "RunStarted"))
    follower.catch_up()
    clock.tick(timedelta(days=1))
    assert timed_log.get_lag() == timedelta(0)
    timed_log.append(make_event("b", "RunPaused"))
    clock.tick()
    timed_log.append_many([make_event("a", "RunStarted"), make_event("b", "RunResumed")])
    clock.tick()
    assert timed_log.get_lag() == timedelta(seconds=2)
    follower.fold_next_events("b")
    assert timed_log.get_lag() == timedelta(seconds=1)
    clock.tick(timedelta(seconds=-30))
    assert timed_log.get_lag() == timedelta(0)
    clock.tick(timedelta(seconds=30))
    follower.fold_next_events("a")
    assert timed_log.get_lag() == timedelta(0)


@pytest.mark.invariant("E14")
def test_alarms_are_raised_once_per_episode(timed_log: EventLog, clock: FakeClock) -> None:
    """Each episode raises one alarm above five seconds, one above ten, and one when the lag is normal again."""
    raised = list[tuple[LagLevel, float]]()

    def record_alarm(level: LagLevel, lag: timedelta) -> None:
        raised.append((level, lag.total_seconds()))

    follower, number = Follower(timed_log), 0

    def catch_up_at_lag(seconds: float) -> list[tuple[LagLevel, float]]:
        """Catch up with a log whose oldest unfolded event has this age."""
        nonlocal number
        number += 1
        raised.clear()
        timed_log.append(make_event("r", "StepStarted", f"s{number}"))
        clock.tick(timedelta(seconds=seconds))
        assert follower.catch_up(record_alarm) == 1
        return list(raised)

    assert [catch_up_at_lag(seconds) for seconds in (0, 1, 1.000001, 5)] == [[], [], [], []]
    assert catch_up_at_lag(5.000001) == [(LagLevel.HIGH, 5.000001)]
    assert [catch_up_at_lag(seconds) for seconds in (9, 10, 2)] == [[], [], []]
    assert catch_up_at_lag(10.000001) == [(LagLevel.RESYNC, 10.000001)]
    assert [catch_up_at_lag(seconds) for seconds in (60, 7)] == [[], []]
    assert catch_up_at_lag(1) == [(LagLevel.NORMAL, 1)]
    assert catch_up_at_lag(1) == []
    assert catch_up_at_lag(60) == [(LagLevel.HIGH, 60), (LagLevel.RESYNC, 60)]
    check_current(timed_log)


@pytest.mark.invariant("E13", "E14")
def test_resync_skips_gaps_without_marking_stale(
    url: str, timed_log: EventLog, clock: FakeClock, backdoor: sa.Engine
) -> None:
    """Above ten seconds of lag, `catch_up` folds under the run's lock, so a gap never marks the snapshot stale."""
    append_with_a_gap(timed_log, backdoor)
    clock.tick(timedelta(seconds=11))
    stale = list[object]()

    def record_staleness(_connection: object, _record: object) -> None:
        """Read the snapshot between the follower's transactions."""
        stale.append(getattr(reader.get_snapshot("r"), "stale_since", None))

    raised = list[LagLevel]()
    with open_part(EventReader, url) as reader:
        sa.event.listen(timed_log.engine, "checkin", record_staleness)
        assert Follower(timed_log).catch_up(lambda level, _lag: raised.append(level)) == 6
    sa.event.remove(timed_log.engine, "checkin", record_staleness)
    assert set(stale) == {None}
    assert raised == [LagLevel.HIGH, LagLevel.RESYNC]
    assert (stored_snapshot(timed_log).stale_since, missing_events(backdoor)) == (None, [1])


# Folds of a run.


@pytest.mark.invariant("L6")
def test_run_with_a_lease_folds_its_events_after_each_write(ledger: Ledger) -> None:
    """No follower runs. An outage of one fold fails no write, and the next fold takes its events too."""
    outages = iter([False, True])

    def begin(_connection: sa.Connection) -> None:
        if any(frame.name == "fold_run" for frame in traceback.extract_stack()) and next(outages, False):
            raise LedgerUnavailable("the ledger's database is busy or out of reach: planned")

    sa.event.listen(ledger.engine, "begin", begin)
    with Lease.held(ledger.engine, ledger.origin.engine_run_id, duration=timedelta(hours=1)) as lease:
        leased, folded = Ledger(ledger.engine, origin=ledger.origin, lease=lease), list[int]()
        lease.claim([key()])
        for engine_run_id in ("r1", "r2", "r3"):
            leased.registrations.register(sealed_runs(run(key(), engine_run_id)))
            folded.append(stored_snapshot(ledger.events, ledger.origin.engine_run_id).last_event_seq)
    assert folded == [1, 1, 3]


@pytest.mark.invariant("L6")
def test_verdict_of_a_run_with_a_lease_is_folded(ledger: Ledger) -> None:
    """Its event is written by the statement of the verdict, and not with the other events."""
    with Lease.held(ledger.engine, ledger.origin.engine_run_id, duration=timedelta(hours=1)) as lease:
        lease.claim([key()])
        leased = Ledger(ledger.engine, origin=ledger.origin, lease=lease)
        (registered,) = registered_runs(leased, key(), "r1")
        leased.verdicts.record([acceptance(registered)])
        engine_run_id = ledger.origin.engine_run_id
        assert (
            stored_snapshot(leased.events, engine_run_id).last_event_seq
            == last_seq(leased.events, engine_run_id)
            == 2
        )
