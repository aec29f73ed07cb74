"""Folding of events into snapshots against a table and a second computation; gaps and lag alarms."""

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
    STEP_STATUS_AFTER,
    TERMINAL_STATUSES,
    LagLevel,
    LagMonitor,
    RunSnapshot,
    RunStatus,
    StepStatus,
    contiguous_prefix,
    fold_events,
    lag_level,
)
from ads_pipeline.testing import event_strategies as builders
from ads_pipeline.testing.event_strategies import EventSpec

START = datetime(2026, 3, 1, 10, tzinfo=UTC)

# The status of a run after each event: `-` is inconsistent, `=` changes nothing and is not inconsistent.
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
# The status of a step after each of its events; `=` leaves it unchanged.
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
    PartitionRestated  =
    PartitionRequeued  =
    WithdrawalBegun    =
    PartitionWithdrawn =
    ReprocessRequested =
    TerminalMarked     =
    DayAcknowledged    =
    TerminalCleared    =
    FetchFailed        FAILED
"""
STEPS = dict(line.split() for line in STEPS_TEXT.strip().splitlines())
UNKNOWN = (*builders.UNKNOWN_EVENT_TYPES, "SignalRejected", "runstarted", "PartitionLoadedX")


def grid() -> Iterator[tuple[str, RunStatus, str]]:
    (_, *statuses), *rows = (line.rsplit(maxsplit=6) for line in GRID_TEXT.strip().splitlines())
    classes = {"(of a step)": tuple(STEPS), "(unknown)": UNKNOWN}
    for label, *cells in rows:
        for event_type in classes.get(label.strip(), (label.strip(),)):
            yield from (
                (event_type, RunStatus(status), expected) for status, expected in zip(statuses, cells, strict=True)
            )


GRID = {(event_type, status): expected for event_type, status, expected in grid()}


def log_events(specs: Iterable[EventSpec], *, after: int = 0, apart: int = 1) -> list[LoggedEvent]:
    """The events as a store would return them, one second apart."""
    return [
        LoggedEvent(
            event=event,
            run_seq=after + number * apart,
            persisted_at=START + timedelta(seconds=after + number),
            idempotency_key=event.idempotency_key,
        )
        for number, event in enumerate(builders.make_history("r1", specs), start=1)
    ]


def make_snapshot(status: RunStatus, **parts: Any) -> RunSnapshot:
    """A snapshot with this status, after ten events."""
    started = None if status is RunStatus.PENDING else START
    ended = START + timedelta(seconds=5) if status in TERMINAL_STATUSES else None
    return RunSnapshot(
        engine_run_id="r1", status=status, last_event_seq=10, started_at=started, ended_at=ended, **parts
    )


event_specs: st.SearchStrategy[EventSpec] = (
    builders.event_specs
    | st.tuples(st.sampled_from(sorted(STEPS)), builders.steps)
    | st.tuples(st.sampled_from(UNKNOWN[1:2] + UNKNOWN[3:]), st.none() | builders.steps)
)
histories = st.lists(event_specs, max_size=25)


@pytest.mark.invariant("E12")
def test_grid_has_every_pair() -> None:
    """The grid has every pair of status and known event type, and the product has no other type."""
    assert set(GRID) == {(each, status) for each in (*RUN_TYPES, *STEPS, *UNKNOWN) for status in RunStatus}
    assert set(STEPS) == STEP_TYPES == set(STEP_STATUS_AFTER)
    assert {status for status in RunStatus if status.is_terminal} == {
        RunStatus.COMPLETED,
        RunStatus.FAILED,
        RunStatus.CANCELLED,
    }


@pytest.mark.invariant("E11", "E12")
@pytest.mark.parametrize(("event_type", "status"), GRID, ids=str)
def test_event_has_effect_of_grid(event_type: str, status: RunStatus) -> None:
    """An event changes the run and its step, counts as inconsistent, or does neither; the watermark always moves."""
    expected, expected_step = GRID[event_type, status], STEPS.get(event_type, "=")
    (event,) = log_events([(event_type, "s1" if event_type in STEPS else None)], after=10)
    for previous in (None, *StepStatus):
        before = make_snapshot(status, steps={previous: 1} if previous else {}, inconsistencies=3)
        after, changed = fold_events(before, {"s1": previous} if previous else {}, [event])
        if expected in {"-", "="}:
            assert after == replace(before, last_event_seq=11, inconsistencies=3 + (expected == "-"))
            assert changed == {}
            continue
        assert (after.last_event_seq, after.status, after.inconsistencies) == (11, RunStatus(expected), 3)
        assert changed == ({} if expected_step == "=" else {"s1": StepStatus(expected_step)})
        assert after.steps == (before.steps if expected_step == "=" else {StepStatus(expected_step): 1})
        assert after.started_at == (before.started_at or event.persisted_at)
        assert after.ended_at == (event.persisted_at if after.status in TERMINAL_STATUSES else None)


def compute_snapshot(events: Sequence[LoggedEvent]) -> RunSnapshot:
    """The snapshot computed from the grid, with every step taken from its last event."""
    status, inconsistencies, counted = RunStatus.PENDING, 0, list[LoggedEvent]()
    for each in events:
        expected = GRID[each.event.event_type, status]
        inconsistencies += expected == "-"
        if expected not in {"-", "="}:
            status = RunStatus(expected)
            counted.append(each)
    last_of = {
        each.event.step_id: STEPS[each.event.event_type]
        for each in counted
        if STEPS.get(each.event.event_type, "=") != "="
    }
    return RunSnapshot(
        engine_run_id="r1",
        status=status,
        last_event_seq=events[-1].run_seq if events else 0,
        steps=Counter(StepStatus(each) for each in last_of.values()),
        started_at=counted[0].persisted_at if counted else None,
        ended_at=counted[-1].persisted_at if status in TERMINAL_STATUSES else None,
        inconsistencies=inconsistencies,
    )


@pytest.mark.invariant("E9", "E12")
@given(specs=histories, apart=st.integers(1, 3))
def test_fold_equals_second_computation(specs: list[EventSpec], apart: int) -> None:
    """Status, steps, times and inconsistencies equal those of the second computation."""
    events = log_events(specs, apart=apart)
    assert builders.fold_batches("r1", [events]) == compute_snapshot(events)


@pytest.mark.invariant("E9")
@given(specs=histories, cuts=st.lists(st.integers(0, 25), max_size=5), back=st.integers(0, 4))
def test_folding_in_batches_equals_folding_at_once(specs: list[EventSpec], cuts: list[int], back: int) -> None:
    """Batches with any bounds, also overlapping ones, give the same snapshot as one batch."""
    events = log_events(specs)
    whole = builders.fold_batches("r1", [events])
    assert builders.fold_batches("r1", builders.split_events(events, cuts, overlap=back)) == whole
    assert builders.fold_batches("r1", [events, events, *([each] for each in events)]) == whole


@pytest.mark.invariant("E9")
@given(specs=histories, repeated=st.data())
def test_duplicates_within_batch_are_skipped(specs: list[EventSpec], repeated: st.DataObject) -> None:
    """An event that comes again in the same batch is not folded a second time."""
    events = log_events(specs)
    twice = list(events)
    for index in sorted(repeated.draw(st.lists(st.integers(0, len(events)), max_size=4)), reverse=True):
        twice[index:index] = events[:index]
    assert builders.fold_batches("r1", [twice]) == builders.fold_batches("r1", [events])


@pytest.mark.invariant("E9")
def test_fold_does_not_change_arguments() -> None:
    """Folding does not change the snapshot and the steps passed in."""
    steps, before = {"s1": StepStatus.RUNNING}, make_snapshot(RunStatus.RUNNING, steps={StepStatus.RUNNING: 1})
    after, changed = fold_events(
        before, steps, log_events([("StepCompleted", "s1"), ("StepStarted", "s2")], after=10)
    )
    assert (steps, before.steps) == ({"s1": StepStatus.RUNNING}, {StepStatus.RUNNING: 1})
    assert changed == {"s1": StepStatus.SUCCEEDED, "s2": StepStatus.RUNNING}
    assert after.steps == {StepStatus.SUCCEEDED: 1, StepStatus.RUNNING: 1}


@pytest.mark.invariant("E11")
@given(specs=histories, seqs=st.lists(st.integers(0, 25), max_size=5))
def test_unknown_events_change_only_watermark(specs: list[EventSpec], seqs: list[int]) -> None:
    """Events of unknown types, anywhere in a run, change only `last_event_seq`."""
    mixed = list(specs)
    for seq in seqs:
        mixed.insert(seq, ("NoteTaken", "s1"))
    without = [each for each in log_events(mixed) if each.event.event_type != "NoteTaken"]
    expected = replace(builders.fold_batches("r1", [without]), last_event_seq=len(mixed))
    assert builders.fold_batches("r1", [log_events(mixed)]) == expected


@pytest.mark.invariant("E12")
@given(specs=histories)
def test_terminal_status_never_changes(specs: list[EventSpec]) -> None:
    """After a terminal status, status, steps and times stay; only the watermark and the inconsistencies grow."""
    events = log_events(specs)
    states = [builders.fold_batches("r1", [events[:end]]) for end in range(len(events) + 1)]
    for before, after in pairwise(states):
        assert after.inconsistencies - before.inconsistencies in {0, 1}
        assert after.last_event_seq == before.last_event_seq + 1
        if before.status.is_terminal:
            assert after == replace(
                before, last_event_seq=after.last_event_seq, inconsistencies=after.inconsistencies
            )


@pytest.mark.invariant("E13")
def test_fold_keeps_stale_since() -> None:
    """Folding does not clear `stale_since`; only the store knows when no event is missing."""
    stale = make_snapshot(RunStatus.RUNNING, stale_since=START)
    assert fold_events(stale, {}, log_events([("RunPaused", None)], after=10))[0].stale_since == START


@pytest.mark.invariant("E13")
@given(after=st.integers(0, 5), steps=st.lists(st.integers(1, 3), max_size=8), first=st.integers(0, 8))
def test_prefix_ends_at_first_gap(after: int, steps: list[int], first: int) -> None:
    """The prefix has the events before the first missing sequence number; none when the first is missing."""
    seqs = [first + sum(steps[:number]) for number in range(len(steps) + 1)]
    events = [replace(each, run_seq=seq) for each, seq in zip(sequence(len(seqs)), seqs, strict=True)]
    expected = 0
    while expected < len(seqs) and seqs[expected] == after + expected + 1:
        expected += 1
    assert list(contiguous_prefix(after, events)) == events[:expected]


@pytest.mark.invariant("E13")
def test_gap_example() -> None:
    """Of 1 2 3 5 6, three events follow 0, none follow 3, and two follow 4."""
    events = [replace(each, run_seq=seq) for each, seq in zip(sequence(5), (1, 2, 3, 5, 6), strict=True)]
    prefixes = [
        [each.run_seq for each in contiguous_prefix(after, events[start:])]
        for after, start in ((0, 0), (3, 3), (4, 3))
    ]
    assert prefixes == [[1, 2, 3], [], [5, 6]]
    assert list(contiguous_prefix(7, [])) == []


def sequence(count: int) -> list[LoggedEvent]:
    return log_events([("StepStarted", "s1")] * count)


@pytest.mark.invariant("E14")
@pytest.mark.parametrize(
    ("microseconds", "level"),
    [
        (0, LagLevel.NORMAL),
        (-1, LagLevel.NORMAL),
        (1_000_000, LagLevel.NORMAL),
        (1_000_001, LagLevel.DEGRADED),
        (5_000_000, LagLevel.DEGRADED),
        (5_000_001, LagLevel.HIGH),
        (10_000_000, LagLevel.HIGH),
        (10_000_001, LagLevel.RESYNC),
        (10**12, LagLevel.RESYNC),
    ],
)
def test_lag_bounds_are_inclusive(microseconds: int, level: LagLevel) -> None:
    """A lag of exactly one, five or ten seconds is within its level; one microsecond more is not."""
    assert lag_level(timedelta(microseconds=microseconds)) is level


def test_alarm_name_is_fixed() -> None:
    """The text of the HIGH alarm is the one in alert configurations."""
    assert str(LagLevel.HIGH) == "PROJECTOR_LAG_HIGH"


LAG_SECONDS = {LagLevel.NORMAL: 0.5, LagLevel.DEGRADED: 3, LagLevel.HIGH: 7, LagLevel.RESYNC: 30}


def raise_alarms(path: Iterable[LagLevel]) -> list[tuple[LagLevel, ...]]:
    monitor, raised = LagMonitor(), list[tuple[LagLevel, ...]]()
    for level in path:
        monitor, alarms = monitor.observe(timedelta(seconds=LAG_SECONDS[level]))
        raised.append(alarms)
    return raised


@pytest.mark.invariant("E14")
@given(path=st.lists(st.sampled_from(LagLevel), max_size=30))
def test_alarm_is_raised_once_per_episode(path: list[LagLevel]) -> None:
    """Each alarm is raised when first reached, together with lesser ones, and again only after a normal lag."""
    reached, expected = set[LagLevel](), list[tuple[LagLevel, ...]]()
    for level in path:
        if level is LagLevel.NORMAL:
            expected.append((LagLevel.NORMAL,) if reached else ())
            reached = set()
            continue
        alarms_of_level = {
            LagLevel.DEGRADED: (),
            LagLevel.HIGH: (LagLevel.HIGH,),
            LagLevel.RESYNC: (LagLevel.HIGH, LagLevel.RESYNC),
        }[level]
        expected.append(tuple(each for each in alarms_of_level if each not in reached))
        reached |= set(alarms_of_level)
    assert raise_alarms(path) == expected


@pytest.mark.invariant("E14")
def test_episode_example() -> None:
    """A lag that varies around a threshold raises one alarm; after a normal lag it raises a new one."""
    path = [
        LagLevel.DEGRADED,
        LagLevel.NORMAL,
        LagLevel.HIGH,
        LagLevel.DEGRADED,
        LagLevel.HIGH,
        LagLevel.RESYNC,
        LagLevel.HIGH,
        LagLevel.NORMAL,
        LagLevel.RESYNC,
    ]
    assert raise_alarms(path) == [
        (),
        (),
        (LagLevel.HIGH,),
        (),
        (),
        (LagLevel.RESYNC,),
        (),
        (LagLevel.NORMAL,),
        (LagLevel.HIGH, LagLevel.RESYNC),
    ]
