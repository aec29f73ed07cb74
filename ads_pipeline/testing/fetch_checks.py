"""Checks of fetching: pages, times, round trips and snapshots."""

from dataclasses import fields, replace
from itertools import cycle, pairwise

from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.errors import EventsNotFound
from ads_pipeline.domain.run_events import MAX_DATA_LENGTH, Event, idempotency_key
from ads_pipeline.domain.run_snapshots import RunEventStore, RunStatus, StepStatus
from ads_pipeline.testing import event_strategies as builders
from ads_pipeline.testing.check_registry import LARGEST_PAGE, LATER, PROPERTY, histories, holds, raises, read_events
from ads_pipeline.testing.event_strategies import make_event, new_engine_run_id


@holds("E7")
def check_page_starts_after_after_seq(store: RunEventStore) -> None:
    """A page excludes the event at `after_seq`. After the last event it is empty."""
    store.append_many(builders.make_completions(engine_run_id := new_engine_run_id(), 5))
    events = store.fetch(engine_run_id)
    assert len(events) == 5
    for number, logged in enumerate(events, start=1):
        assert store.fetch(engine_run_id, after_seq=logged.run_seq) == events[number:]
    assert store.fetch(engine_run_id, after_seq=events[-1].run_seq + 1_000) == []
    assert store.fetch(engine_run_id, after_seq=0, limit=2) == events[:2]


@holds("E7")
def check_default_page_has_a_thousand_events(store: RunEventStore) -> None:
    """`fetch` returns 1,000 events by default, and more with a larger limit."""
    store.append_many(builders.make_completions(engine_run_id := new_engine_run_id(), 1_001))
    assert [each.event.event_data for each in store.fetch(engine_run_id)] == list(range(1_000))
    assert len(store.fetch(engine_run_id, limit=LARGEST_PAGE)) == 1_001


@holds("E7")
def check_invalid_bounds_are_refused(store: RunEventStore) -> None:
    """A limit below 1 or above the maximum, and a negative `after_seq`, raise ValueError for any run."""
    for after_seq, limit in ((0, 0), (0, -1), (0, LARGEST_PAGE + 1), (-1, 1), (-(2**40), 1)):
        store.append(make_event(engine_run_id := new_engine_run_id(), "RunStarted"))
        for each in (engine_run_id, new_engine_run_id()):
            with raises(ValueError, r"\d"):
                store.fetch(each, after_seq=after_seq, limit=limit)


