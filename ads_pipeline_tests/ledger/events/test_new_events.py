"""Reading the new events of all runs from a position on."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.new_events import COMMIT_DELAY, LogPosition, read_events_after, read_position
from ads_pipeline.testing.event_strategies import make_event
from ads_pipeline_tests.ledger.builders import FakeClock

TYPES = frozenset({"StepCompleted"})
STEPS = timedelta(seconds=1), timedelta(minutes=4), COMMIT_DELAY + timedelta(minutes=1), timedelta(days=1)


def read(log: EventLog, position: LogPosition, now: datetime) -> tuple[list[str], LogPosition]:
    events, position = read_events_after(log.engine, position, TYPES, now=now)
    return [str(logged.event.step_id) for logged in events], position


@pytest.mark.invariant("O7")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(STEPS), st.booleans()), max_size=12))
def test_every_event_is_read_once(
    timed_log: EventLog, clock: FakeClock, appends: list[tuple[str, timedelta, bool]]
) -> None:
    """Whenever the reader looks: also runs that were silent for long, and events of other types in between."""
    example = uuid.uuid4()  # all examples share one log
    position, read_steps, appended = read_position(timed_log.engine, clock.now), list[str](), list[str]()
    for number, (run, pause, looks) in enumerate(appends):
        clock.tick(pause)
        step = f"s{number}"
        timed_log.append_many(
            [
                make_event(f"{run}-{example}", "StepStarted", step_id=step),
                make_event(f"{run}-{example}", "StepCompleted", step_id=step),
            ]
        )
        appended.append(step)
        if looks:
            found, position = read(timed_log, position, clock.now)
            read_steps += found
    found, position = read(timed_log, position, clock.now)
    assert read_steps + found == appended
    assert read(timed_log, position, clock.now)[0] == []


def test_event_that_becomes_visible_late_is_read(timed_log: EventLog, clock: FakeClock, backdoor: sa.Engine) -> None:
    """Its transaction was slow, so that its time is before that of events that were read already."""
    position = read_position(timed_log.engine, clock.now)
    timed_log.append(make_event("a", "StepCompleted", step_id="first"))
    found, position = read(timed_log, position, clock.now)
    assert found == ["first"]
    clock.tick(-COMMIT_DELAY / 2)
    timed_log.append(make_event("b", "StepCompleted", step_id="late"))
    assert read(timed_log, position, clock.now + COMMIT_DELAY)[0] == ["late"]


def test_clock_that_was_ahead_hides_no_event(timed_log: EventLog, clock: FakeClock) -> None:
    """Events that follow have earlier times, for hours."""
    now = clock.now
    clock.tick(timedelta(hours=5))
    timed_log.append(make_event("a", "StepCompleted", step_id="ahead"))
    position = read_position(timed_log.engine, now)
    clock.now = now
    timed_log.append(make_event("b", "StepCompleted", step_id="right"))
    found, position = read(timed_log, position, now)
    assert found == ["right"]
    assert read(timed_log, position, now)[0] == []


def test_position_of_an_empty_log_is_its_beginning(timed_log: EventLog, clock: FakeClock) -> None:
    """Every event that follows is new."""
    position = read_position(timed_log.engine, clock.now)
    assert position == LogPosition()
    timed_log.append(make_event("a", "StepCompleted", step_id="first"))
    assert read(timed_log, position, datetime.now(UTC))[0] == ["first"]
