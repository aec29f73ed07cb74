"""Builds events and Hypothesis strategies for tests of run events."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from string import ascii_letters, digits
from typing import Any

from hypothesis import strategies as st

from ads_pipeline.domain.run_events import Event, LoggedEvent
from ads_pipeline.domain.run_snapshots import RunSnapshot, StepStatus, fold_events

PLAN = "plan-1"
EMITTED_AT = "2026-03-01T10:00:00+05:45"
RUN_EVENT_TYPES = ("RunStarted", "RunPaused", "RunResumed", "RunCompleted", "RunFailed", "RunCancelled")
STEP_EVENT_TYPES = ("StepStarted", "StepCompleted", "StepFailed", "StepCancelled", "StepSkipped")
UNKNOWN_EVENT_TYPES = ("SignalAccepted", "NoteTaken")  # stored, but ignored by snapshots


def new_engine_run_id() -> str:
    """Return a run id that no store has."""
    return f"run-{uuid.uuid4().hex}"


def make_event(
    engine_run_id: str,
    event_type: str,
    step_id: str | None = None,
    *,
    emitted_at: str = EMITTED_AT,
    plan_version: str = PLAN,
    **more: Any,
) -> Event:
    return Event(
        engine_run_id=engine_run_id,
        event_type=event_type,
        step_id=step_id,
        emitted_at=emitted_at,
        plan_version=plan_version,
        **more,
    )


def make_completions(engine_run_id: str, count: int) -> list[Event]:
    """Return `count` different events of one run."""
    return [
        make_event(engine_run_id, "StepCompleted", f"step-{number}", event_data=number) for number in range(count)
    ]


EventSpec = tuple[str, str | None]  # event type, step id
EventCopy = tuple[EventSpec, int, int]  # event, attempt number, event data

steps = st.sampled_from(["s1", "s2", "s3"])
event_specs: st.SearchStrategy[EventSpec] = (
    st.tuples(st.sampled_from(STEP_EVENT_TYPES), steps)
    | st.tuples(st.sampled_from(RUN_EVENT_TYPES[:3]), st.none())
    | st.tuples(st.sampled_from(RUN_EVENT_TYPES + UNKNOWN_EVENT_TYPES), st.none())
)
event_copies: st.SearchStrategy[EventCopy] = st.tuples(event_specs, st.integers(1, 2), st.integers(1, 2))


def make_history(engine_run_id: str, specs: Iterable[EventSpec], *, after: int = 0) -> list[Event]:
    """Return one event per item. Repeated items get different attempt numbers."""
    return [
        make_event(engine_run_id, event_type, step_id, logical_attempt_id=attempt)
        for attempt, (event_type, step_id) in enumerate(specs, start=after + 1)
    ]


def split_events(
    logged: Sequence[LoggedEvent], cuts: Iterable[int], *, overlap: int
) -> Iterator[Sequence[LoggedEvent]]:
    """Yield batches of the events. Each batch repeats the last `overlap` events of the one before."""
    start = 0
    for end in (*sorted(cuts), len(logged)):
        yield logged[max(0, start - overlap) : end]
        start = min(end, len(logged))


def fold_batches(engine_run_id: str, batches: Iterable[Sequence[LoggedEvent]]) -> RunSnapshot:
    """Fold the batches one after the other, with the stored steps that a store would read."""
    snapshot, stored = RunSnapshot(engine_run_id=engine_run_id), dict[str, StepStatus]()
    for batch in batches:
        named = {each.event.step_id for each in batch}
        snapshot, changed = fold_events(snapshot, {step: stored[step] for step in stored if step in named}, batch)
        stored |= changed
    return snapshot


letters = st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")
texts = st.text(letters, max_size=30) | st.sampled_from(
    ["Ünïcödé", "日本語", "😀\U0001d4b3\U0010ffff", '"\\/\b\f\n\r\t', "\u2028"]
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0.1, -0.0, 1.0, 1e300, 5e-324, 2**63 - 1, -(2**63)])
    | texts
)
json_values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)

_alphanumeric = ascii_letters + digits


def _names(punctuation: str, longest: int) -> st.SearchStrategy[str]:
    rest = st.text(_alphanumeric + punctuation, max_size=longest - 1)
    longest_name = st.just("n" + (punctuation * longest)[: longest - 1])
    return st.builds(str.__add__, st.sampled_from(_alphanumeric), rest) | longest_name


names = _names("._:+-", 96)
step_names = _names("._:/=+-", 256).filter(lambda name: name != "RUN")
uuids = st.uuids().map(str)
numbers = st.integers(1, 2**63 - 1)
zones = st.integers(-(24 * 60 - 1), 24 * 60 - 1).map(lambda minutes: timezone(timedelta(minutes=minutes)))
instants = st.sampled_from(
    ["2026-03-01T10:00:00+05:45", "2026-03-01T10:00:00Z", "2026-03-01T10:00:00.5-00:00", "20260301T100000+0000"]
) | st.datetimes(timezones=zones).map(datetime.isoformat)

# Events that use every field.
_fields: dict[str, st.SearchStrategy[Any]] = {
    "plan_version": names,
    "emitted_at": instants,
    "engine_attempt_id": st.none() | numbers,
    "event_data": json_values,
    "event_id": uuids,
    "adapter_version": st.none() | names,
    "engine_run_ref": json_values,
    "caused_by_signal_id": st.none() | names,
    "parent_event_id": st.none() | uuids,
}
full_events = st.builds(
    make_event,
    st.just("run"),
    st.sampled_from(STEP_EVENT_TYPES),
    step_names,
    logical_attempt_id=st.none() | numbers,
    **_fields,
) | st.builds(
    make_event,
    st.just("run"),
    st.sampled_from(RUN_EVENT_TYPES + UNKNOWN_EVENT_TYPES),
    logical_attempt_id=numbers,
    **_fields,
)
