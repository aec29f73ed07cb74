"""Snapshots of a run: folding events into a snapshot, the interface of an event store, alarms about snapshot lag.

Pure values and functions; `ledger.events` stores events and snapshots. Events are defined in `run_events`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeVar

from ads_pipeline.domain.run_events import RUN_TYPES, STEP_TYPES, AppendResult, Event, LoggedEvent

DEFAULT_PAGE_SIZE: Final = 1_000


class RunStatus(StrEnum):
    """The status of a run. The last three are terminal."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL_STATUSES


class StepStatus(StrEnum):
    """The status of a step after its last event."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"


TERMINAL_STATUSES: Final = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
_OPEN: Final = tuple(status for status in RunStatus if status not in TERMINAL_STATUSES)

# (status, run-level event) -> next status. A pair that is not listed changes nothing and counts as inconsistent.
RUN_TRANSITIONS: Final[Mapping[tuple[RunStatus, str], RunStatus]] = {
    (RunStatus.PENDING, "RunStarted"): RunStatus.RUNNING,
    (RunStatus.RUNNING, "RunStarted"): RunStatus.RUNNING,  # the first event may be of a step
    (RunStatus.RUNNING, "RunPaused"): RunStatus.PAUSED,
    (RunStatus.PAUSED, "RunResumed"): RunStatus.RUNNING,
    **{(status, "RunCompleted"): RunStatus.COMPLETED for status in (RunStatus.PENDING, RunStatus.RUNNING)},
    **{(status, "RunFailed"): RunStatus.FAILED for status in _OPEN},
    **{(status, "RunCancelled"): RunStatus.CANCELLED for status in _OPEN},
}

# Step event -> status of the step. None: the event leaves the status as it is.
STEP_STATUS_AFTER: Final[Mapping[str, StepStatus | None]] = {
    **dict.fromkeys(STEP_TYPES),
    "StepStarted": StepStatus.RUNNING,
    "StepCompleted": StepStatus.SUCCEEDED,
    "StepFailed": StepStatus.FAILED,
    "StepCancelled": StepStatus.CANCELLED,
    "StepSkipped": StepStatus.SKIPPED,
    "RawSealed": StepStatus.RUNNING,
    "VerdictAccepted": StepStatus.SUCCEEDED,
    "VerdictRejected": StepStatus.FAILED,
    "DemotionBegun": StepStatus.FAILED,
    "PartitionLoaded": StepStatus.SUCCEEDED,
    "LoadFailed": StepStatus.FAILED,
    "FetchFailed": StepStatus.FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """The state of a run after its events up to `last_event_seq`.

    `inconsistencies` counts events that no transition allows; they changed nothing. `stale_since` is set when events
    are known to be missing from the snapshot.
    """

    engine_run_id: str
    status: RunStatus = RunStatus.PENDING
    last_event_seq: int = 0
    steps: Mapping[StepStatus, int] = field(default_factory=dict)
    started_at: datetime | None = None
    ended_at: datetime | None = None
    inconsistencies: int = 0
    stale_since: datetime | None = None


class FoldableEvent(Protocol):
    """The fields of a stored event that a fold reads."""

    @property
    def run_seq(self) -> int: ...
    @property
    def event_type(self) -> str: ...
    @property
    def step_id(self) -> str | None: ...
    @property
    def persisted_at(self) -> datetime: ...


E = TypeVar("E", bound=FoldableEvent)


class EventSummary(NamedTuple):
    """The fields of a stored event that a fold needs. A tuple, because there may be thousands."""

    run_seq: int
    event_type: str
    step_id: str | None
    persisted_at: datetime


class RunEventStore(Protocol):
    """The interface of a store of run events. `ads_pipeline.testing.run_event_stores` checks any store."""

    @property
    def contract_version(self) -> str:
        """The version of the contract that the store implements, as in `run_events.CONTRACT_VERSION`."""
        ...

    def append(self, event: Event) -> AppendResult:
        """Append an event after all visible events of its run. A known event is not stored again."""
        ...

    def append_many(self, events: Sequence[Event]) -> list[AppendResult]:
        """Append many events in the order given, all or none."""
        ...

    def fetch(self, engine_run_id: str, *, after_seq: int = 0, limit: int = DEFAULT_PAGE_SIZE) -> list[LoggedEvent]:
        """The next events of a run after a sequence number, in order."""
        ...

    def get_snapshot(self, engine_run_id: str) -> RunSnapshot | None:
        """The stored snapshot of a run, which may lag behind its events; None when there is none yet."""
        ...

    def project_snapshot(self, engine_run_id: str) -> RunSnapshot:
        """Fold all events of a run into a snapshot and return it. The store need not keep it.

        Raises EventsNotFound for an unknown run and for a retired one.
        """
        ...


def fold_events(
    before: RunSnapshot, steps: Mapping[str, StepStatus], events: Iterable[FoldableEvent]
) -> tuple[RunSnapshot, dict[str, StepStatus]]:
    """The snapshot after these events, and the steps they changed. Events that were folded before are skipped.

    `steps` holds the previous status of the steps that the events name; a step that is not in it is new.
    """
    status, last_seq, inconsistencies = before.status, before.last_event_seq, before.inconsistencies
    started_at, ended_at = before.started_at, before.ended_at
    counts, changed = Counter(before.steps), dict[str, StepStatus]()
    for event in events:
        if event.run_seq <= last_seq:
            continue
        last_seq = event.run_seq
        is_step = event.event_type in STEP_STATUS_AFTER
        if not is_step and event.event_type not in RUN_TYPES:
            continue
        next_status = (
            status if is_step and not status.is_terminal else RUN_TRANSITIONS.get((status, event.event_type))
        )
        if next_status is None:
            inconsistencies += 1
            continue
        status = RunStatus.RUNNING if is_step and next_status is RunStatus.PENDING else next_status
        started_at = started_at or event.persisted_at
        ended_at = event.persisted_at if status.is_terminal else None
        step_status = STEP_STATUS_AFTER.get(event.event_type)
        if step_status is not None and event.step_id is not None:
            previous = changed.get(event.step_id) or steps.get(event.step_id)
            if previous is not None:
                counts[previous] -= 1
            counts[step_status] += 1
            changed[event.step_id] = step_status
    snapshot = replace(
        before,
        status=status,
        last_event_seq=last_seq,
        steps={each: counts[each] for each in StepStatus if counts[each]},
        started_at=started_at,
        ended_at=ended_at,
        inconsistencies=inconsistencies,
    )
    return snapshot, changed


def contiguous_prefix(after_seq: int, events: Sequence[E]) -> Sequence[E]:
    """The events up to the first gap in the sequence after `after_seq`."""
    for index, event in enumerate(events):
        if event.run_seq != after_seq + 1 + index:
            return events[:index]
    return events


class LagLevel(StrEnum):
    """The lag of snapshots behind events, in levels."""

    NORMAL = "NORMAL"
    DEGRADED = "DEGRADED"
    HIGH = "PROJECTOR_LAG_HIGH"
    RESYNC = "RESYNC"


# The upper bound of each level, inclusive. A lag above the last bound needs a resync.
_LAG_BOUNDS: Final = (
    (timedelta(seconds=1), LagLevel.NORMAL),
    (timedelta(seconds=5), LagLevel.DEGRADED),
    (timedelta(seconds=10), LagLevel.HIGH),
)


def lag_level(lag: timedelta) -> LagLevel:
    return next((level for bound, level in _LAG_BOUNDS if lag <= bound), LagLevel.RESYNC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagMonitor:
    """Raises each alarm once per episode. An episode ends when the lag is NORMAL again."""

    worst: LagLevel = LagLevel.NORMAL

    def observe(self, lag: timedelta) -> tuple["LagMonitor", tuple[LagLevel, ...]]:
        """The next monitor, and the alarms to raise: HIGH, RESYNC, or NORMAL when an alarm is over."""
        level, order = lag_level(lag), tuple(LagLevel)
        if level is LagLevel.NORMAL:
            return LagMonitor(), (LagLevel.NORMAL,) if self.worst in (LagLevel.HIGH, LagLevel.RESYNC) else ()
        if order.index(level) <= order.index(self.worst):
            return self, ()
        passed = order[order.index(self.worst) + 1 : order.index(level) + 1]
        return LagMonitor(worst=level), tuple(each for each in passed if each is not LagLevel.DEGRADED)
