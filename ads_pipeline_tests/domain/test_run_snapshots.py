"""The fold of events into snapshots, held against a table written by hand and a count by brute force."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.run_events import RUN_TYPES, STEP_TYPES, LoggedEvent
from ads_pipeline.domain.run_snapshots import (
    STEP_MOVES,
    TERMINAL,
    Lag,
    LagWatch,
    RunSnapshot,
    RunStatus,
    StepStatus,
    contiguous,
    fold,
    lag_of,
)
from ads_pipeline_tests.run_event_stores import builders
from ads_pipeline_tests.run_event_stores.builders import Happening

START = datetime(2026, 3, 1, 10, tzinfo=UTC)

# What each event makes of a run in each status: `-` cannot be, `=` changes nothing and is no contradiction.
GRID_TEXT = """
    event         PENDING    RUNNING    PAUSED     COMPLETED  FAILED  CANCELLED
    RunStarted    RUNNING    RUNNING    -          -          -       -
    RunPaused     -          PAUSED     -          -          -       -
    RunResumed    -          -          RUNNING    -          -       -
    RunCompleted  COMPLETED  COMPLETED  -          -          -       -
    RunFailed     FAILED     FAILED     FAILED     -          -       -
    RunCancelled  CANCELLED  CANCELLED  CANCELLED  -          -       -
    (of a step)   RUNNING    RUNNING    PAUSED     -          -       -
    (unknown)     =          =          =          =          =       =
"""
# And what each event of a step makes of the step; `=` leaves it as it was.
STEPS_TEXT = """
    StepStarted        RUNNING
    StepCompleted      SUCCEEDED
    StepFailed         FAILED
    StepCancelled      CANCELLED
    StepSkipped        SKIPPED
    RawSealed          RUNNING
    VerdictAccepted    SUCCEEDED
    VerdictRejected    FAILED
    DemotionBegun      FAILED
    PartitionLoaded    SUCCEEDED
    LoadFailed         FAILED
    PartitionEnqueued  =
    PartitionRequeued  =
    PartitionWithdrawn =
    ReprocessRequested =
    TerminalMarked     =
    TerminalCleared    =
    FetchFailed        FAILED
