"""Run events: validation, the idempotency key and the canonical JSON text."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.errors import BadEvent
from ads_pipeline.domain.run_events import (
    LEDGER_TYPES,
    MAX_DATA_DEPTH,
    MAX_DATA_LENGTH,
    REPEATABLE,
    RUN_TYPES,
    STEP_TYPES,
    AppendResult,
    Event,
    EventOrigin,
    canonical_json,
    idempotency_key,
)
from ads_pipeline.testing import event_strategies as builders
from ads_pipeline.testing.event_strategies import make_event

Parts = tuple[str, str | None, int, str, str]  # run, step, logical attempt, type, plan
EVENT_ID = "0b6ff1c0-7d1f-4f39-9a55-2d8b0f6a7c11"

# Computed without this product: printf '%s' 'r1|RUN|1|RunStarted|p1' | sha256sum
GOLDEN: list[tuple[Parts, str]] = [
    (("r1", None, 1, "RunStarted", "p1"), "0fa9aef46f0e28f87a14cf07f75889057e2254ab1a253a38474ca58554384db6"),
    (("r1", "s1", 1, "StepCompleted", "p1"), "6e04dabab6059e5ec60988fc8d371dc5de90d7ddd1c7ff79fead0fa617f67366"),
    (  # 'run-2026-03-01|google_ads/1234567890/campaign_daily/2026-02-28|2|StepFailed|v1.4.0'
        ("run-2026-03-01", "google_ads/1234567890/campaign_daily/2026-02-28", 2, "StepFailed", "v1.4.0"),
        "a31ccb4de6f1667ba2e7b489243525c224bc694b90c481f07d7f89eed8cf3c85",
    ),
    ((EVENT_ID, None, 3, "RunPaused", "plan:7+rc"),
     "bca149d9c9f3eb24fe433ab01f349fe73bb57c9631cb1765f66ce91c33267255"),
    (("R", "S", 2**63 - 1, "Note", "P"), "e68e4c549a0c4b65c313f4a6b6ea2aaebc40acae9781e9bda82a075c49e0dbfa"),
    (("r1", None, 1, "SignalAccepted", "p1"), "bd9a057a106023cfa73fee0fdcd663ddedafd1bfa09444909be685283ad30581"),
]  # fmt: skip


def event_with_key(parts: Parts, **more: Any) -> Event:
    engine_run_id, step_id, attempt, event_type, plan = parts
    return make_event(engine_run_id, event_type, step_id, plan_version=plan, logical_attempt_id=attempt, **more)


def change_field(event: Event, name: str, value: Any) -> Event:
    """The event with another value in one field."""
    return replace(event, **dict[str, Any]({name: value}))


@pytest.mark.invariant("E16")
@pytest.mark.parametrize(("parts", "digest"), GOLDEN, ids=str)
def test_key_is_standard_sha256(parts: Parts, digest: str) -> None:
    """The key is the SHA-256 of the five parts joined by bars."""
    engine_run_id, step_id, attempt, event_type, plan = parts
    assert event_with_key(parts).idempotency_key == digest
    assert digest == idempotency_key(
        engine_run_id=engine_run_id,
        step_id=step_id,
        logical_attempt_id=attempt,
        event_type=event_type,
        plan_version=plan,
    )


@pytest.mark.invariant("E16")
def test_attempt_defaults_to_one() -> None:
    """An event without an attempt number is attempt 1; a repeatable event has no key until the store numbers it."""
    event = make_event("r1", "StepCompleted", "s1", plan_version="p1")
    assert (event.logical_attempt_id, event.idempotency_key) == (1, GOLDEN[1][1])
    for event_type in sorted(REPEATABLE):
        again = make_event("r1", event_type)
        assert again.logical_attempt_id is None
        with pytest.raises(BadEvent, match=r"^event: logical_attempt_id: .*has not numbered"):
            _ = again.idempotency_key
        assert (
            again.with_occurrence(2).idempotency_key
            == make_event("r1", event_type, logical_attempt_id=2).idempotency_key
        )


# Few values, so that equal parts are as common as parts that only look alike when they are joined.
parts_of_keys: st.SearchStrategy[Parts] = st.tuples(
    st.sampled_from(["a", "RUN", "run", "1"]) | builders.names,
    st.none() | st.sampled_from(["a", "1", "run", "None"]) | builders.step_names,
    st.sampled_from([1, 11]) | builders.numbers,
    st.sampled_from(["a", "A", "RUN", "a1"]),
    st.sampled_from(["a", "RUN", "1"]) | builders.names,
)


@pytest.mark.invariant("E16")
@given(one=parts_of_keys, other=parts_of_keys, choices=st.lists(st.booleans(), min_size=5, max_size=5))
def test_key_changes_with_each_part(one: Parts, other: Parts, choices: list[bool]) -> None:
    """Two events have one key exactly when all five parts are equal."""
    mixed: Any = tuple(b if take else a for a, b, take in zip(one, other, choices, strict=True))
    assert (event_with_key(one).idempotency_key == event_with_key(mixed).idempotency_key) is (one == mixed)
    assert event_with_key(one).idempotency_key == event_with_key(one).idempotency_key


@pytest.mark.invariant("E16")
@given(event=builders.full_events, other=builders.full_events)
def test_key_ignores_other_fields(event: Event, other: Event) -> None:
    """Engine attempts, ids, times, versions and payload do not change the key."""
    free = (
        "event_id", "emitted_at", "engine_attempt_id", "event_data", "adapter_version", "engine_run_ref",
        "caused_by_signal_id", "parent_event_id",
    )  # fmt: skip
    assert replace(event, **{name: getattr(other, name) for name in free}).idempotency_key == event.idempotency_key


@pytest.mark.invariant("E16")
@pytest.mark.parametrize("name", ["engine_run_id", "step_id", "event_type", "plan_version", "logical_attempt_id"])
@pytest.mark.parametrize("value", ["a|b", "|", "a|", "|a"])
def test_key_parts_have_no_separator(name: str, value: str) -> None:
    """A bar in any part is refused, because two different events could get one key."""
    with pytest.raises(BadEvent, match=f"^event: {name}: ") as refused:
        change_field(event_with_key(GOLDEN[1][0]), name, value)
    assert refused.value.field == name


@pytest.mark.invariant("E16")
def test_step_name_run_is_reserved() -> None:
    """A step named RUN is refused, because it would have the key of the run itself."""
    with pytest.raises(BadEvent, match=r"^event: step_id: RUN "):
        make_event("r1", "NoteTaken", "RUN")


NAMES = ["engine_run_id", "plan_version", "event_type", "step_id", "adapter_version", "caused_by_signal_id"]
IDS = ["event_id", "parent_event_id"]
BAD_NAMES: list[object] = [
    "",
    " a",
    "a b",
    "a\n",
    "\n",
    "a\0",
    "_a",
    "-",
    "é",
    "a\u2028",
    "\u0661",
    1,
    b"a",
    ["a"],
    "x" * 257,
]
BAD_IDS: list[object] = ["", EVENT_ID.upper(), EVENT_ID + "\n", EVENT_ID.replace("-", ""), "{" + EVENT_ID + "}", 1]


@pytest.mark.invariant("X2")
@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in NAMES for value in BAD_NAMES] + [(name, value) for name in IDS for value in BAD_IDS],
    ids=ascii,
)
def test_invalid_names_are_refused(name: str, value: object) -> None:
    """An invalid name is refused with its field, on one printable line."""
    fields: dict[str, Any] = {"engine_run_id": "r1", "event_type": "NoteTaken", "step_id": "s1"} | {name: value}
    with pytest.raises(BadEvent, match=f"^event: {name}: ") as refused:
        Event(**{"plan_version": builders.PLAN, "emitted_at": builders.EMITTED_AT} | fields)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("name", ["engine_run_id", "plan_version", "event_type", "event_id", "emitted_at"])
def test_required_fields_are_not_none(name: str) -> None:
    """Run, plan, type, id and time are required."""
    with pytest.raises(BadEvent, match=f"^event: {name}: "):
        change_field(make_event("r1", "NoteTaken"), name, None)


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        *[(each, 96) for each in ("engine_run_id", "plan_version", "adapter_version", "caused_by_signal_id")],
        ("step_id", 256),
        ("event_type", 64),
    ],
)
def test_name_length_is_limited(name: str, longest: int) -> None:
    """A name may be as long as its column, and not one character longer."""
    event = make_event("r1", "NoteTaken", "s1")
    assert getattr(change_field(event, name, "n" * longest), name) == "n" * longest
    with pytest.raises(BadEvent, match=f"^event: {name}: "):
        change_field(event, name, "n" * (longest + 1))


@pytest.mark.parametrize("name", ["logical_attempt_id", "engine_attempt_id"])
@pytest.mark.parametrize(
    "number", [0, -1, True, 1.0, "1", 2**63, float("nan"), 10**5000], ids=lambda n: type(n).__name__
)
def test_attempt_numbers_start_at_one(name: str, number: object) -> None:
    """An attempt number is a whole number from 1 that fits 64 bits."""
    with pytest.raises(BadEvent, match=f"^event: {name}: "):
        change_field(make_event("r1", "StepStarted", "s1"), name, number)


def test_event_type_decides_about_step() -> None:
    """Run events have no step, step events have one, and unknown types may have one."""
    assert not STEP_TYPES & (RUN_TYPES | REPEATABLE)
    assert LEDGER_TYPES < STEP_TYPES
    for event_type in sorted(RUN_TYPES | REPEATABLE):
        assert make_event("r1", event_type).step_id is None
        with pytest.raises(BadEvent, match=f"^event: step_id: {event_type} is a run-level event"):
            make_event("r1", event_type, "s1")
    for event_type in sorted(STEP_TYPES):
        assert make_event("r1", event_type, "s1").step_id == "s1"
        with pytest.raises(BadEvent, match=f"^event: step_id: {event_type} needs a step_id"):
            make_event("r1", event_type)
    assert [make_event("r1", "NoteTaken", step).step_id for step in (None, "s1")] == [None, "s1"]


@pytest.mark.invariant("E15")
@pytest.mark.parametrize(
    "text",
    ["2026-03-01T10:00:00Z", "2026-03-01T10:00:00+05:45", "2026-03-01T10:00:00.123456-00:00", "20260301T100000+0000",
     "2026-03-01T10:00:00,5+01", "2026-W09-7T10:00+14:00", "0001-01-01T00:00:00+23:59"],
)  # fmt: skip
def test_emitted_at_is_kept_verbatim(text: str) -> None:
    """Any ISO 8601 text with an offset is accepted and kept unchanged."""
    assert make_event("r1", "RunStarted", emitted_at=text).emitted_at == text


@pytest.mark.parametrize(
    "text",
    ["", "now", "2026-03-01", "2026-03-01T10:00:00", "2026-03-01T10:00:00+25:00", "2026-02-30T10:00:00Z",
     "2026-03-01 10:00:00Z", "2026-03-01|10:00:00Z", "2026-03-01\n10:00:00Z", "2026-03-01\ud80010:00:00Z",
     "2026-03-01T10:00:00Z\n", " 2026-03-01T10:00:00Z", "\u0662\u0660\u0662\u0666-03-01T10:00:00Z",
     "2026-03-01T10:00:00.123456+05:45:30.123456",
     "2026-03-01T10:00:00Z" + " " * 30, 1772359200, 1.5, b"2026-03-01T10:00:00Z", datetime(2026, 3, 1, tzinfo=UTC)],
    ids=ascii,
)  # fmt: skip
def test_invalid_time_is_refused(text: Any) -> None:
    """A time without an offset, or in a format that only Python reads, is refused."""
    with pytest.raises(BadEvent, match=r"^event: emitted_at: ") as refused:
        make_event("r1", "RunStarted", emitted_at=text)
    assert str(refused.value).isprintable()


def test_numbering_changes_only_the_number() -> None:
    """`with_occurrence` changes only the attempt number; the event_id stays."""
    event = make_event(
        "r1", "RunPaused", event_data={"why": "lunch"}, engine_run_ref={"id": 7}, adapter_version="1.0"
    )
    assert replace(event.with_occurrence(3), logical_attempt_id=None) == event
    assert event.with_occurrence(3).logical_attempt_id == 3
    assert make_event("r1", "RunPaused").event_id != event.event_id


def nested(levels: int) -> object:
    value: object = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


circle: list[object] = []
circle.append(circle)
REFUSED: dict[str, object] = {
    "not a number": float("nan"),
    "infinity": float("inf"),
    "minus infinity": -float("inf"),
    "NUL": "a\0b",
    "NUL in a name": {"a\0": 1},
    "high surrogate": "\ud83d",
    "low surrogate": "a\ude00",
    "surrogate in a name": {"\udfff": 1},
    "two halves": "\ud83d\ude00",
    "number as a name": {1: "a"},
    "None as a name": {None: "a"},
    "bool as a name": {True: "a"},
    "65 bits": 2**63,
    "65 bits below zero": -(2**63) - 1,
    "long number": 10**5000,
    "set": {1},
    "frozenset": frozenset(),
    "bytes": b"a",
    "date": date(2026, 3, 1),
    "object": object(),
    "complex": 1j,
    "too deep": nested(MAX_DATA_DEPTH + 1),
    "endless": circle,
    "too long": "x" * (MAX_DATA_LENGTH - 1),
    "too long with astral letters": "😀" * (MAX_DATA_LENGTH - 1),
    "too many": [0] * MAX_DATA_LENGTH,
}


@pytest.mark.invariant("E18")
@pytest.mark.parametrize("field", ["event_data", "engine_run_ref"])
@pytest.mark.parametrize("what", REFUSED)
def test_unstorable_data_is_refused(what: str, field: str) -> None:
    """A value that some database cannot store is refused with its field, wherever it is nested."""
    values = [REFUSED[what]] if what.startswith("too deep") else [REFUSED[what], [0, {"a": [REFUSED[what]]}]]
    for value in values:
        with pytest.raises(BadEvent, match=f"^event: {field}: ") as refused:
            change_field(make_event("r1", "RunStarted"), field, value)
        assert str(refused.value).isprintable()
        with pytest.raises(BadEvent, match=r"^event: event_data: "):
            canonical_json(value)


@pytest.mark.invariant("E18")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "-9223372036854775808"),
        (nested(MAX_DATA_DEPTH), '[{"a":' * (MAX_DATA_DEPTH // 2) + "1" + "}]" * (MAX_DATA_DEPTH // 2)),
        ("x" * (MAX_DATA_LENGTH - 2), '"' + "x" * (MAX_DATA_LENGTH - 2) + '"'),
        ("😀" * (MAX_DATA_LENGTH - 2), '"' + "😀" * (MAX_DATA_LENGTH - 2) + '"'),
        ({"b": (1, 1.0, True), "a": None, "B": -0.0}, '{"B":-0.0,"a":null,"b":[1,1.0,true]}'),
        ("\u2028\x7f\x01", '"\u2028\x7f\\u0001"'),
    ],
    ids=["largest", "smallest", "deepest", "longest", "longest astral", "mixed", "odd letters"],
)
def test_canonical_json_examples(value: object, text: str) -> None:
    """Keys are sorted, there is no whitespace, characters are not escaped; values up to the limits are accepted."""
    assert canonical_json(value) == text
    event = make_event("r1", "RunStarted", event_data=value, engine_run_ref=value)
    assert (event.payload, event.engine_run_json) == (text, text)


def reverse_order(value: object) -> object:
    """The same value with the keys of each object in reverse order, and tuples in place of lists."""
    if isinstance(value, dict):
        return {name: reverse_order(value[name]) for name in reversed(value)}
    return tuple(reverse_order(each) for each in value) if isinstance(value, list) else value


@pytest.mark.invariant("E18")
@given(value=builders.json_values)
def test_equal_values_have_equal_text(value: object) -> None:
    """The order of keys does not matter, parsing the text gives the value, and its text is the same again."""
    text = canonical_json(value)
    assert canonical_json(reverse_order(value)) == text
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text
    assert "\n" not in text


@pytest.mark.invariant("E18")
@given(one=builders.json_values, other=builders.json_values)
def test_different_values_have_different_text(one: object, other: object) -> None:
    """Values that differ, even as 1 and 1.0 do, have different texts, and so have their events."""
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (canonical_json(one) == canonical_json(other)) is same
    event = make_event("r1", "RunStarted", event_data=one)
    assert (replace(event, event_data=other) == event) is same


@pytest.mark.invariant("E18")
@pytest.mark.parametrize("field", ["event_data", "engine_run_ref"])
def test_events_are_compared_by_text(field: str) -> None:
    """Events are equal when their texts are, and can be members of sets."""
    event = change_field(make_event("r1", "RunStarted"), field, {"a": [1], "b": 2})
    same, other = change_field(event, field, {"b": 2, "a": (1,)}), change_field(event, field, {"a": [1.0], "b": 2})
    assert {event, same, other} == {event, other}
    assert event != other


def test_append_is_new_or_idempotent() -> None:
    """An append is either idempotent or persisted."""
    for idempotent in (True, False):
        assert AppendResult(run_seq=1, idempotent=idempotent).persisted is not idempotent


def test_origin_provides_shared_fields() -> None:
    """`EventOrigin.make_event` fills the fields of the run; the caller adds type, step and time."""
    origin = EventOrigin(
        engine_run_id="r1", plan_version="p1", engine_attempt_id=2, adapter_version="1.0", engine_run_ref={"id": "x"}
    )
    at = datetime(2026, 3, 1, 10, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    event = origin.make_event("StepStarted", at=at, step_id="s1", event_data=[1])
    expected = make_event(
        "r1", "StepStarted", "s1", plan_version="p1", engine_attempt_id=2, adapter_version="1.0",
        engine_run_ref={"id": "x"}, event_data=[1], event_id=event.event_id,
        emitted_at="2026-03-01T10:00:00.000000+05:45",
    )  # fmt: skip
    assert event == expected
    with pytest.raises(BadEvent, match=r"^event: emitted_at: "):
        origin.make_event("RunStarted", at=at.replace(tzinfo=None))
