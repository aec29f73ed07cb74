"""Defines what can happen in a run as immutable facts, and the key by which two tellings are one event.

A run here is one execution of an engine, such as a Dagster run, and its steps are partitions. What the events make of
a run is for `run_snapshots` to say, and where they are kept for `ledger.event_log`.
"""

import hashlib
import json
import math
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from ads_pipeline.errors import BadEvent, quoted

RUN_LEVEL: Final = "RUN"  # stands in the key where a step would
DEEPEST, LONGEST = 32, 65_536
LONGEST_INSTANT: Final = 40
LARGEST_INT: Final = 2**63

_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._:+-]{0,95}")
_STEP: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._:/=+-]{0,255}")
_TYPE: Final = re.compile(r"[A-Za-z][0-9A-Za-z]{0,63}")


RUN_TYPES: Final = frozenset({"RunStarted", "RunPaused", "RunResumed", "RunCompleted", "RunFailed", "RunCancelled"})
# These happen again and again to one run. Each occurrence that brings no number of its own is numbered by the store.
REPEATABLE: Final = frozenset({"RunPaused", "RunResumed", "SignalAccepted", "SignalRejected"})
# What the ledger itself tells of a step, in the transaction of the change. Nobody else may append these.
LEDGER_TYPES: Final = frozenset(
    {
        "RawSealed",
        "VerdictAccepted",
        "VerdictRejected",
        "DemotionBegun",
        "PartitionLoaded",
        "LoadFailed",
        "PartitionEnqueued",
        "PartitionRequeued",
        "PartitionWithdrawn",
        "ReprocessRequested",
        "TerminalMarked",
        "TerminalCleared",
        "FetchFailed",
    }
)
STEP_TYPES: Final = LEDGER_TYPES | {"StepStarted", "StepCompleted", "StepFailed", "StepCancelled", "StepSkipped"}


def idempotency_key(
    *, run_id: str, step_id: str | None, logical_attempt_id: int, event_type: str, plan_version: str
) -> str:
    """What makes two tellings one event. The engine's own restarts are no part of it."""
    parts = (run_id, step_id or RUN_LEVEL, str(logical_attempt_id), event_type, plan_version)
    return hashlib.sha256("|".join(parts).encode()).hexdigest()


def canonical_json(value: object, *, of: str = "event_data") -> str:
    """The one text for this value, the same on every database; BadEvent for what JSON or a database cannot keep."""
    _check_json(value, of, 0)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if len(text) > LONGEST:
        raise BadEvent(of, f"is longer than {LONGEST:,} characters; say where the rest lies instead")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened, as its producer tells it. `event_data` is any JSON value; `payload` is its text."""

    run_id: str
    event_type: str
    plan_version: str
    emitted_at: str  # ISO 8601 with an offset, kept as it was written
    step_id: str | None = None
    logical_attempt_id: int | None = None  # None: the first, or the next where an event may come again
    engine_attempt_id: int | None = None
    event_data: Any = field(default=None, compare=False)
    event_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    adapter_version: str | None = None
    engine_run_ref: Any = field(default=None, compare=False)
    caused_by_signal_id: str | None = None
    parent_event_id: str | None = None
    payload: str = field(init=False)
    engine_run: str = field(init=False)

    def __post_init__(self) -> None:
        for name, pattern in _PATTERNS.items():
            _check_name(name, getattr(self, name), pattern)
        for name in ("logical_attempt_id", "engine_attempt_id"):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or not 1 <= number < LARGEST_INT):
                raise BadEvent(name, f"{quoted(number)} must be a whole number from 1")
        if (self.event_type in RUN_TYPES or self.event_type in REPEATABLE) and self.step_id is not None:
            raise BadEvent("step_id", f"{self.event_type} is about the whole run")
        if self.event_type in STEP_TYPES and self.step_id is None:
            raise BadEvent("step_id", f"{self.event_type} needs one")
        if self.step_id == RUN_LEVEL:
            raise BadEvent("step_id", f"{RUN_LEVEL} stands for the run itself in the key, so no step has that name")
        _check_instant(self.emitted_at)
        object.__setattr__(self, "payload", canonical_json(self.event_data))
        object.__setattr__(self, "engine_run", canonical_json(self.engine_run_ref, of="engine_run_ref"))
        # A copy, because what a producer does to its own afterwards did not happen.
        object.__setattr__(self, "event_data", json.loads(self.payload))
        if self.logical_attempt_id is None and self.event_type not in REPEATABLE:
            object.__setattr__(self, "logical_attempt_id", 1)

    @property
    def idempotency_key(self) -> str:
        if self.logical_attempt_id is None:
            raise BadEvent("logical_attempt_id", f"{self.event_type} has no number yet; the store gives it")
        return idempotency_key(
            run_id=self.run_id,
            step_id=self.step_id,
            logical_attempt_id=self.logical_attempt_id,
            event_type=self.event_type,
            plan_version=self.plan_version,
        )

    def numbered(self, occurrence: int) -> "Event":
        """The same event as the run's n-th of its type."""
        return replace(self, logical_attempt_id=occurrence)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """An event with the place and the time that the store gave it."""

    event: Event
    run_seq: int
    persisted_at: datetime
    idempotency_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """What became of an append. One that was there already keeps its place, and its payload whatever was sent."""

    run_seq: int
    idempotent: bool
    payload_conflict: bool = False

    @property
    def persisted(self) -> bool:
        return not self.idempotent


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose events these are: the engine's run, and the version of the plan that it follows."""

    run_id: str
    plan_version: str
    engine_attempt_id: int | None = None
    adapter_version: str | None = None
    engine_run_ref: Any = None

    def event(self, event_type: str, *, at: datetime, step_id: str | None = None, **more: Any) -> Event:
        """An event of this run."""
        return Event(
            run_id=self.run_id,
            plan_version=self.plan_version,
            engine_attempt_id=self.engine_attempt_id,
            adapter_version=self.adapter_version,
            engine_run_ref=self.engine_run_ref,
            event_type=event_type,
            emitted_at=at.isoformat(timespec="microseconds"),
            step_id=step_id,
            **more,
        )


_PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {
    "run_id": _NAME,
    "plan_version": _NAME,
    "event_type": _TYPE,
    "step_id": _STEP,
    "adapter_version": _NAME,
    "caused_by_signal_id": _NAME,
    "event_id": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "parent_event_id": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
}
_OPTIONAL: Final = frozenset({"step_id", "adapter_version", "caused_by_signal_id", "parent_event_id"})


def _check_name(name: str, value: object, pattern: re.Pattern[str]) -> None:
    """A bar would let two keys be spelled alike, and control characters break lines; neither is in any pattern."""
    if value is None and name in _OPTIONAL:
        return
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise BadEvent(name, f"{quoted(value)} must match {pattern.pattern}")


def _check_instant(text: str) -> None:
    try:
        # Python takes any character between day and time; ISO 8601 takes the T.
        aware = datetime.fromisoformat(text).tzinfo is not None and "T" in text and len(text) <= LONGEST_INSTANT
    except (TypeError, ValueError):
        aware = False
    if not aware:
        raise BadEvent("emitted_at", f"{quoted(text)} must be ISO 8601 with an offset from UTC")


def _check_json(value: object, of: str, depth: int) -> None:
    """What either database or JSON would refuse, change or guess at is refused for both."""
    if depth > DEEPEST:
        raise BadEvent(of, f"is nested deeper than {DEEPEST}")
    if isinstance(value, dict):
        for name, each in value.items():
            if not isinstance(name, str):
                raise BadEvent(of, f"holds the name {quoted(name)}, which is no text")
            _check_text(name, of)
            _check_json(each, of, depth + 1)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_json(each, of, depth + 1)
    else:
        _check_leaf(value, of)


def _check_leaf(value: object, of: str) -> None:
    match value:
        case None | bool():
            return
        case str():
            _check_text(value, of)
        case int():
            if not -LARGEST_INT <= value < LARGEST_INT:
                raise BadEvent(of, "holds a number that does not fit 64 bits; write it as text")
        case float():
            if not math.isfinite(value):
                raise BadEvent(of, f"holds {value}, which is not JSON")
        case _:
            raise BadEvent(of, f"holds a {type(value).__name__}, which is not JSON")


def _check_text(text: str, of: str) -> None:
    if "\0" in text:
        raise BadEvent(of, "holds a NUL character")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise BadEvent(of, "holds half of a surrogate pair")
