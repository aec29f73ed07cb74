"""Folds the events of a run into a snapshot, and says when snapshots are too far behind.

Plain values in, plain values out: who keeps events and snapshots, and reads them at the right moment, is `ledger`'s
business. What an event is stands in `run_events`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

from ads_pipeline.domain.run_events import RUN_TYPES, AppendResult, Event, LoggedEvent

FIRST_PAGE: Final = 1_000


class RunStatus(StrEnum):
    """How far a run is. The last three are for ever."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


class StepStatus(StrEnum):
    """What came last of a step."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"


TERMINAL: Final = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
_OPEN: Final = tuple(status for status in RunStatus if status not in TERMINAL)

# What an event of the run itself makes of its status. A pair that is not listed changes nothing and is inconsistent.
RUN_MOVES: Final[Mapping[tuple[RunStatus, str], RunStatus]] = {
    (RunStatus.PENDING, "RunStarted"): RunStatus.RUNNING,
    (RunStatus.RUNNING, "RunStarted"): RunStatus.RUNNING,  # a step may have spoken first
    (RunStatus.RUNNING, "RunPaused"): RunStatus.PAUSED,
    (RunStatus.PAUSED, "RunResumed"): RunStatus.RUNNING,
    **{(status, "RunCompleted"): RunStatus.COMPLETED for status in (RunStatus.PENDING, RunStatus.RUNNING)},
    **{(status, "RunFailed"): RunStatus.FAILED for status in _OPEN},
    **{(status, "RunCancelled"): RunStatus.CANCELLED for status in _OPEN},
}

# What an event of a step makes of it; None: it says nothing of how far the step is.
STEP_MOVES: Final[Mapping[str, StepStatus | None]] = {
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
    "PartitionEnqueued": None,
    "PartitionRequeued": None,
    "ReprocessRequested": None,
    "TerminalMarked": None,
    "TerminalCleared": None,
    "FetchFailed": StepStatus.FAILED,
    "PartitionWithdrawn": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """A run as its events up to `last_event_seq` tell it.

    `inconsistencies` counts events that could not be: they changed nothing. `stale_since` says that events are known
    to be missing in it.
    """

    run_id: str
    status: RunStatus = RunStatus.PENDING
    last_event_seq: int = 0
    steps: Mapping[StepStatus, int] = field(default_factory=dict)
    started_at: datetime | None = None
    ended_at: datetime | None = None
    inconsistencies: int = 0
    stale_since: datetime | None = None


class RunEventStore(Protocol):
    """What a store of run events must do; `ads_pipeline_tests.run_event_stores` holds any of them to it."""

    def append(self, event: Event) -> AppendResult:
        """Keep an event that is not kept yet, behind all that are visible of its run; say where it is."""
        ...

    def append_many(self, events: Sequence[Event]) -> list[AppendResult]:
        """The same for many, all or none of them, in the order given."""
        ...

    def fetch(self, run_id: str, *, after_seq: int = 0, limit: int = FIRST_PAGE) -> list[LoggedEvent]:
        """The next events of a run behind a place, in order."""
        ...

    def get_snapshot(self, run_id: str) -> RunSnapshot | None:
        """The snapshot that is kept of a run, which may be behind its events; None when there is none yet."""
        ...

    def project_snapshot(self, run_id: str) -> RunSnapshot:
        """The snapshot that all events of a run give now."""
        ...


def fold(
    before: RunSnapshot, steps: Mapping[str, StepStatus], events: Iterable[LoggedEvent]
) -> tuple[RunSnapshot, dict[str, StepStatus]]:
    """The snapshot after these events, and the steps they changed. What was folded in before is passed over.

    `steps` holds what those steps were that the events name; a step that is not in it is new.
    """
    status, last, wrong = before.status, before.last_event_seq, before.inconsistencies
    started_at, ended_at = before.started_at, before.ended_at
    counts, changed = Counter(before.steps), dict[str, StepStatus]()
    for logged in events:
        event = logged.event
        if logged.run_seq <= last:
            continue
        last = logged.run_seq
        is_step = event.event_type in STEP_MOVES
        if not is_step and event.event_type not in RUN_TYPES:
            continue
        after = status if is_step and not status.terminal else RUN_MOVES.get((status, event.event_type))
        if after is None:
            wrong += 1
            continue
        status = RunStatus.RUNNING if is_step and after is RunStatus.PENDING else after
        started_at = started_at or logged.persisted_at
        ended_at = logged.persisted_at if status.terminal else None
        move = STEP_MOVES.get(event.event_type)
        if move is not None and event.step_id is not None:
            earlier = changed.get(event.step_id) or steps.get(event.step_id)
            if earlier is not None:
                counts[earlier] -= 1
            counts[move] += 1
            changed[event.step_id] = move
    snapshot = replace(
        before,
        status=status,
        last_event_seq=last,
        steps={each: counts[each] for each in StepStatus if counts[each]},
        started_at=started_at,
        ended_at=ended_at,
        inconsistencies=wrong,
    )
    return snapshot, changed


def contiguous(after_seq: int, events: Sequence[LoggedEvent]) -> Sequence[LoggedEvent]:
    """As many of the events as follow on a place without a gap."""
    for number, logged in enumerate(events):
        if logged.run_seq != after_seq + 1 + number:
            return events[:number]
    return events


class Lag(StrEnum):
    """How far the snapshots are behind the events."""

    NORMAL = "NORMAL"
    DEGRADED = "DEGRADED"
    HIGH = "PROJECTOR_LAG_HIGH"
    RESYNC = "RESYNC"


# The most of each; what is above the last asks for a resync.
_LAGS: Final = (
    (timedelta(seconds=1), Lag.NORMAL),
    (timedelta(seconds=5), Lag.DEGRADED),
    (timedelta(seconds=10), Lag.HIGH),
)


def lag_of(behind: timedelta) -> Lag:
    return next((lag for most, lag in _LAGS if behind <= most), Lag.RESYNC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagWatch:
    """Follows the lag, so that each episode raises its alarms once; it ends when the lag is normal again."""

    worst: Lag = Lag.NORMAL

    def after(self, behind: timedelta) -> tuple["LagWatch", tuple[Lag, ...]]:
        """The watch from now on, and what is to be raised: HIGH, RESYNC, or NORMAL when an alarm is over."""
        now, order = lag_of(behind), tuple(Lag)
        if now is Lag.NORMAL:
            return LagWatch(), (Lag.NORMAL,) if self.worst in (Lag.HIGH, Lag.RESYNC) else ()
        if order.index(now) <= order.index(self.worst):
            return self, ()
        passed = order[order.index(self.worst) + 1 : order.index(now) + 1]
        return LagWatch(worst=now), tuple(each for each in passed if each is not Lag.DEGRADED)
