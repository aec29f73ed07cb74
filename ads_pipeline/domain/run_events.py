"""Run events: their types, their validation, and the idempotency key that identifies an event.

A run here is one execution of an engine, such as a Dagster run; its steps are partitions. `run_snapshots` folds
events into the state of a run, and `ledger.events` stores them.
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

from ads_pipeline.domain.errors import BadEvent
from ads_pipeline.domain.quoting import quoted

# MINOR grows with additions that readers may ignore, MAJOR with any other change. A test records the contract of this
# version; docs/run-events.md has the rule.
CONTRACT_VERSION: Final = "1.0"
RUN_LEVEL: Final = "RUN"  # replaces the step in the key of a run-level event
MAX_DATA_DEPTH, MAX_DATA_LENGTH = 32, 65_536
MAX_TIMESTAMP_LENGTH: Final = 40
INT64_LIMIT: Final = 2**63

_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._:+-]{0,95}")
_STEP: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._:/=+-]{0,255}")
_TYPE: Final = re.compile(r"[A-Za-z][0-9A-Za-z]{0,63}")

RUN_TYPES: Final = frozenset({"RunStarted", "RunPaused", "RunResumed", "RunCompleted", "RunFailed", "RunCancelled"})
# These can occur many times in one run. The store numbers each occurrence that has no number of its own.
REPEATABLE: Final = frozenset({"RunPaused", "RunResumed", "SignalAccepted", "SignalRejected"})
# The ledger emits these about a step, in the transaction of the change. Other producers may not append them.
LEDGER_TYPES: Final = frozenset(
    {
        "RawSealed",
        "VerdictAccepted",
        "VerdictRejected",
        "PartitionRestated",
        "DemotionBegun",
        "PartitionLoaded",
        "LoadFailed",
        "PartitionEnqueued",
        "PartitionRequeued",
        "WithdrawalBegun",
        "PartitionWithdrawn",
        "ReprocessRequested",
        "TerminalMarked",
        "TerminalCleared",
        "DayAcknowledged",
        "FetchFailed",
    }
)
STEP_TYPES: Final = LEDGER_TYPES | {"StepStarted", "StepCompleted", "StepFailed", "StepCancelled", "StepSkipped"}


def idempotency_key(
    *, engine_run_id: str, step_id: str | None, logical_attempt_id: int, event_type: str, plan_version: str
) -> str:
    """Two appends with the same key are one event. The engine's own restarts do not change the key."""
    parts = (engine_run_id, step_id or RUN_LEVEL, str(logical_attempt_id), event_type, plan_version)
    return hashlib.sha256("|".join(parts).encode()).hexdigest()


