"""Tests what `EventReader` returns for current runs: snapshots, steps, last events and prefix matches."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from ads_pipeline.domain.errors import EventsNotFound
from ads_pipeline.domain.run_snapshots import RunStatus, StepStatus
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.testing.event_strategies import EventSpec, make_event, make_history
from ads_pipeline_tests.ledger.builders import FakeClock, open_part
from ads_pipeline_tests.ledger.events.builders import complete_run, run_once_after_query

RUN = "run-1"
TWICE: list[EventSpec] = [("StepStarted", "s1"), ("StepStarted", "s2"), ("StepCompleted", "s1")]


@pytest.fixture
def reader(url: str, log: EventLog) -> Iterator[EventReader]:
    with open_part(EventReader, url, read_only=True) as opened:
        yield opened


def test_current_run_includes_unfolded_events(log: EventLog, reader: EventReader) -> None:
    """Each step has the status of its last event, folded or not. Only steps with a requested status are returned."""
    log.append_many([make_event(RUN, "StepStarted", step) for step in ("a", "b", "c")])
    Follower(log).catch_up()
    log.append_many(
        [
            make_event(RUN, "StepFailed", "b"),
            make_event(RUN, "StepStarted", "d"),
            make_event(RUN, "StepCompleted", "c"),
        ]
    )
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
        assert reader.get_current_run(RUN, [status])[1] == {
            step: each for step, each in steps.items() if each is status
        }


def test_current_run_is_a_consistent_read(log: EventLog, reader: EventReader) -> None:
    """A fold between two statements of the reader does not change the result."""
    log.append_many([make_event(RUN, "StepStarted", "a"), make_event(RUN, "StepStarted", "b")])
    Follower(log).catch_up()
    log.append_many([make_event(RUN, "StepCompleted", "a"), make_event(RUN, "RunCompleted")])
    run_once_after_query(reader.engine, "run_head", lambda: Follower(log).catch_up())
    snapshot, steps = reader.get_current_run(RUN)
    assert reader.list_lagging_runs() == []
    assert snapshot.status is RunStatus.COMPLETED
    assert snapshot.steps == {StepStatus.RUNNING: 1, StepStatus.SUCCEEDED: 1}
    assert steps == {"a": StepStatus.SUCCEEDED, "b": StepStatus.RUNNING}


@pytest.mark.invariant("E10")
def test_current_snapshot_is_a_consistent_read(log: EventLog, reader: EventReader) -> None:
    """A fold between the reads does not change the snapshot, and no step is counted twice."""
    log.append_many([make_event("r", "StepStarted", "s1"), make_event("r", "StepStarted", "s2")])
    follower = Follower(log)
    follower.catch_up()
    log.append(make_event("r", "StepCompleted", "s1"))
    run_once_after_query(reader.engine, "run_head", follower.catch_up)
    seen = reader.get_current_snapshot("r")
    assert seen == log.project_snapshot("r") == log.get_snapshot("r")
    assert seen.steps == {StepStatus.RUNNING: 1, StepStatus.SUCCEEDED: 1}


@pytest.mark.invariant("E9")
def test_project_snapshot_is_a_consistent_read(
    log: EventLog, reader: EventReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is retired between two pages is still folded from all its events."""
    monkeypatch.setattr("ads_pipeline.ledger.events.event_reader._EVENTS_PER_PAGE", 2)
    snapshot = complete_run(log)
    run_once_after_query(reader.engine, "run_events", lambda: log.retire("over"))
    assert reader.project_snapshot("over") == snapshot
    assert snapshot.status is RunStatus.COMPLETED
    with pytest.raises(EventsNotFound):
        reader.project_snapshot("over")


def test_unknown_run_raises_events_not_found(reader: EventReader) -> None:
    """An unknown run raises EventsNotFound instead of an empty snapshot."""
    with pytest.raises(EventsNotFound):
        reader.get_current_run("nobody")


def test_last_step_events_have_any_type(log: EventLog, reader: EventReader) -> None:
    """The last event of a step may have any type. Unknown steps and events of other runs are left out."""
    log.append_many(
        [
            make_event(RUN, "StepStarted", "a"),
            make_event(RUN, "StepStarted", "b"),
            make_event(RUN, "NoteTaken", "a", event_data="last"),
        ]
    )
    log.append(make_event("run-2", "StepFailed", "b"))
    last_events = reader.get_last_step_events(RUN, ["a", "b", "c"])
    assert {step: (each.run_seq, each.event.event_type) for step, each in last_events.items()} == {
        "a": (3, "NoteTaken"),
        "b": (2, "StepStarted"),
    }
    assert last_events["a"].event.event_data == "last"
    assert reader.get_last_step_events(RUN, []) == {}


def test_find_runs_matches_the_prefix_literally(log: EventLog, reader: EventReader) -> None:
    """Matches come in byte order with an exact match first. SQL wildcards in the prefix match only themselves."""
    names = ["Run-1", "run", "run-1", "run-10", "run-1:z", "run-1_", "run-2", "run_1", "runz"]
    log.append_many([make_event(name, "RunStarted") for name in names])
    assert reader.find_runs("run-1") == ["run-1", "run-10", "run-1:z", "run-1_"]
    assert reader.find_runs("run-1", limit=2) == ["run-1", "run-10"]
    assert reader.find_runs("run_") == ["run_1"]
    assert reader.find_runs("run%") == []
    assert reader.find_runs("") == sorted(names)


def test_only_retirable_runs_are_listed(url: str, clock: FakeClock) -> None:
    """Retirable runs ended before the moment, are folded to the end and still have events."""
    with open_part(EventLog, url, clock=clock) as log:
        log.append_many([make_event(engine_run_id, "RunCompleted") for engine_run_id in ("gone", "late", "old")])
        log.append(make_event("open", "RunStarted"))
        clock.tick()
        log.append(make_event("new", "RunCompleted"))
        Follower(log).catch_up()
        log.retire("gone")
        log.append(make_event("late", "NoteTaken"))
        assert [(head.engine_run_id, head.last_seq) for head in log.list_retirable_runs(clock.now)] == [("old", 1)]
        later = clock.now + timedelta(microseconds=1)
        assert log.retire_before(later) == ["new", "old"]
        assert log.list_retirable_runs(later) == []


def test_step_events_are_found_in_all_runs(timed_log: EventLog, clock: FakeClock) -> None:
    """Events of a step come oldest first from folded and unfolded runs, without retired runs and other steps."""
    for number in range(4):
        clock.tick()
        timed_log.append_many([make_event(f"r{number}", "RunStarted"), *make_history(f"r{number}", TWICE)])
        if number == 0:
            timed_log.append(make_event("r0", "RunCompleted"))
        if number < 3:
            Follower(timed_log).catch_up()
    timed_log.retire("r0")
    found = [(each.event.engine_run_id, each.run_seq) for each in timed_log.find_step_events("s1")]
    assert found == [(f"r{number}", seq) for number in (1, 2, 3) for seq in (2, 4)]
    assert [(each.event.engine_run_id, each.run_seq) for each in timed_log.find_step_events("s1", limit=3)] == found[
        -3:
    ]
    assert timed_log.find_step_events("s3") == []
    assert timed_log.find_step_events("s1")[0] == timed_log.fetch("r1")[1]
