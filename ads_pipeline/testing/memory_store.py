"""A minimal event store in memory for one thread: an example for authors of adapters."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from ads_pipeline.domain.errors import EventsNotFound, RunClosed
from ads_pipeline.domain.run_events import AppendResult, Event, LoggedEvent
from ads_pipeline.domain.run_snapshots import DEFAULT_PAGE_SIZE, RunSnapshot, StepStatus, fold_events

LARGEST_PAGE: Final = 10_000


class MemoryEventStore:
    """Stores the events of each run in a list, and the snapshots folded from them."""

    contract_version = "1.0"

    def __init__(self) -> None:
        self._logs: dict[str, list[LoggedEvent]] = {}
        self._snapshots: dict[str, tuple[RunSnapshot, dict[str, StepStatus]]] = {}

    def append(self, event: Event) -> AppendResult:
        (result,) = self.append_many([event])
        return result

    def append_many(self, events: Sequence[Event]) -> list[AppendResult]:
        drafts = {event.engine_run_id: list(self._logs.get(event.engine_run_id, ())) for event in events}
        results = [_append_one(drafts[event.engine_run_id], event) for event in events]
        self._logs |= drafts  # after all checks, so that a refused event changes nothing
        return results

    def fetch(self, engine_run_id: str, *, after_seq: int = 0, limit: int = DEFAULT_PAGE_SIZE) -> list[LoggedEvent]:
        if after_seq < 0:
            raise ValueError(f"after_seq must be 0 or more, not {after_seq}")
        if not 1 <= limit <= LARGEST_PAGE:
            raise ValueError(f"limit: {limit} must lie between 1 and {LARGEST_PAGE:,}")
        return [each for each in self._logs.get(engine_run_id, ()) if each.run_seq > after_seq][:limit]

    def get_snapshot(self, engine_run_id: str) -> RunSnapshot | None:
        snapshot, _ = self._snapshots.get(engine_run_id, (None, {}))
        return snapshot

    def project_snapshot(self, engine_run_id: str) -> RunSnapshot:
        if engine_run_id not in self._logs:
            raise EventsNotFound(engine_run_id, "it has no events")
        before, steps = self._snapshots.get(engine_run_id, (RunSnapshot(engine_run_id=engine_run_id), {}))
        after, changed = fold_events(before, steps, self._logs[engine_run_id])
        self._snapshots[engine_run_id] = after, steps | changed
        return after


def _append_one(log: list[LoggedEvent], event: Event) -> AppendResult:
    if log and log[0].event.plan_version != event.plan_version:
        raise RunClosed(
            event.engine_run_id,
            f"the run has plan {log[0].event.plan_version}, the event has plan {event.plan_version}",
        )
    numbered = event if event.logical_attempt_id is not None else event.with_occurrence(_occurrence(log, event))
    key = numbered.idempotency_key
    first = next((each for each in log if each.idempotency_key == key), None)
    if first is not None:
        conflict = first.event.payload != event.payload
        return AppendResult(run_seq=first.run_seq, idempotent=True, payload_conflict=conflict)
    now = datetime.now(UTC)
    persisted_at = max(now, log[-1].persisted_at) if log else now  # a clock may go back
    log.append(LoggedEvent(event=numbered, run_seq=len(log) + 1, persisted_at=persisted_at, idempotency_key=key))
    return AppendResult(run_seq=len(log), idempotent=False)


def _occurrence(log: list[LoggedEvent], event: Event) -> int:
    """Return the stored number of a known event, else the next number of its type."""
    numbers = {
        each.event.event_id: each.event.logical_attempt_id or 1
        for each in log
        if each.event.event_type == event.event_type
    }
    return numbers.get(event.event_id, max(numbers.values(), default=0) + 1)