"""
STEPS = dict(line.split() for line in STEPS_TEXT.strip().splitlines())
UNKNOWN = (*builders.UNKNOWN, "SignalRejected", "runstarted", "PartitionLoadedX")


def grid() -> Iterator[tuple[str, RunStatus, str]]:
    (_, *statuses), *rows = (line.rsplit(maxsplit=6) for line in GRID_TEXT.strip().splitlines())
    classes = {"(of a step)": tuple(STEPS), "(unknown)": UNKNOWN}
    for label, *cells in rows:
        for event_type in classes.get(label.strip(), (label.strip(),)):
            yield from ((event_type, RunStatus(status), cell) for status, cell in zip(statuses, cells, strict=True))


GRID = {(event_type, status): cell for event_type, status, cell in grid()}


def logged(happened: Iterable[Happening], *, after: int = 0, apart: int = 1) -> list[LoggedEvent]:
    """The happenings as a store would give them, a second between any two."""
    return [
        LoggedEvent(
            event=event,
            run_seq=after + number * apart,
            persisted_at=START + timedelta(seconds=after + number),
            idempotency_key=event.idempotency_key,
        )
        for number, event in enumerate(builders.history("r1", happened), start=1)
    ]


def snapshot(status: RunStatus, **parts: Any) -> RunSnapshot:
    """A run in that status, in the middle of its events."""
    begun = None if status is RunStatus.PENDING else START
    ended = START + timedelta(seconds=5) if status in TERMINAL else None
    return RunSnapshot(run_id="r1", status=status, last_event_seq=10, started_at=begun, ended_at=ended, **parts)


happenings: st.SearchStrategy[Happening] = (
    builders.happenings
    | st.tuples(st.sampled_from(sorted(STEPS)), builders.steps)
    | st.tuples(st.sampled_from(UNKNOWN[1:2] + UNKNOWN[3:]), st.none() | builders.steps)
)
histories = st.lists(happenings, max_size=25)


@pytest.mark.invariant("E12")
def test_the_grid_has_every_cell() -> None:
    """No pair of a status and a known type goes unexamined, and the product knows no type that the grid does not."""
    assert set(GRID) == {(each, status) for each in (*RUN_TYPES, *STEPS, *UNKNOWN) for status in RunStatus}
    assert set(STEPS) == STEP_TYPES == set(STEP_MOVES)
    assert {status for status in RunStatus if status.terminal} == {
        RunStatus.COMPLETED,
        RunStatus.FAILED,
        RunStatus.CANCELLED,
    }


@pytest.mark.invariant("E11", "E12")
@pytest.mark.parametrize(("event_type", "status"), GRID, ids=str)
def test_each_event_does_what_the_grid_says(event_type: str, status: RunStatus) -> None:
    """It moves the run and its step, or counts as an inconsistency, or neither; the watermark moves in any case."""
    cell, moved = GRID[event_type, status], STEPS.get(event_type, "=")
    (event,) = logged([(event_type, "s1" if event_type in STEPS else None)], after=10)
    for known in (None, *StepStatus):
        before = snapshot(status, steps={known: 1} if known else {}, inconsistencies=3)
        after, changed = fold(before, {"s1": known} if known else {}, [event])
        if cell in {"-", "="}:
            assert after == replace(before, last_event_seq=11, inconsistencies=3 + (cell == "-"))
            assert changed == {}
            continue
        assert (after.last_event_seq, after.status, after.inconsistencies) == (11, RunStatus(cell), 3)
        assert changed == ({} if moved == "=" else {"s1": StepStatus(moved)})
        assert after.steps == (before.steps if moved == "=" else {StepStatus(moved): 1})
        assert after.started_at == (before.started_at or event.persisted_at)
        assert after.ended_at == (event.persisted_at if after.status in TERMINAL else None)


def brute_force(events: Sequence[LoggedEvent]) -> RunSnapshot:
    """What the events say, each looked up in the table and every step looked back at from the end."""
    status, wrong, counted = RunStatus.PENDING, 0, list[LoggedEvent]()
    for each in events:
        cell = GRID[each.event.event_type, status]
        wrong += cell == "-"
        if cell not in {"-", "="}:
            status = RunStatus(cell)
            counted.append(each)
    last_of = {
        each.event.step_id: STEPS[each.event.event_type]
        for each in counted
        if STEPS.get(each.event.event_type, "=") != "="
    }
    return RunSnapshot(
        run_id="r1",
        status=status,
        last_event_seq=events[-1].run_seq if events else 0,
        steps=Counter(StepStatus(each) for each in last_of.values()),
        started_at=counted[0].persisted_at if counted else None,
        ended_at=counted[-1].persisted_at if status in TERMINAL else None,
        inconsistencies=wrong,
    )


@pytest.mark.invariant("E9", "E12")
@given(happened=histories, apart=st.integers(1, 3))
def test_a_fold_is_what_a_brute_force_count_says(happened: list[Happening], apart: int) -> None:
    """Status, steps, times and inconsistencies are those of the table; each event that cannot be counts once."""
    events = logged(happened, apart=apart)
    assert builders.folded("r1", [events]) == brute_force(events)


@pytest.mark.invariant("E9")
@given(happened=histories, cuts=st.lists(st.integers(0, 25), max_size=5), back=st.integers(0, 4))
def test_folding_in_pieces_is_folding_at_once(happened: list[Happening], cuts: list[int], back: int) -> None:
    """Wherever the events are cut, and though pieces begin with what was folded before, the end is the same."""
    events = logged(happened)
    whole = builders.folded("r1", [events])
    assert builders.folded("r1", builders.pieces(events, cuts, back=back)) == whole
    assert builders.folded("r1", [events, events, *([each] for each in events)]) == whole


@pytest.mark.invariant("E9")
@given(happened=histories, repeated=st.data())
def test_duplicates_within_a_piece_are_passed_over(happened: list[Happening], repeated: st.DataObject) -> None:
    """An event that comes again later in the same piece is not folded a second time."""
    events = logged(happened)
    twice = list(events)
    for index in sorted(repeated.draw(st.lists(st.integers(0, len(events)), max_size=4)), reverse=True):
        twice[index:index] = events[:index]
    assert builders.folded("r1", [twice]) == builders.folded("r1", [events])


@pytest.mark.invariant("E9")
def test_a_fold_leaves_its_arguments_alone() -> None:
    """The snapshot and the steps that went in are as they were."""
    steps, before = {"s1": StepStatus.RUNNING}, snapshot(RunStatus.RUNNING, steps={StepStatus.RUNNING: 1})
    after, changed = fold(before, steps, logged([("StepCompleted", "s1"), ("StepStarted", "s2")], after=10))
    assert (steps, before.steps) == ({"s1": StepStatus.RUNNING}, {StepStatus.RUNNING: 1})
    assert changed == {"s1": StepStatus.SUCCEEDED, "s2": StepStatus.RUNNING}
    assert after.steps == {StepStatus.SUCCEEDED: 1, StepStatus.RUNNING: 1}


@pytest.mark.invariant("E11")
@given(happened=histories, places=st.lists(st.integers(0, 25), max_size=5))
def test_unknown_events_change_nothing_but_the_watermark(happened: list[Happening], places: list[int]) -> None:
    """Strewn in anywhere, events of unknown types leave everything else as it is without them."""
    strewn = list(happened)
    for place in places:
        strewn.insert(place, ("NoteTaken", "s1"))
    without = [each for each in logged(strewn) if each.event.event_type != "NoteTaken"]
    expected = replace(builders.folded("r1", [without]), last_event_seq=len(strewn))
    assert builders.folded("r1", [logged(strewn)]) == expected


@pytest.mark.invariant("E12")
@given(happened=histories)
def test_an_end_is_never_left(happened: list[Happening]) -> None:
    """From one event to the next, what has ended keeps status, steps and times, and counts only go up."""
    events = logged(happened)
    states = [builders.folded("r1", [events[:end]]) for end in range(len(events) + 1)]
    for before, after in pairwise(states):
        assert after.inconsistencies - before.inconsistencies in {0, 1}
        assert after.last_event_seq == before.last_event_seq + 1
        if before.status.terminal:
            assert after == replace(
                before, last_event_seq=after.last_event_seq, inconsistencies=after.inconsistencies
            )


@pytest.mark.invariant("E13")
def test_staleness_is_not_for_the_fold_to_clear() -> None:
    """Whoever marks a snapshot as missing events is the one who knows when it misses none."""
    stale = snapshot(RunStatus.RUNNING, stale_since=START)
    assert fold(stale, {}, logged([("RunPaused", None)], after=10))[0].stale_since == START


@pytest.mark.invariant("E13")
@given(after=st.integers(0, 5), steps=st.lists(st.integers(1, 3), max_size=8), first=st.integers(0, 8))
def test_what_follows_without_a_gap_is_taken(after: int, steps: list[int], first: int) -> None:
    """As many as there are before the first place that is not the next; none when the first is not the next."""
    places = [first + sum(steps[:number]) for number in range(len(steps) + 1)]
    events = [replace(each, run_seq=place) for each, place in zip(sequence(len(places)), places, strict=True)]
    expected = 0
    while expected < len(places) and places[expected] == after + expected + 1:
        expected += 1
    assert list(contiguous(after, events)) == events[:expected]


@pytest.mark.invariant("E13")
def test_a_gap_ends_what_is_taken() -> None:
    """Of 1 2 3 5 6, three are taken behind 0, nothing behind 3, and the rest behind 4."""
    events = [replace(each, run_seq=place) for each, place in zip(sequence(5), (1, 2, 3, 5, 6), strict=True)]
    taken = [
        [each.run_seq for each in contiguous(after, events[start:])] for after, start in ((0, 0), (3, 3), (4, 3))
    ]
    assert taken == [[1, 2, 3], [], [5, 6]]
    assert list(contiguous(7, [])) == []


def sequence(count: int) -> list[LoggedEvent]:
    return logged([("StepStarted", "s1")] * count)


@pytest.mark.invariant("E14")
@pytest.mark.parametrize(
    ("microseconds", "lag"),
    [
        (0, Lag.NORMAL),
        (-1, Lag.NORMAL),
        (1_000_000, Lag.NORMAL),
        (1_000_001, Lag.DEGRADED),
        (5_000_000, Lag.DEGRADED),
        (5_000_001, Lag.HIGH),
        (10_000_000, Lag.HIGH),
        (10_000_001, Lag.RESYNC),
        (10**12, Lag.RESYNC),
    ],
)
def test_a_threshold_itself_is_still_within(microseconds: int, lag: Lag) -> None:
    """A lag of exactly one, five or ten seconds is not yet above it; a microsecond more is."""
    assert lag_of(timedelta(microseconds=microseconds)) is lag


def test_the_alarm_has_the_name_that_operators_know() -> None:
    """The alarm's text is what alerts are configured for."""
    assert str(Lag.HIGH) == "PROJECTOR_LAG_HIGH"


