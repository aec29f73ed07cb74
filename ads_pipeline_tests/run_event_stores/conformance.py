"""What every store of run events must do, whatever keeps the events. Authors of an adapter run this suite over it:

    class TestMyStore(RunEventStoreConformance):
        @pytest.fixture
        def store(self) -> MyStore: return MyStore(...)

The store may be new or in use: each example names runs of its own. The marks say which promise of `invariants.md` a
test holds; a project that is strict about marks declares `invariant(*codes)`. How several writers at once and crashes
are survived is for each adapter's own tests.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import cycle, pairwise
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.run_events import MAX_DATA_LENGTH, AppendResult, Event, idempotency_key
from ads_pipeline.domain.run_snapshots import RunEventStore, RunStatus, StepStatus
from ads_pipeline.errors import EventsNotFound, RunClosed
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.run_event_stores import builders
from ads_pipeline_tests.run_event_stores.builders import new_run_id, make_event

LARGEST_PAGE: Final = 10_000
LATER: Final = "2999-01-01T00:00:00-11:30"
# One store serves all examples of a test, for it may be a real database.
PROPERTY: Final = settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
histories = st.lists(builders.event_specs, min_size=1, max_size=12)


def read_events(store: RunEventStore, run_id: str) -> list[Event]:
    return [each.event for each in store.fetch(run_id, limit=LARGEST_PAGE)]


def append_all(store: RunEventStore, events: Sequence[Event]) -> list[AppendResult]:
    """One by itself, many together: the promises are the same."""
    return [store.append(events[0])] if len(events) == 1 else store.append_many(events)


class RunEventStoreConformance:
    """Subclass it and give it a fixture `store`."""

    # Appending: each event once, in one order.

    @pytest.mark.invariant("E2", "E4", "E5", "E17")
    @PROPERTY
    @given(batches=st.lists(st.lists(builders.event_copies, min_size=1, max_size=4), max_size=6))
    def test_of_all_tellings_the_first_of_each_key_is_kept(
        self, store: RunEventStore, batches: list[list[builders.EventCopy]]
    ) -> None:
        """A new key takes the next place; a known one answers with its place, and whether the payload differs."""
        run_id, first, places = new_run_id(), dict[str, Event](), dict[str, int]()
        for batch in batches:
            events = [make_event(run_id, *what, logical_attempt_id=n, event_data=data) for what, n, data in batch]
            for event, appended in zip(events, append_all(store, events), strict=True):
                key = event.idempotency_key
                known = key in first
                conflict = first.setdefault(key, event).payload != event.payload
                place = places.setdefault(key, appended.run_seq)
                assert appended == AppendResult(run_seq=place, idempotent=known, payload_conflict=conflict)
                assert appended.persisted is not appended.idempotent
        assert all(earlier < later for earlier, later in pairwise(places.values()))
        logged = store.fetch(run_id)
        assert [each.run_seq for each in logged] == list(places.values())
        assert [each.event for each in logged] == list(first.values())

    @pytest.mark.invariant("E2")
    def test_events_come_in_the_order_in_which_they_were_appended(self, store: RunEventStore) -> None:
        """Places only grow, the answers name them in the order of the call, and the first is above zero."""
        events = builders.make_completions(run_id := new_run_id(), 5)
        appended = [store.append(events[3]), *store.append_many([events[1], events[4]]), store.append(events[0])]
        places = [each.run_seq for each in appended]
        assert 0 < places[0] < places[1] < places[2] < places[3]
        logged = store.fetch(run_id)
        assert [(each.run_seq, each.event) for each in logged] == list(
            zip(places, (events[3], events[1], events[4], events[0]), strict=True)
        )

    @pytest.mark.invariant("E4", "E5")
    def test_an_event_that_is_told_again_keeps_its_place(self, store: RunEventStore) -> None:
        """Told again alone, later or as another Event with the same key, it is heard and not written."""
        first, second = builders.make_completions(run_id := new_run_id(), 2)
        new = store.append(first)
        assert (new.idempotent, new.persisted, new.payload_conflict) == (False, True, False)
        store.append(second)
        again = AppendResult(run_seq=new.run_seq, idempotent=True)
        assert not again.persisted
        restarted = make_event(run_id, "StepCompleted", "step-0", engine_attempt_id=7, event_data=0, emitted_at=LATER)
        assert [store.append(first), store.append(restarted)] == [again, again]
        assert read_events(store, run_id) == [first, second]

    @pytest.mark.invariant("E4")
    def test_what_was_fetched_is_known(self, store: RunEventStore) -> None:
        """Every event that a reader has is a duplicate when it is appended, also those that the store numbered."""
        run_id = new_run_id()
        store.append_many([*builders.make_completions(run_id, 2), make_event(run_id, "RunPaused"), make_event(run_id, "RunPaused")])
        logged = store.fetch(run_id)
        again = store.append_many([each.event for each in logged])
        assert again == [AppendResult(run_seq=each.run_seq, idempotent=True) for each in logged]
        assert store.fetch(run_id) == logged

    @pytest.mark.invariant("E4")
    def test_duplicates_within_one_call_are_found(self, store: RunEventStore) -> None:
        """Between new ones, a known event and one that the same call told before have the place of the first."""
        old, new, newest = builders.make_completions(run_id := new_run_id(), 3)
        place = store.append(old).run_seq
        appended = store.append_many([new, old, new, newest, replace(newest, event_data="other")])
        assert [each.idempotent for each in appended] == [False, True, True, False, True]
        assert [each.payload_conflict for each in appended] == [False, False, False, False, True]
        assert appended[1].run_seq == place < appended[0].run_seq == appended[2].run_seq < appended[3].run_seq
        assert appended[4].run_seq == appended[3].run_seq
        assert read_events(store, run_id) == [old, new, newest]

    def test_nothing_to_append_is_nothing_done(self, store: RunEventStore) -> None:
        """An empty call is answered by an empty list."""
        assert store.append_many([]) == []

    @pytest.mark.parametrize("bad_at", [0, 1, 2])
    def test_all_of_a_call_are_appended_or_none(self, store: RunEventStore, bad_at: int) -> None:
        """One event that is refused leaves every run of the call as it was, also the new ones."""
        old, new = new_run_id(), new_run_id()
        store.append(make_event(old, "RunStarted"))
        events = [make_event(old, "RunPaused"), make_event(new, "RunStarted")]
        events.insert(bad_at, make_event(old, "StepStarted", "s1", plan_version="plan-2"))
        with pytest.raises(RunClosed):
            store.append_many(events)
        assert [each.event_type for each in read_events(store, old)] == ["RunStarted"]
        assert read_events(store, new) == []
        with pytest.raises(EventsNotFound):
            store.project_snapshot(new)

    def test_a_run_follows_one_plan(self, store: RunEventStore) -> None:
        """The first event says which; another plan's event is refused, alone or in the call of the first."""
        run_id, unborn = new_run_id(), new_run_id()
        first = make_event(run_id, "RunStarted")
        store.append(first)
        with pytest.raises(RunClosed) as refused:
            store.append(replace(first, plan_version="plan-2"))
        assert refused.value.run_id == run_id
        with pytest.raises(RunClosed):
            store.append_many([make_event(unborn, "RunStarted"), make_event(unborn, "RunPaused", plan_version="plan-2")])
        assert (read_events(store, run_id), read_events(store, unborn)) == ([first], [])
        assert store.append(make_event(unborn, "RunStarted", plan_version="plan-2")).persisted

    # Events that come again and bring no number of their own.

    @pytest.mark.invariant("E4")
    def test_each_pause_is_an_event_of_its_own(self, store: RunEventStore) -> None:
        """Without a number, a new event_id is the next occurrence and the same event is the same occurrence."""
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

    @pytest.mark.invariant("E4", "E17")
    def test_a_pause_is_known_by_its_event_id(self, store: RunEventStore) -> None:
        """Within one call as well; other words for it are a conflict, and not another pause."""
        one, two = (make_event(run_id := new_run_id(), "RunPaused", event_data="why"), make_event(run_id, "RunPaused"))
        appended = store.append_many([one, one, two, replace(one, event_data="other"), two])
        assert [each.persisted for each in appended] == [True, False, True, False, False]
        assert [each.payload_conflict for each in appended] == [False, False, False, True, False]
        assert read_events(store, run_id) == [one.with_occurrence(1), two.with_occurrence(2)]

    @pytest.mark.invariant("E4")
    @PROPERTY
    @given(order=st.lists(st.integers(0, 5), max_size=12))
    def test_occurrences_are_counted_by_type(self, store: RunEventStore, order: list[int]) -> None:
        """In whatever order they are told, and told again, those of one type are numbered in the order they came."""
        run_id = new_run_id()
        pool = [make_event(run_id, each) for each in ("RunPaused", "SignalRejected") for _ in range(3)]
        for index in order:
            store.append(pool[index])
        heard = [pool[index] for index in dict.fromkeys(order)]
        of_type = {each: [event for event in heard if event.event_type == each.event_type] for each in heard}
        assert read_events(store, run_id) == [each.with_occurrence(of_type[each].index(each) + 1) for each in heard]

    @pytest.mark.invariant("E4")
    def test_a_number_that_is_taken_swallows_no_event(self, store: RunEventStore) -> None:
        """Where a producer numbered one pause ahead, those without a number are all kept beside it."""
        pauses = [make_event(run_id := new_run_id(), "RunPaused", logical_attempt_id=2)]
        pauses += [make_event(run_id, "RunPaused") for _ in range(3)]
        assert all(store.append(each).persisted for each in pauses)
        numbers = [each.logical_attempt_id for each in read_events(store, run_id)]
        assert (numbers[0], len(set(numbers))) == (2, 4)

    # Fetching: what is behind a place, in order.

    @pytest.mark.invariant("E7")
    def test_a_page_begins_behind_a_place(self, store: RunEventStore) -> None:
        """What has the place itself is not in it, and behind the last is nothing."""
        store.append_many(builders.make_completions(run_id := new_run_id(), 5))
        whole = store.fetch(run_id)
        assert len(whole) == 5
        for number, logged in enumerate(whole, start=1):
            assert store.fetch(run_id, after_seq=logged.run_seq) == whole[number:]
        assert store.fetch(run_id, after_seq=whole[-1].run_seq + 1_000) == []
        assert store.fetch(run_id, after_seq=0, limit=2) == whole[:2]

    @pytest.mark.invariant("E7")
    def test_a_page_is_a_thousand_unless_asked_otherwise(self, store: RunEventStore) -> None:
        """A thousand are given when nothing is said, and more when more are asked for."""
        store.append_many(builders.make_completions(run_id := new_run_id(), 1_001))
        assert [each.event.event_data for each in store.fetch(run_id)] == list(range(1_000))
        assert len(store.fetch(run_id, limit=LARGEST_PAGE)) == 1_001

    @pytest.mark.invariant("E7")
    @pytest.mark.parametrize("bounds", [(0, 0), (0, -1), (0, LARGEST_PAGE + 1), (-1, 1), (-(2**40), 1)], ids=str)
    def test_bounds_that_mean_nothing_are_refused(self, store: RunEventStore, bounds: tuple[int, int]) -> None:
        """No page of no events, of too many, or from before the first; whether the run is known or not."""
        store.append(make_event(run_id := new_run_id(), "RunStarted"))
        after_seq, limit = bounds
        for each in (run_id, new_run_id()):
            with pytest.raises(ValueError, match=r"\d"):
                store.fetch(each, after_seq=after_seq, limit=limit)

    @pytest.mark.invariant("E8")
    @PROPERTY
    @given(count=st.integers(0, 12), limits=st.lists(st.integers(1, 5), min_size=1, max_size=4))
    def test_pages_of_any_sizes_are_one_whole(self, store: RunEventStore, count: int, limits: list[int]) -> None:
        """Read page by page behind the last place seen, nothing is missing and nothing comes twice."""
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

    @pytest.mark.invariant("E15")
    def test_the_store_dates_events_by_its_own_clock(self, store: RunEventStore) -> None:
        """Its times have a zone and never go back, whatever producers claim; what these wrote stays as written."""
        claims = [
            LATER,
            "1999-12-31T23:59:59.9-12:00",
            builders.EMITTED_AT,
            "20260301T100000Z",
            "2026-03-01T10+00:00",
        ]
        run_id = new_run_id()
        for number, emitted_at in enumerate(claims, start=1):
            store.append(make_event(run_id, "StepStarted", "s1", logical_attempt_id=number, emitted_at=emitted_at))
        logged = store.fetch(run_id)
        assert [each.event.emitted_at for each in logged] == claims
        assert all(each.persisted_at.utcoffset() is not None for each in logged)
        assert all(earlier.persisted_at <= later.persisted_at for earlier, later in pairwise(logged))
        assert logged[-1].persisted_at.year < 2999
        assert store.fetch(run_id) == logged

    def test_runs_do_not_see_each_other(self, store: RunEventStore) -> None:
        """Each run has its own order, keys, occurrences and snapshot, even where names differ by case alone."""
        lower = new_run_id()
        upper = lower.upper()
        event = make_event(lower, "RunPaused")
        store.append(event)
        assert (read_events(store, upper), store.get_snapshot(upper)) == ([], None)
        store.append_many([make_event(upper, "RunStarted"), replace(event, run_id=upper), make_event(lower, "RunStarted")])
        assert [each.event_type for each in read_events(store, lower)] == ["RunPaused", "RunStarted"]
        assert read_events(store, upper)[1:] == [replace(event, run_id=upper, logical_attempt_id=1)]
        assert [store.project_snapshot(each).status for each in (lower, upper)] == [
            RunStatus.RUNNING,
            RunStatus.PAUSED,
        ]
        assert {each.event.run_id for each in store.fetch(lower)} == {lower}

    # Every field comes back as it went in.

    @pytest.mark.invariant("E18")
    @PROPERTY
    @given(event=builders.full_events)
    def test_an_event_is_kept_as_it_was_told(self, store: RunEventStore, event: Event) -> None:
        """Payload and every other field come back equal, and the key is that of the five parts."""
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

    @pytest.mark.invariant("E18")
    def test_the_longest_payload_is_kept(self, store: RunEventStore) -> None:
        """The bound counts characters, and characters of four bytes are characters."""
        event = make_event(run_id := new_run_id(), "RunStarted", event_data="😀" * (MAX_DATA_LENGTH - 2))
        store.append(event)
        assert read_events(store, run_id) == [event]

    @pytest.mark.invariant("E17")
    def test_the_first_payload_stays(self, store: RunEventStore) -> None:
        """Another payload under a known key is reported each time, never kept, and no inconsistency of the run."""
        first = make_event(run_id := new_run_id(), "StepCompleted", "s1", event_data={"a": 1, "b": [1.0]})
        store.append(first)
        before = store.project_snapshot(run_id)
        other = make_event(run_id, "StepCompleted", "s1", event_data={"a": 1, "b": [1]})
        assert [store.append(other).payload_conflict for _ in range(2)] == [True, True]
        same = make_event(run_id, "StepCompleted", "s1", event_data={"b": [1.0], "a": 1})
        assert not store.append(same).payload_conflict
        assert read_events(store, run_id) == [first]
        assert store.project_snapshot(run_id) == before

    # Snapshots: what all events give, and what is kept of it.

    @pytest.mark.invariant("E9")
    @PROPERTY
    @given(happened=histories, cuts=st.lists(st.integers(0, 12), max_size=4), back=st.integers(0, 3))
    def test_a_projection_is_the_fold_of_its_pieces(
        self, store: RunEventStore, happened: list[builders.EventSpec], cuts: list[int], back: int
    ) -> None:
        """Cut anywhere, and with events that come again, folding gives what the store gives."""
        store.append_many(builders.make_history(run_id := new_run_id(), happened))
        logged = store.fetch(run_id)
        assert store.project_snapshot(run_id) == builders.fold_batches(run_id, builders.split_events(logged, cuts, back=back))

    @pytest.mark.invariant("E9", "E10", "E12")
    @PROPERTY
    @given(parts=st.lists(histories, min_size=1, max_size=4))
    def test_projecting_on_the_way_changes_nothing(
        self, store: RunEventStore, parts: list[list[builders.EventSpec]]
    ) -> None:
        """However often it is asked for, a snapshot counts each event once; a kept one is some earlier fold."""
        run_id, last, count = new_run_id(), 0, 0
        ended: RunStatus | None = None
        for part in parts:
            store.append_many(builders.make_history(run_id, part, after=count))
            count += len(part)
            held = store.get_snapshot(run_id)
            if held is not None:
                assert last <= held.last_event_seq
            projected = store.project_snapshot(run_id)
            logged = store.fetch(run_id)
            assert projected == store.project_snapshot(run_id) == builders.fold_batches(run_id, [logged])
            assert ended in {None, projected.status}
            ended = projected.status if projected.status.is_terminal else None
            held = store.get_snapshot(run_id)
            if held is not None:
                assert last <= held.last_event_seq <= logged[-1].run_seq
                last = held.last_event_seq
                known = [each for each in logged if each.run_seq <= last]
                assert replace(held, stale_since=None) == builders.fold_batches(run_id, [known])

    @pytest.mark.invariant("E10")
    def test_no_snapshot_is_kept_of_a_run_without_events(self, store: RunEventStore) -> None:
        """Of a run that no event named there is no snapshot, no page and no projection."""
        run_id = new_run_id()
        assert store.get_snapshot(run_id) is None
        assert store.fetch(run_id) == []
        with pytest.raises(EventsNotFound, match=run_id):
            store.project_snapshot(run_id)
        assert store.get_snapshot(run_id) is None

    @pytest.mark.invariant("E11")
    def test_events_of_unknown_types_only_move_the_watermark(self, store: RunEventStore) -> None:
        """They are kept and passed over, with a step or without, before the start and after the end."""
        store.append(make_event(run_id := new_run_id(), "NoteTaken", "s9"))
        first = store.project_snapshot(run_id)
        assert (first.status, first.steps, first.started_at) == (RunStatus.PENDING, {}, None)
        store.append_many([make_event(run_id, "StepCompleted", "s1"), make_event(run_id, "RunCompleted")])
        before = store.project_snapshot(run_id)
        unknown = [make_event(run_id, "NoteTaken"), make_event(run_id, "notetaken"), make_event(run_id, "runstarted")]
        appended = store.append_many(unknown)
        assert store.project_snapshot(run_id) == replace(before, last_event_seq=appended[-1].run_seq)
        assert read_events(store, run_id)[-3:] == unknown

    @pytest.mark.invariant("E12")
    @pytest.mark.parametrize("end", ["RunCompleted", "RunFailed", "RunCancelled"])
    def test_what_has_ended_stays_so(self, store: RunEventStore, end: str) -> None:
        """Events behind the end are kept, change nothing, and count as one inconsistency each."""
        run_id = new_run_id()
        store.append_many([make_event(run_id, "RunStarted"), make_event(run_id, "StepCompleted", "s1"), make_event(run_id, end)])
        ended = store.project_snapshot(run_id)
        assert ended.status.is_terminal
        assert ended.steps == {StepStatus.SUCCEEDED: 1}
        late = [make_event(run_id, each, logical_attempt_id=2) for each in builders.RUN_EVENT_TYPES]
        late += [make_event(run_id, each, "s1", logical_attempt_id=2) for each in builders.STEP_EVENT_TYPES]
        appended = [*store.append_many(late), *store.append_many(late)]
        expected = replace(ended, last_event_seq=appended[-1].run_seq, inconsistencies=len(late))
        assert store.project_snapshot(run_id) == store.project_snapshot(run_id) == expected
