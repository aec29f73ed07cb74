"""What `EventReader` says of a run as of now: its steps, the last words about them, and which run a prefix means."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.run_snapshots import RunStatus, StepStatus
from ads_pipeline.errors import EventsNotFound
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline_tests.ledger.builders import FakeClock
from ads_pipeline_tests.run_event_stores.builders import told

RUN = "run-1"


@pytest.fixture
def reader(url: str, log: EventLog) -> Iterator[EventReader]:
    with EventReader.opened(url) as opened:
        yield opened


def test_steps_are_as_their_last_events_say(log: EventLog, reader: EventReader) -> None:
    """Projected or not, each step is what came last of it, and only those that are asked for are given."""
    log.append_many([told(RUN, "StepStarted", step) for step in ("a", "b", "c")])
    Follower(log).catch_up()
    log.append_many([told(RUN, "StepFailed", "b"), told(RUN, "StepStarted", "d"), told(RUN, "StepCompleted", "c")])
    steps = {
        "a": StepStatus.RUNNING,
        "b": StepStatus.FAILED,
        "c": StepStatus.SUCCEEDED,
        "d": StepStatus.RUNNING,
    }
    snapshot, found = reader.get_current_run(RUN)
    assert list(found.items()) == list(steps.items())
    assert snapshot == reader.get_current_snapshot(RUN) == reader.project_snapshot(RUN)
    for status in StepStatus:
        assert reader.get_current_run(RUN, [status])[1] == {step: each for step, each in steps.items() if each is status}


def test_a_run_is_seen_as_of_one_moment(log: EventLog, reader: EventReader) -> None:
    """Somebody who projects between two of the reader's statements changes nothing of what it is told."""
    log.append_many([told(RUN, "StepStarted", "a"), told(RUN, "StepStarted", "b")])
    Follower(log).catch_up()
    log.append_many([told(RUN, "StepCompleted", "a"), told(RUN, "RunCompleted")])
    meanwhile = once(lambda: Follower(log).catch_up())
    sa.event.listen(reader.engine, "after_cursor_execute", meanwhile)
    snapshot, steps = reader.get_current_run(RUN)
    sa.event.remove(reader.engine, "after_cursor_execute", meanwhile)
    assert reader.list_lagging_runs() == []
    assert snapshot.status is RunStatus.COMPLETED
    assert snapshot.steps == {StepStatus.RUNNING: 1, StepStatus.SUCCEEDED: 1}
    assert steps == {"a": StepStatus.SUCCEEDED, "b": StepStatus.RUNNING}


def once(happens: Callable[[], object]) -> Callable[..., None]:
    """Happens behind the first question for a snapshot."""
    waiting = [happens]

    def listener(_connection: sa.Connection, _cursor: Any, statement: str, *_more: Any) -> None:
        if "FROM run_snapshots" in statement and waiting:
            waiting.pop()()

    return listener


def test_a_run_without_events_cannot_be_opened(reader: EventReader) -> None:
    """It is told apart from one in which nothing happened to steps."""
    with pytest.raises(EventsNotFound):
        reader.get_current_run("nobody")


def test_the_last_words_about_a_step_are_its_last_event(log: EventLog, reader: EventReader) -> None:
    """Of whatever type it is; a step of which nothing is known, and what was said of another run, are left out."""
    log.append_many(
        [told(RUN, "StepStarted", "a"), told(RUN, "StepStarted", "b"), told(RUN, "NoteTaken", "a", event_data="last")]
    )
    log.append(told("run-2", "StepFailed", "b"))
    words = reader.get_last_step_events(RUN, ["a", "b", "c"])
    assert {step: (each.run_seq, each.event.event_type) for step, each in words.items()} == {
        "a": (3, "NoteTaken"),
        "b": (2, "StepStarted"),
    }
    assert words["a"].event.event_data == "last"
    assert reader.get_last_step_events(RUN, []) == {}


def test_a_prefix_finds_the_runs_that_begin_so(log: EventLog, reader: EventReader) -> None:
    """In the order of their bytes, the whole name first; signs that mean something to databases mean themselves."""
    names = ["Run-1", "run", "run-1", "run-10", "run-1:z", "run-1_", "run-2", "run_1", "runz"]
    log.append_many([told(name, "RunStarted") for name in names])
    assert reader.find_runs("run-1") == ["run-1", "run-10", "run-1:z", "run-1_"]
    assert reader.find_runs("run-1", limit=2) == ["run-1", "run-10"]
    assert reader.find_runs("run_") == ["run_1"]
    assert reader.find_runs("run%") == []
    assert reader.find_runs("") == sorted(names)


def test_only_what_may_be_retired_is_counted(url: str, clock: FakeClock) -> None:
    """The runs that ended before a moment, are projected to the end and still have their events."""
    with EventLog.opened(url, clock=clock) as log:
        log.append_many([told(run_id, "RunCompleted") for run_id in ("gone", "late", "old")])
        log.append(told("open", "RunStarted"))
        clock.tick()
        log.append(told("new", "RunCompleted"))
        Follower(log).catch_up()
        log.retire("gone")
        log.append(told("late", "NoteTaken"))
        assert [(head.run_id, head.last_seq) for head in log.list_retirable_runs(clock.now)] == [("old", 1)]
        later = clock.now + timedelta(microseconds=1)
        assert log.retire_before(later) == ["new", "old"]
        assert log.list_retirable_runs(later) == []
