"""The conformance suite for stores of run events: plain functions that check any `RunEventStore`.

An adapter's own tests call each check with a store:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_store_conforms(check: Check) -> None:
        check(MyStore(...))

`check_store` runs all checks without pytest. The store may already have events: each example uses new run ids. An
adapter tests concurrent writers and crashes itself. Needs `ads-pipeline[testing]`. The environment variable SOAK
multiplies the number of generated examples.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import cycle, pairwise
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.run_events import CONTRACT_VERSION, MAX_DATA_LENGTH, AppendResult, Event, idempotency_key
from ads_pipeline.domain.run_snapshots import RunEventStore, RunStatus, StepStatus
from ads_pipeline.errors import EventsNotFound, RunClosed
from ads_pipeline.testing import run_events as builders
from ads_pipeline.testing.run_events import make_event, new_run_id

Check = Callable[..., None]  # called with a store
CHECKS: Final[list[Check]] = []
INVARIANTS: Final[dict[str, tuple[str, ...]]] = {}  # for each check, the codes of the rules that it tests
LARGEST_PAGE: Final = 10_000
LATER: Final = "2999-01-01T00:00:00-11:30"
PROPERTY: Final = settings(max_examples=20 * int(os.environ.get("SOAK", "1")), deadline=None)
histories = st.lists(builders.event_specs, min_size=1, max_size=12)


def check_store(make_store: Callable[[], RunEventStore]) -> None:
    """Run all checks, each with a store of the factory. Raises AssertionError for the first rule that is broken."""
    for check in CHECKS:
        check(make_store())


def read_events(store: RunEventStore, run_id: str) -> list[Event]:
    return [each.event for each in store.fetch(run_id, limit=LARGEST_PAGE)]


def append_all(store: RunEventStore, events: Sequence[Event]) -> list[AppendResult]:
    """Append one event with `append` and several with `append_many`."""
    return [store.append(events[0])] if len(events) == 1 else store.append_many(events)


def _holds(*invariants: str) -> Callable[[Check], Check]:
    """Add the function to the suite."""

    def register(check: Check) -> Check:
        CHECKS.append(check)
        INVARIANTS[check.__name__] = invariants
        return check

    return register


@contextmanager
def _raises(kind: type[Exception], pattern: str = "") -> Iterator[None]:
    try:
        yield
    except kind as error:
        if not re.search(pattern, str(error)):
            raise AssertionError(f"{error} does not match {pattern}") from error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


@_holds()
def check_contract_version(store: RunEventStore) -> None:
    """The store implements the major version of the contract that this suite tests."""
    assert store.contract_version.split(".")[0] == CONTRACT_VERSION.split(".")[0]


# Appending.


@_holds("E2", "E4", "E5", "E17")
@PROPERTY
@given(batches=st.lists(st.lists(builders.event_copies, min_size=1, max_size=4), max_size=6))
def check_first_event_of_each_key_is_stored(store: RunEventStore, batches: list[list[builders.EventCopy]]) -> None:
    """A new key gets the next `run_seq`. A known key returns its `run_seq` and whether the payload differs."""
    run_id, first, positions = new_run_id(), dict[str, Event](), dict[str, int]()
    for batch in batches:
        events = [make_event(run_id, *spec, logical_attempt_id=n, event_data=data) for spec, n, data in batch]
        for event, appended in zip(events, append_all(store, events), strict=True):
            key = event.idempotency_key
            known = key in first
            conflict = first.setdefault(key, event).payload != event.payload
            run_seq = positions.setdefault(key, appended.run_seq)
            assert appended == AppendResult(run_seq=run_seq, idempotent=known, payload_conflict=conflict)
            assert appended.persisted is not appended.idempotent
    assert all(earlier < later for earlier, later in pairwise(positions.values()))
    logged = store.fetch(run_id)
    assert [each.run_seq for each in logged] == list(positions.values())
    assert [each.event for each in logged] == list(first.values())


@_holds("E2")
def check_events_are_fetched_in_append_order(store: RunEventStore) -> None:
    """`run_seq` starts above zero and grows, and results come in the order of the call."""
    events = builders.make_completions(run_id := new_run_id(), 5)
    appended = [store.append(events[3]), *store.append_many([events[1], events[4]]), store.append(events[0])]
    positions = [each.run_seq for each in appended]
    assert 0 < positions[0] < positions[1] < positions[2] < positions[3]
    logged = store.fetch(run_id)
    assert [(each.run_seq, each.event) for each in logged] == list(
        zip(positions, (events[3], events[1], events[4], events[0]), strict=True)
    )


@_holds("E4", "E5")
def check_repeated_event_keeps_its_run_seq(store: RunEventStore) -> None:
    """A repeated event, or another event with the same key, is acknowledged and not stored."""
    first, second = builders.make_completions(run_id := new_run_id(), 2)
    new = store.append(first)
    assert (new.idempotent, new.persisted, new.payload_conflict) == (False, True, False)
    store.append(second)
    again = AppendResult(run_seq=new.run_seq, idempotent=True)
    assert not again.persisted
    restarted = make_event(run_id, "StepCompleted", "step-0", engine_attempt_id=7, event_data=0, emitted_at=LATER)
    assert [store.append(first), store.append(restarted)] == [again, again]
    assert read_events(store, run_id) == [first, second]


@_holds("E4")
def check_fetched_events_are_duplicates(store: RunEventStore) -> None:
    """Appending fetched events stores nothing, also for events that the store numbered."""
    run_id = new_run_id()
    store.append_many(
        [*builders.make_completions(run_id, 2), make_event(run_id, "RunPaused"), make_event(run_id, "RunPaused")]
    )
    logged = store.fetch(run_id)
    again = store.append_many([each.event for each in logged])
    assert again == [AppendResult(run_seq=each.run_seq, idempotent=True) for each in logged]
    assert store.fetch(run_id) == logged


@_holds("E4")
def check_duplicates_within_one_call_are_detected(store: RunEventStore) -> None:
    """A known event, and a repeated one of the same call, return the `run_seq` of the first."""
    old, new, newest = builders.make_completions(run_id := new_run_id(), 3)
    old_seq = store.append(old).run_seq
    appended = store.append_many([new, old, new, newest, replace(newest, event_data="other")])
    assert [each.idempotent for each in appended] == [False, True, True, False, True]
    assert [each.payload_conflict for each in appended] == [False, False, False, False, True]
    assert appended[1].run_seq == old_seq < appended[0].run_seq == appended[2].run_seq < appended[3].run_seq
    assert appended[4].run_seq == appended[3].run_seq
    assert read_events(store, run_id) == [old, new, newest]


@_holds()
def check_empty_call_returns_an_empty_list(store: RunEventStore) -> None:
    """`append_many` without events returns an empty list."""
    assert store.append_many([]) == []


@_holds()
def check_append_many_is_atomic(store: RunEventStore) -> None:
    """One refused event leaves all known and new runs of the call unchanged."""
    for bad_at in range(3):
        old, new = new_run_id(), new_run_id()
        store.append(make_event(old, "RunStarted"))
        events = [make_event(old, "RunPaused"), make_event(new, "RunStarted")]
        events.insert(bad_at, make_event(old, "StepStarted", "s1", plan_version="plan-2"))
        with _raises(RunClosed):
            store.append_many(events)
        assert [each.event_type for each in read_events(store, old)] == ["RunStarted"]
        assert read_events(store, new) == []
        with _raises(EventsNotFound):
            store.project_snapshot(new)


@_holds()
def check_run_has_one_plan(store: RunEventStore) -> None:
    """The first event sets the plan. An event with another plan is refused, alone or in the same call."""
    run_id, new_run = new_run_id(), new_run_id()
    first = make_event(run_id, "RunStarted")
    store.append(first)
    with _raises(RunClosed, run_id):
        store.append(replace(first, plan_version="plan-2"))
    with _raises(RunClosed):
        store.append_many(
            [make_event(new_run, "RunStarted"), make_event(new_run, "RunPaused", plan_version="plan-2")]
        )
    assert (read_events(store, run_id), read_events(store, new_run)) == ([first], [])
    assert store.append(make_event(new_run, "RunStarted", plan_version="plan-2")).persisted


# Repeatable events without a number.


@_holds("E4")
def check_each_pause_is_a_separate_event(store: RunEventStore) -> None:
    """A new `event_id` without a number is the next occurrence. The same event is the same occurrence."""
    run_id = new_run_id()
    types = ["RunStarted", "RunPaused", "RunResumed", "RunPaused", "RunResumed", "RunPaused"]
    events = [make_event(run_id, event_type) for event_type in types]
    appended = [*store.append_many(events[:4]), *(store.append(event) for event in events[4:])]
    assert all(each.persisted for each in appended)
    assert [each.logical_attempt_id for each in read_events(store, run_id)] == [1, 1, 1, 2, 2, 3]
    again = [AppendResult(run_seq=each.run_seq, idempotent=True) for each in appended]
    assert [store.append(event) for event in events] == store.append_many(events) == again
    assert store.project_snapshot(run_id).status is RunStatus.PAUSED
    assert store.project_snapshot(run_id).inconsistencies == 0


@_holds("E4", "E17")
def check_pause_is_identified_by_its_event_id(store: RunEventStore) -> None:
    """The same `event_id` with other data is a conflict and not another pause, also within one call."""
    one, two = (
        make_event(run_id := new_run_id(), "RunPaused", event_data="why"),
        make_event(run_id, "RunPaused"),
    )
    appended = store.append_many([one, one, two, replace(one, event_data="other"), two])
    assert [each.persisted for each in appended] == [True, False, True, False, False]
    assert [each.payload_conflict for each in appended] == [False, False, False, True, False]
    assert read_events(store, run_id) == [one.with_occurrence(1), two.with_occurrence(2)]


@_holds("E4")
@PROPERTY
@given(order=st.lists(st.integers(0, 5), max_size=12))
def check_occurrences_are_numbered_by_type(store: RunEventStore, order: list[int]) -> None:
    """Events of one type are numbered in the order of their first append."""
    run_id = new_run_id()
    pool = [make_event(run_id, each) for each in ("RunPaused", "SignalRejected") for _ in range(3)]
    for index in order:
        store.append(pool[index])
    stored = [pool[index] for index in dict.fromkeys(order)]
    same_type = {each: [event for event in stored if event.event_type == each.event_type] for each in stored}
    assert read_events(store, run_id) == [each.with_occurrence(same_type[each].index(each) + 1) for each in stored]


@_holds("E4")
def check_taken_number_hides_no_event(store: RunEventStore) -> None:
    """If a producer assigned a number in advance, pauses without a number are all stored beside it."""
    for append in (lambda events: [store.append(each) for each in events], store.append_many):
        pauses = [make_event(run_id := new_run_id(), "RunPaused", logical_attempt_id=2)]
        pauses += [make_event(run_id, "RunPaused") for _ in range(3)]
        assert all(each.persisted for each in append(pauses))
        numbers = [each.logical_attempt_id for each in read_events(store, run_id)]
        assert (numbers[0], len(set(numbers))) == (2, 4)


# Fetching.


@_holds("E7")
def check_page_starts_after_after_seq(store: RunEventStore) -> None:
    """A page excludes the event at `after_seq`. After the last event it is empty."""
    store.append_many(builders.make_completions(run_id := new_run_id(), 5))
    events = store.fetch(run_id)
    assert len(events) == 5
    for number, logged in enumerate(events, start=1):
        assert store.fetch(run_id, after_seq=logged.run_seq) == events[number:]
    assert store.fetch(run_id, after_seq=events[-1].run_seq + 1_000) == []
    assert store.fetch(run_id, after_seq=0, limit=2) == events[:2]


@_holds("E7")
def check_default_page_has_a_thousand_events(store: RunEventStore) -> None:
    """`fetch` returns 1,000 events by default, and more with a larger limit."""
    store.append_many(builders.make_completions(run_id := new_run_id(), 1_001))
    assert [each.event.event_data for each in store.fetch(run_id)] == list(range(1_000))
    assert len(store.fetch(run_id, limit=LARGEST_PAGE)) == 1_001


@_holds("E7")
def check_invalid_bounds_are_refused(store: RunEventStore) -> None:
    """A limit below 1 or above the maximum, and a negative `after_seq`, raise ValueError for any run."""
    for after_seq, limit in ((0, 0), (0, -1), (0, LARGEST_PAGE + 1), (-1, 1), (-(2**40), 1)):
        store.append(make_event(run_id := new_run_id(), "RunStarted"))
        for each in (run_id, new_run_id()):
            with _raises(ValueError, r"\d"):
                store.fetch(each, after_seq=after_seq, limit=limit)


@_holds("E8")
@PROPERTY
@given(count=st.integers(0, 12), limits=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def check_pages_of_any_size_contain_each_event_once(store: RunEventStore, count: int, limits: list[int]) -> None:
    """Reading page by page after the last `run_seq` returns each event once."""
    store.append_many(builders.make_completions(run_id := new_run_id(), count))
    pages = list[object]()
    after_seq = 0
    for limit in cycle(limits):
        page = store.fetch(run_id, after_seq=after_seq, limit=limit)
        if not page:
            break
        assert len(page) <= limit
        after_seq = page[-1].run_seq
        pages += page
    assert pages == store.fetch(run_id, limit=LARGEST_PAGE)
    assert len(pages) == count


@_holds("E15")
def check_store_dates_events_by_its_own_clock(store: RunEventStore) -> None:
    """`persisted_at` has a time zone and never decreases. `emitted_at` is stored as the producer wrote it."""
    emitted = [
        LATER,
        "1999-12-31T23:59:59.9-12:00",
        builders.EMITTED_AT,
        "20260301T100000Z",
        "2026-03-01T10+00:00",
    ]
    run_id = new_run_id()
    for number, emitted_at in enumerate(emitted, start=1):
        store.append(make_event(run_id, "StepStarted", "s1", logical_attempt_id=number, emitted_at=emitted_at))
    logged = store.fetch(run_id)
    assert [each.event.emitted_at for each in logged] == emitted
    assert all(each.persisted_at.utcoffset() is not None for each in logged)
    assert all(earlier.persisted_at <= later.persisted_at for earlier, later in pairwise(logged))
    assert logged[-1].persisted_at.year < 2999
    assert store.fetch(run_id) == logged


@_holds()
def check_runs_are_independent(store: RunEventStore) -> None:
    """Each run has its own order, keys, occurrences and snapshot, also if run ids differ only by case."""
    lower = new_run_id()
    upper = lower.upper()
    event = make_event(lower, "RunPaused")
    store.append(event)
    assert (read_events(store, upper), store.get_snapshot(upper)) == ([], None)
    store.append_many(
        [make_event(upper, "RunStarted"), replace(event, run_id=upper), make_event(lower, "RunStarted")]
    )
    assert [each.event_type for each in read_events(store, lower)] == ["RunPaused", "RunStarted"]
    assert read_events(store, upper)[1:] == [replace(event, run_id=upper, logical_attempt_id=1)]
    assert [store.project_snapshot(each).status for each in (lower, upper)] == [
        RunStatus.RUNNING,
        RunStatus.PAUSED,
    ]
    assert {each.event.run_id for each in store.fetch(lower)} == {lower}


# Round trips.


@_holds("E18")
@PROPERTY
@given(event=builders.full_events)
def check_event_comes_back_unchanged(store: RunEventStore, event: Event) -> None:
    """The payload and all other fields come back equal, with the standard idempotency key."""
    event = replace(event, run_id=new_run_id())
    store.append(event)
    (logged,) = store.fetch(event.run_id)
    assert {each.name: getattr(logged.event, each.name) for each in fields(event) if each.compare} == {
        each.name: getattr(event, each.name) for each in fields(event) if each.compare
    }
    assert logged.idempotency_key == idempotency_key(
        run_id=event.run_id,
        step_id=event.step_id,
        logical_attempt_id=event.logical_attempt_id or 1,
        event_type=event.event_type,
        plan_version=event.plan_version,
    )


@_holds("E18")
def check_longest_payload_is_stored(store: RunEventStore) -> None:
    """The limit counts characters, not bytes."""
    event = make_event(run_id := new_run_id(), "RunStarted", event_data="😀" * (MAX_DATA_LENGTH - 2))
    store.append(event)
    assert read_events(store, run_id) == [event]


@_holds("E17")
def check_first_payload_is_kept(store: RunEventStore) -> None:
    """Another payload for a known key is reported each time and never stored. The snapshot does not change."""
    first = make_event(run_id := new_run_id(), "StepCompleted", "s1", event_data={"a": 1, "b": [1.0]})
    store.append(first)
    before = store.project_snapshot(run_id)
    other = make_event(run_id, "StepCompleted", "s1", event_data={"a": 1, "b": [1]})
    assert [store.append(other).payload_conflict for _ in range(2)] == [True, True]
    same = make_event(run_id, "StepCompleted", "s1", event_data={"b": [1.0], "a": 1})
    assert not store.append(same).payload_conflict
    assert read_events(store, run_id) == [first]
    assert store.project_snapshot(run_id) == before


# Snapshots.


@_holds("E9")
@PROPERTY
@given(specs=histories, cuts=st.lists(st.integers(0, 12), max_size=4), overlap=st.integers(0, 3))
def check_snapshot_equals_the_fold_of_any_batches(
    store: RunEventStore, specs: list[builders.EventSpec], cuts: list[int], overlap: int
) -> None:
    """Folding any batches, also with repeated events, gives the snapshot of the store."""
    store.append_many(builders.make_history(run_id := new_run_id(), specs))
    logged = store.fetch(run_id)
    assert store.project_snapshot(run_id) == builders.fold_batches(
        run_id, builders.split_events(logged, cuts, overlap=overlap)
    )


@_holds("E9", "E10", "E12")
@PROPERTY
@given(parts=st.lists(histories, min_size=1, max_size=4))
def check_repeated_projection_counts_each_event_once(
    store: RunEventStore, parts: list[list[builders.EventSpec]]
) -> None:
    """Repeated projections count each event once. A stored snapshot is the fold of some earlier events."""
    run_id, last, count = new_run_id(), 0, 0
    ended: RunStatus | None = None
    for part in parts:
        store.append_many(builders.make_history(run_id, part, after=count))
        count += len(part)
        stored = store.get_snapshot(run_id)
        if stored is not None:
            assert last <= stored.last_event_seq
        projected = store.project_snapshot(run_id)
        logged = store.fetch(run_id)
        assert projected == store.project_snapshot(run_id) == builders.fold_batches(run_id, [logged])
        assert ended in {None, projected.status}
        ended = projected.status if projected.status.is_terminal else None
        stored = store.get_snapshot(run_id)
        if stored is not None:
            assert last <= stored.last_event_seq <= logged[-1].run_seq
            last = stored.last_event_seq
            earlier = [each for each in logged if each.run_seq <= last]
            assert replace(stored, stale_since=None) == builders.fold_batches(run_id, [earlier])


@_holds("E10")
def check_unknown_run_has_no_snapshot(store: RunEventStore) -> None:
    """An unknown run has no snapshot and no events, and `project_snapshot` raises EventsNotFound."""
    run_id = new_run_id()
    assert store.get_snapshot(run_id) is None
    assert store.fetch(run_id) == []
    with _raises(EventsNotFound, run_id):
        store.project_snapshot(run_id)
    assert store.get_snapshot(run_id) is None


@_holds("E11")
def check_unknown_event_types_only_advance_the_watermark(store: RunEventStore) -> None:
    """Events of unknown types are stored and change only `last_event_seq`."""
    store.append(make_event(run_id := new_run_id(), "NoteTaken", "s9"))
    first = store.project_snapshot(run_id)
    assert (first.status, first.steps, first.started_at) == (RunStatus.PENDING, {}, None)
    store.append_many([make_event(run_id, "StepCompleted", "s1"), make_event(run_id, "RunCompleted")])
    before = store.project_snapshot(run_id)
    unknown = [make_event(run_id, "NoteTaken"), make_event(run_id, "notetaken"), make_event(run_id, "runstarted")]
    appended = store.append_many(unknown)
    assert store.project_snapshot(run_id) == replace(before, last_event_seq=appended[-1].run_seq)
    assert read_events(store, run_id)[-3:] == unknown


@_holds("E12")
def check_final_status_does_not_change(store: RunEventStore) -> None:
    """Events after the end are stored, change nothing and count as one inconsistency each."""
    for end in ("RunCompleted", "RunFailed", "RunCancelled"):
        run_id = new_run_id()
        store.append_many(
            [make_event(run_id, "RunStarted"), make_event(run_id, "StepCompleted", "s1"), make_event(run_id, end)]
        )
        ended = store.project_snapshot(run_id)
        assert ended.status.is_terminal
        assert ended.steps == {StepStatus.SUCCEEDED: 1}
        late = [make_event(run_id, each, logical_attempt_id=2) for each in builders.RUN_EVENT_TYPES]
        late += [make_event(run_id, each, "s1", logical_attempt_id=2) for each in builders.STEP_EVENT_TYPES]
        appended = [*store.append_many(late), *store.append_many(late)]
        expected = replace(ended, last_event_seq=appended[-1].run_seq, inconsistencies=len(late))
        assert store.project_snapshot(run_id) == store.project_snapshot(run_id) == expected
