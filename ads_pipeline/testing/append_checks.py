"""Checks of appending: numbering, duplicates, occurrences, and one plan per run."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.errors import EventsNotFound, RunClosed
from ads_pipeline.domain.run_events import AppendResult, Event
from ads_pipeline.domain.run_snapshots import RunEventStore, RunStatus
from ads_pipeline.testing import event_strategies as builders
from ads_pipeline.testing.check_registry import LATER, PROPERTY, append_all, holds, raises, read_events
from ads_pipeline.testing.event_strategies import make_event, new_engine_run_id


@holds("E2", "E4", "E5", "E17")
@PROPERTY
@given(batches=st.lists(st.lists(builders.event_copies, min_size=1, max_size=4), max_size=6))
def check_first_event_of_each_key_is_stored(store: RunEventStore, batches: list[list[builders.EventCopy]]) -> None:
    """A new key gets the next `run_seq`. A known key returns its `run_seq` and whether the payload differs."""
    engine_run_id, first, positions = new_engine_run_id(), dict[str, Event](), dict[str, int]()
    for batch in batches:
        events = [make_event(engine_run_id, *spec, logical_attempt_id=n, event_data=data) for spec, n, data in batch]
        for event, appended in zip(events, append_all(store, events), strict=True):
            key = event.idempotency_key
            known = key in first
            conflict = first.setdefault(key, event).payload != event.payload
            run_seq = positions.setdefault(key, appended.run_seq)
            assert appended == AppendResult(run_seq=run_seq, idempotent=known, payload_conflict=conflict)
            assert appended.persisted is not appended.idempotent
    assert all(earlier < later for earlier, later in pairwise(positions.values()))
    logged = store.fetch(engine_run_id)
    assert [each.run_seq for each in logged] == list(positions.values())
    assert [each.event for each in logged] == list(first.values())


@holds("E2")
def check_events_are_fetched_in_append_order(store: RunEventStore) -> None:
    """`run_seq` starts above zero and grows, and results come in the order of the call."""
    events = builders.make_completions(engine_run_id := new_engine_run_id(), 5)
    appended = [store.append(events[3]), *store.append_many([events[1], events[4]]), store.append(events[0])]
    positions = [each.run_seq for each in appended]
    assert 0 < positions[0] < positions[1] < positions[2] < positions[3]
    logged = store.fetch(engine_run_id)
    assert [(each.run_seq, each.event) for each in logged] == list(
        zip(positions, (events[3], events[1], events[4], events[0]), strict=True)
    )


@holds("E4", "E5")
def check_repeated_event_keeps_its_run_seq(store: RunEventStore) -> None:
    """A repeated event, or another event with the same key, is acknowledged and not stored."""
    first, second = builders.make_completions(engine_run_id := new_engine_run_id(), 2)
    new = store.append(first)
    assert (new.idempotent, new.persisted, new.payload_conflict) == (False, True, False)
    store.append(second)
    again = AppendResult(run_seq=new.run_seq, idempotent=True)
    assert not again.persisted
    restarted = make_event(
        engine_run_id, "StepCompleted", "step-0", engine_attempt_id=7, event_data=0, emitted_at=LATER
    )
    assert [store.append(first), store.append(restarted)] == [again, again]
    assert read_events(store, engine_run_id) == [first, second]


@holds("E4")
def check_fetched_events_are_duplicates(store: RunEventStore) -> None:
    """Appending fetched events stores nothing, also for events that the store numbered."""
    engine_run_id = new_engine_run_id()
    store.append_many(
        [
            *builders.make_completions(engine_run_id, 2),
            make_event(engine_run_id, "RunPaused"),
            make_event(engine_run_id, "RunPaused"),
        ]
    )
    logged = store.fetch(engine_run_id)
    again = store.append_many([each.event for each in logged])
    assert again == [AppendResult(run_seq=each.run_seq, idempotent=True) for each in logged]
    assert store.fetch(engine_run_id) == logged


@holds("E4")
def check_duplicates_within_one_call_are_detected(store: RunEventStore) -> None:
    """A known event, and a repeated one of the same call, return the `run_seq` of the first."""
    old, new, newest = builders.make_completions(engine_run_id := new_engine_run_id(), 3)
    old_seq = store.append(old).run_seq
    appended = store.append_many([new, old, new, newest, replace(newest, event_data="other")])
    assert [each.idempotent for each in appended] == [False, True, True, False, True]
    assert [each.payload_conflict for each in appended] == [False, False, False, False, True]
    assert appended[1].run_seq == old_seq < appended[0].run_seq == appended[2].run_seq < appended[3].run_seq
    assert appended[4].run_seq == appended[3].run_seq
    assert read_events(store, engine_run_id) == [old, new, newest]


@holds()
def check_empty_call_returns_an_empty_list(store: RunEventStore) -> None:
    """`append_many` without events returns an empty list."""
    assert store.append_many([]) == []


@holds()
def check_append_many_is_atomic(store: RunEventStore) -> None:
    """One refused event leaves all known and new runs of the call unchanged."""
    for bad_at in range(3):
        old, new = new_engine_run_id(), new_engine_run_id()
        store.append(make_event(old, "RunStarted"))
        events = [make_event(old, "RunPaused"), make_event(new, "RunStarted")]
        events.insert(bad_at, make_event(old, "StepStarted", "s1", plan_version="plan-2"))
        with raises(RunClosed):
            store.append_many(events)
        assert [each.event_type for each in read_events(store, old)] == ["RunStarted"]
        assert read_events(store, new) == []
        with raises(EventsNotFound):
            store.project_snapshot(new)


@holds()
def check_run_has_one_plan(store: RunEventStore) -> None:
    """The first event sets the plan. An event with another plan is refused, alone or in the same call."""
    engine_run_id, new_run = new_engine_run_id(), new_engine_run_id()
    first = make_event(engine_run_id, "RunStarted")
    store.append(first)
    with raises(RunClosed, engine_run_id):
        store.append(replace(first, plan_version="plan-2"))
    with raises(RunClosed):
        store.append_many(
            [make_event(new_run, "RunStarted"), make_event(new_run, "RunPaused", plan_version="plan-2")]
        )
    assert (read_events(store, engine_run_id), read_events(store, new_run)) == ([first], [])
    assert store.append(make_event(new_run, "RunStarted", plan_version="plan-2")).persisted


# Repeatable events without a number.


@holds("E4")
def check_each_pause_is_a_separate_event(store: RunEventStore) -> None:
    """A new `event_id` without a number is the next occurrence. The same event is the same occurrence."""
    engine_run_id = new_engine_run_id()
    types = ["RunStarted", "RunPaused", "RunResumed", "RunPaused", "RunResumed", "RunPaused"]
    events = [make_event(engine_run_id, event_type) for event_type in types]
    appended = [*store.append_many(events[:4]), *(store.append(event) for event in events[4:])]
    assert all(each.persisted for each in appended)
    assert [each.logical_attempt_id for each in read_events(store, engine_run_id)] == [1, 1, 1, 2, 2, 3]
    again = [AppendResult(run_seq=each.run_seq, idempotent=True) for each in appended]
    assert [store.append(event) for event in events] == store.append_many(events) == again
    assert store.project_snapshot(engine_run_id).status is RunStatus.PAUSED
    assert store.project_snapshot(engine_run_id).inconsistencies == 0


@holds("E4", "E17")
def check_pause_is_identified_by_its_event_id(store: RunEventStore) -> None:
    """The same `event_id` with other data is a conflict and not another pause, also within one call."""
    one, two = (
        make_event(engine_run_id := new_engine_run_id(), "RunPaused", event_data="why"),
        make_event(engine_run_id, "RunPaused"),
    )
    appended = store.append_many([one, one, two, replace(one, event_data="other"), two])
    assert [each.persisted for each in appended] == [True, False, True, False, False]
    assert [each.payload_conflict for each in appended] == [False, False, False, True, False]
    assert read_events(store, engine_run_id) == [one.with_occurrence(1), two.with_occurrence(2)]


@holds("E4")
@PROPERTY
@given(order=st.lists(st.integers(0, 5), max_size=12))
def check_occurrences_are_numbered_by_type(store: RunEventStore, order: list[int]) -> None:
    """Events of one type are numbered in the order of their first append."""
    engine_run_id = new_engine_run_id()
    pool = [make_event(engine_run_id, each) for each in ("RunPaused", "SignalRejected") for _ in range(3)]
    for index in order:
        store.append(pool[index])
    stored = [pool[index] for index in dict.fromkeys(order)]
    same_type = {each: [event for event in stored if event.event_type == each.event_type] for each in stored}
    assert read_events(store, engine_run_id) == [
        each.with_occurrence(same_type[each].index(each) + 1) for each in stored
    ]


@holds("E4")
def check_taken_number_hides_no_event(store: RunEventStore) -> None:
    """If a producer assigned a number in advance, pauses without a number are all stored beside it."""
    for append in (lambda events: [store.append(each) for each in events], store.append_many):
        pauses = [make_event(engine_run_id := new_engine_run_id(), "RunPaused", logical_attempt_id=2)]
        pauses += [make_event(engine_run_id, "RunPaused") for _ in range(3)]
        assert all(each.persisted for each in append(pauses))
        numbers = [each.logical_attempt_id for each in read_events(store, engine_run_id)]
        assert (numbers[0], len(set(numbers))) == (2, 4)