def canonical_json(value: object, *, field_name: str = "event_data") -> str:
    """The canonical JSON text of a value. BadEvent when JSON or one of the databases cannot store it."""
    _check_json(value, field_name, 0)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if len(text) > MAX_DATA_LENGTH:
        raise BadEvent(
            field_name, f"is longer than {MAX_DATA_LENGTH:,} characters; store the data elsewhere and reference it"
        )
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event, as its producer reports it. `event_data` is any JSON value; `payload` is its canonical text."""

    engine_run_id: str
    event_type: str
    plan_version: str
    emitted_at: str  # ISO 8601 with an offset, stored verbatim
    step_id: str | None = None
    logical_attempt_id: int | None = None  # None: 1, or the next occurrence of a repeatable type
    engine_attempt_id: int | None = None
    event_data: Any = field(default=None, compare=False)
    event_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    adapter_version: str | None = None
    engine_run_ref: Any = field(default=None, compare=False)
    caused_by_signal_id: str | None = None
    parent_event_id: str | None = None
    payload: str = field(init=False)
    engine_run_json: str = field(init=False)

    def __post_init__(self) -> None:
        for name, pattern in _PATTERNS.items():
            _check_name(name, getattr(self, name), pattern)
        for name in ("logical_attempt_id", "engine_attempt_id"):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or not 1 <= number < INT64_LIMIT):
                raise BadEvent(name, f"{quoted(number)} must be a whole number from 1")
        if (self.event_type in RUN_TYPES or self.event_type in REPEATABLE) and self.step_id is not None:
            raise BadEvent("step_id", f"{self.event_type} is a run-level event and has no step_id")
        if self.event_type in STEP_TYPES and self.step_id is None:
            raise BadEvent("step_id", f"{self.event_type} needs a step_id")
        if self.step_id == RUN_LEVEL:
            raise BadEvent("step_id", f"{RUN_LEVEL} is reserved for run-level events")
        _check_instant(self.emitted_at)
        object.__setattr__(self, "payload", canonical_json(self.event_data))
        object.__setattr__(self, "engine_run_json", canonical_json(self.engine_run_ref, field_name="engine_run_ref"))
        # A copy: later changes by the producer must not change the event.
        object.__setattr__(self, "event_data", json.loads(self.payload))
        if self.logical_attempt_id is None and self.event_type not in REPEATABLE:
            object.__setattr__(self, "logical_attempt_id", 1)

    @property
    def idempotency_key(self) -> str:
        if self.logical_attempt_id is None:
            raise BadEvent("logical_attempt_id", f"the store has not numbered this {self.event_type} yet")
        return idempotency_key(
            engine_run_id=self.engine_run_id,
            step_id=self.step_id,
            logical_attempt_id=self.logical_attempt_id,
            event_type=self.event_type,
            plan_version=self.plan_version,
        )

    def with_occurrence(self, occurrence: int) -> "Event":
        """The same event as the n-th of its type in the run."""
        return replace(self, logical_attempt_id=occurrence)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """An event with the sequence number and the time that the store gave it."""

    event: Event
    run_seq: int
    persisted_at: datetime
    idempotency_key: str

    @property
    def event_type(self) -> str:
        return self.event.event_type

    @property
    def step_id(self) -> str | None:
        return self.event.step_id


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """The result of an append. An event that was stored before keeps its sequence number and its first payload."""

    run_seq: int
    idempotent: bool
    payload_conflict: bool = False

    @property
    def persisted(self) -> bool:
        return not self.idempotent


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOrigin:
    """The producer of events: the engine's run and the version of its plan."""

    engine_run_id: str
    plan_version: str
    engine_attempt_id: int | None = None
    adapter_version: str | None = None
    engine_run_ref: Any = None

    def make_event(self, event_type: str, *, at: datetime, step_id: str | None = None, **more: Any) -> Event:
        """An event of this run."""
        return Event(
            engine_run_id=self.engine_run_id,
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
    "engine_run_id": _NAME,
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
    """No pattern allows the separator of the key (a bar) or a control character."""
    if value is None and name in _OPTIONAL:
        return
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise BadEvent(name, f"{quoted(value)} must match {pattern.pattern}")


def _check_instant(text: str) -> None:
    try:
        # Python accepts any character between date and time; ISO 8601 requires T.
        valid = datetime.fromisoformat(text).tzinfo is not None and "T" in text and len(text) <= MAX_TIMESTAMP_LENGTH
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise BadEvent("emitted_at", f"{quoted(text)} must be ISO 8601 with an offset from UTC")


def _check_json(value: object, field_name: str, depth: int) -> None:
    """BadEvent for a value that JSON or one of the databases would refuse or change."""
    if depth > MAX_DATA_DEPTH:
        raise BadEvent(field_name, f"is nested deeper than {MAX_DATA_DEPTH}")
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise BadEvent(field_name, f"holds the key {quoted(name)}, which is not text")
            _check_text(name, field_name)
            _check_json(item, field_name, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_json(item, field_name, depth + 1)
    else:
        _check_leaf(value, field_name)


def _check_leaf(value: object, field_name: str) -> None:
    match value:
        case None | bool():
            return
        case str():
            _check_text(value, field_name)
        case int():
            if not -INT64_LIMIT <= value < INT64_LIMIT:
                raise BadEvent(field_name, "holds a number that does not fit 64 bits; store it as text")
        case float():
            if not math.isfinite(value):
                raise BadEvent(field_name, f"holds {value}, which is not JSON")
        case _:
            raise BadEvent(field_name, f"holds a {type(value).__name__}, which is not JSON")


def _check_text(text: str, field_name: str) -> None:
    if "\0" in text:
        raise BadEvent(field_name, "holds a NUL character")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise BadEvent(field_name, "holds an unpaired surrogate")