BEHIND = {Lag.NORMAL: 0.5, Lag.DEGRADED: 3, Lag.HIGH: 7, Lag.RESYNC: 30}


def raised(path: Iterable[Lag]) -> list[tuple[Lag, ...]]:
    watch, answers = LagWatch(), list[tuple[Lag, ...]]()
    for lag in path:
        watch, alarms = watch.after(timedelta(seconds=BEHIND[lag]))
        answers.append(alarms)
    return answers


@pytest.mark.invariant("E14")
@given(path=st.lists(st.sampled_from(Lag), max_size=30))
def test_each_alarm_is_raised_once_in_an_episode(path: list[Lag]) -> None:
    """An episode lasts until the lag is normal; in it each alarm comes when first reached, lesser ones with it."""
    reached, expected = set[Lag](), list[tuple[Lag, ...]]()
    for lag in path:
        if lag is Lag.NORMAL:
            expected.append((Lag.NORMAL,) if reached else ())
            reached = set()
            continue
        asked = {Lag.DEGRADED: (), Lag.HIGH: (Lag.HIGH,), Lag.RESYNC: (Lag.HIGH, Lag.RESYNC)}[lag]
        expected.append(tuple(each for each in asked if each not in reached))
        reached |= set(asked)
    assert raised(path) == expected


@pytest.mark.invariant("E14")
def test_an_episode_from_beginning_to_end() -> None:
    """A lag that wavers around a threshold is one alarm; after a normal one it is a new alarm."""
    path = [Lag.DEGRADED, Lag.NORMAL, Lag.HIGH, Lag.DEGRADED, Lag.HIGH, Lag.RESYNC, Lag.HIGH, Lag.NORMAL, Lag.RESYNC]
    assert raised(path) == [
        (),
        (),
        (Lag.HIGH,),
        (),
        (),
        (Lag.RESYNC,),
        (),
        (Lag.NORMAL,),
        (Lag.HIGH, Lag.RESYNC),
    ]