@holds("E8")
@PROPERTY
@given(count=st.integers(0, 12), limits=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def check_pages_of_any_size_contain_each_event_once(store: RunEventStore, count: int, limits: list[int]) -> None:
    """Reading page by page after the last `run_seq` returns each event once."""
    store.append_many(builders.make_completions(engine_run_id := new_engine_run_id(), count))
    pages = list[object]()
    after_seq = 0
    for limit in cycle(limits):
        page = store.fetch(engine_run_id, after_seq=after_seq, limit=limit)
        if not page:
            break
        assert len(page) <= limit
        after_seq = page[-1].run_seq
        pages += page
    assert pages == store.fetch(engine_run_id, limit=LARGEST_PAGE)
    assert len(pages) == count


@holds("E15")
def check_store_dates_events_by_its_own_clock(store: RunEventStore) -> None:
    """`persisted_at` has a time zone and never decreases. `emitted_at` is stored as the producer wrote it."""
    emitted = [
        LATER,
        "1999-12-31T23:59:59.9-12:00",
        builders.EMITTED_AT,
        "20260301T100000Z",
        "2026-03-01T10+00:00",
    ]
    engine_run_id = new_engine_run_id()
    for number, emitted_at in enumerate(emitted, start=1):
        store.append(make_event(engine_run_id, "StepStarted", "s1", logical_attempt_id=number, emitted_at=emitted_at))
    logged = store.fetch(engine_run_id)
    assert [each.event.emitted_at for each in logged] == emitted
    assert all(each.persisted_at.utcoffset() is not None for each in logged)
    assert all(earlier.persisted_at <= later.persisted_at for earlier, later in pairwise(logged))
    assert logged[-1].persisted_at.year < 2999
    assert store.fetch(engine_run_id) == logged


@holds()
def check_runs_are_independent(store: RunEventStore) -> None:
    """Each run has its own order, keys, occurrences and snapshot, also if run ids differ only by case."""
    lower = new_engine_run_id()
    upper = lower.upper()
    event = make_event(lower, "RunPaused")
    store.append(event)
    assert (read_events(store, upper), store.get_snapshot(upper)) == ([], None)
    store.append_many(
        [make_event(upper, "RunStarted"), replace(event, engine_run_id=upper), make_event(lower, "RunStarted")]
    )
    assert [each.event_type for each in read_events(store, lower)] == ["RunPaused", "RunStarted"]
    assert read_events(store, upper)[1:] == [replace(event, engine_run_id=upper, logical_attempt_id=1)]
    assert [store.project_snapshot(each).status for each in (lower, upper)] == [
        RunStatus.RUNNING,
        RunStatus.PAUSED,
    ]
    assert {each.event.engine_run_id for each in store.fetch(lower)} == {lower}


# Round trips.


@holds("E18")
@PROPERTY
@given(event=builders.full_events)
def check_event_comes_back_unchanged(store: RunEventStore, event: Event) -> None:
    """The payload and all other fields come back equal, with the standard idempotency key."""
    event = replace(event, engine_run_id=new_engine_run_id())
    store.append(event)
    (logged,) = store.fetch(event.engine_run_id)
    assert {each.name: getattr(logged.event, each.name) for each in fields(event) if each.compare} == {
        each.name: getattr(event, each.name) for each in fields(event) if each.compare
    }
    assert logged.idempotency_key == idempotency_key(
        engine_run_id=event.engine_run_id,
        step_id=event.step_id,
        logical_attempt_id=event.logical_attempt_id or 1,
        event_type=event.event_type,
        plan_version=event.plan_version,
    )


@holds("E18")
def check_longest_payload_is_stored(store: RunEventStore) -> None:
    """The limit counts characters, not bytes."""
    event = make_event(engine_run_id := new_engine_run_id(), "RunStarted", event_data="😀" * (MAX_DATA_LENGTH - 2))
    store.append(event)
    assert read_events(store, engine_run_id) == [event]


@holds("E17")
def check_first_payload_is_kept(store: RunEventStore) -> None:
    """Another payload for a known key is reported each time and never stored. The snapshot does not change."""
    first = make_event(engine_run_id := new_engine_run_id(), "StepCompleted", "s1", event_data={"a": 1, "b": [1.0]})
    store.append(first)
    before = store.project_snapshot(engine_run_id)
    other = make_event(engine_run_id, "StepCompleted", "s1", event_data={"a": 1, "b": [1]})
    assert [store.append(other).payload_conflict for _ in range(2)] == [True, True]
    same = make_event(engine_run_id, "StepCompleted", "s1", event_data={"b": [1.0], "a": 1})
    assert not store.append(same).payload_conflict
    assert read_events(store, engine_run_id) == [first]
    assert store.project_snapshot(engine_run_id) == before


# Snapshots.


@holds("E9")
@PROPERTY
@given(specs=histories, cuts=st.lists(st.integers(0, 12), max_size=4), overlap=st.integers(0, 3))
def check_snapshot_equals_the_fold_of_any_batches(
    store: RunEventStore, specs: list[builders.EventSpec], cuts: list[int], overlap: int
) -> None:
    """Folding any batches, also with repeated events, gives the snapshot of the store."""
    store.append_many(builders.make_history(engine_run_id := new_engine_run_id(), specs))
    logged = store.fetch(engine_run_id)
    assert store.project_snapshot(engine_run_id) == builders.fold_batches(
        engine_run_id, builders.split_events(logged, cuts, overlap=overlap)
    )


@holds("E9", "E10", "E12")
@PROPERTY
@given(parts=st.lists(histories, min_size=1, max_size=4))
def check_repeated_projection_counts_each_event_once(
    store: RunEventStore, parts: list[list[builders.EventSpec]]
) -> None:
    """Repeated projections count each event once. A stored snapshot is the fold of some earlier events."""
    engine_run_id, last, count = new_engine_run_id(), 0, 0
    ended: RunStatus | None = None
    for part in parts:
        store.append_many(builders.make_history(engine_run_id, part, after=count))
        count += len(part)
        stored = store.get_snapshot(engine_run_id)
        if stored is not None:
            assert last <= stored.last_event_seq
        projected = store.project_snapshot(engine_run_id)
        logged = store.fetch(engine_run_id)
        assert projected == store.project_snapshot(engine_run_id) == builders.fold_batches(engine_run_id, [logged])
        assert ended in {None, projected.status}
        ended = projected.status if projected.status.is_terminal else None
        stored = store.get_snapshot(engine_run_id)
        if stored is not None:
            assert last <= stored.last_event_seq <= logged[-1].run_seq
            last = stored.last_event_seq
            earlier = [each for each in logged if each.run_seq <= last]
            assert replace(stored, stale_since=None) == builders.fold_batches(engine_run_id, [earlier])


@holds("E10")
def check_unknown_run_has_no_snapshot(store: RunEventStore) -> None:
    """An unknown run has no snapshot and no events, and `project_snapshot` raises EventsNotFound."""
    engine_run_id = new_engine_run_id()
    assert store.get_snapshot(engine_run_id) is None
    assert store.fetch(engine_run_id) == []
    with raises(EventsNotFound, engine_run_id):
        store.project_snapshot(engine_run_id)
    assert store.get_snapshot(engine_run_id) is None


@holds("E11")
def check_unknown_event_types_only_advance_the_watermark(store: RunEventStore) -> None:
    """Events of unknown types are stored and change only `last_event_seq`."""
    store.append(make_event(engine_run_id := new_engine_run_id(), "NoteTaken", "s9"))
    first = store.project_snapshot(engine_run_id)
    assert (first.status, first.steps, first.started_at) == (RunStatus.PENDING, {}, None)
    store.append_many([make_event(engine_run_id, "StepCompleted", "s1"), make_event(engine_run_id, "RunCompleted")])
    before = store.project_snapshot(engine_run_id)
    unknown = [
        make_event(engine_run_id, "NoteTaken"),
        make_event(engine_run_id, "notetaken"),
        make_event(engine_run_id, "runstarted"),
    ]
    appended = store.append_many(unknown)
    assert store.project_snapshot(engine_run_id) == replace(before, last_event_seq=appended[-1].run_seq)
    assert read_events(store, engine_run_id)[-3:] == unknown


@holds("E12")
def check_final_status_does_not_change(store: RunEventStore) -> None:
    """Events after the end are stored, change nothing and count as one inconsistency each."""
    for end in ("RunCompleted", "RunFailed", "RunCancelled"):
        engine_run_id = new_engine_run_id()
        store.append_many(
            [
                make_event(engine_run_id, "RunStarted"),
                make_event(engine_run_id, "StepCompleted", "s1"),
                make_event(engine_run_id, end),
            ]
        )
        ended = store.project_snapshot(engine_run_id)
        assert ended.status.is_terminal
        assert ended.steps == {StepStatus.SUCCEEDED: 1}
        late = [make_event(engine_run_id, each, logical_attempt_id=2) for each in builders.RUN_EVENT_TYPES]
        late += [make_event(engine_run_id, each, "s1", logical_attempt_id=2) for each in builders.STEP_EVENT_TYPES]
        appended = [*store.append_many(late), *store.append_many(late)]
        expected = replace(ended, last_event_seq=appended[-1].run_seq, inconsistencies=len(late))
        assert store.project_snapshot(engine_run_id) == store.project_snapshot(engine_run_id) == expected
