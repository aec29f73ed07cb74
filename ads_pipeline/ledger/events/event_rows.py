"""Turns events and snapshots into rows and back."""

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.run_events import Event, LoggedEvent, Origin, canonical_json, idempotency_key
from ads_pipeline.domain.run_snapshots import RunSnapshot, RunStatus, StepStatus
from ads_pipeline.ledger.tables import instant_text

_SAME: Final = (
    "run_id",
    "event_id",
    "event_type",
    "step_id",
    "logical_attempt_id",
    "engine_attempt_id",
    "idempotency_key",
    "emitted_at",
    "adapter_version",
    "caused_by_signal_id",
    "parent_event_id",
    "plan_version",
)


def event_fields(event: Event) -> dict[str, Any]:
    """The row of an event from outside, but for what `placed` adds."""
    return {name: getattr(event, name) for name in _SAME} | {
        "event_data": event.payload,
        "engine_run_ref": event.engine_run,
    }


class EventEncoder:
    """Makes rows of what the ledger itself tells for one origin, by thousands.

    They are made of values that were checked when they came in, so what `Event` would check is not checked again.
    """

    def __init__(self, origin: Origin) -> None:
        sample = event_fields(origin.event("Sample", at=datetime.fromisoformat("2000-01-01T00:00:00+00:00")))
        self.same = {f"engine_{name.removeprefix('engine_')}": sample[name] for name in _SHARED}
        self._shared = {name: sample[name] for name in _SHARED}
        self._run_id, self._plan_version = origin.run_id, origin.plan_version

    def key(self, event_type: str, step_id: str, attempt: int) -> str:
        return idempotency_key(
            run_id=self._run_id,
            step_id=step_id,
            logical_attempt_id=attempt,
            event_type=event_type,
            plan_version=self._plan_version,
        )

    def fields(
        self,
        event_type: str,
        step_id: str,
        attempt: int,
        data: Mapping[str, Any],
        *,
        at: str,
        signal: str | None = None,
    ) -> dict[str, Any]:
        return self._shared | {
            "event_id": str(uuid.uuid4()),
            "event_type": event_type,
            "step_id": step_id,
            "logical_attempt_id": attempt,
            "idempotency_key": self.key(event_type, step_id, attempt),
            "event_data": event_text(data),
            "emitted_at": at,
            "caused_by_signal_id": signal,
        }


# What all events of an origin have in common.
_SHARED: Final = ("run_id", "plan_version", "engine_attempt_id", "engine_run_ref", "adapter_version")
event_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def placed(rows: Iterable[dict[str, Any]], now: datetime | None) -> list[dict[str, Any]]:
    """The rows of a call, each with its place among those of its run and their number."""
    listed = list(rows)
    number, place = Counter(row["run_id"] for row in listed), Counter[str]()
    appended_at = now and instant_text(now)
    for row in listed:
        place[row["run_id"]] += 1
        row |= {"place": place[row["run_id"]], "number": number[row["run_id"]], "appended_at": appended_at}
    return listed


def logged_of(row: sa.Row[Any]) -> LoggedEvent:
    same = {name: getattr(row, name) for name in _SAME if name != "idempotency_key"}
    event = Event(**same, event_data=json.loads(row.event_data), engine_run_ref=json.loads(row.engine_run_ref))
    return LoggedEvent(
        event=event, run_seq=row.run_seq, persisted_at=row.persisted_at, idempotency_key=row.idempotency_key
    )


def snapshot_of(row: sa.Row[Any]) -> RunSnapshot:
    return RunSnapshot(
        run_id=row.run_id,
        status=RunStatus(row.status),
        last_event_seq=row.last_event_seq,
        steps={StepStatus(name): count for name, count in json.loads(row.steps).items()},
        started_at=row.started_at,
        ended_at=row.ended_at,
        inconsistencies=row.inconsistencies,
        stale_since=row.stale_since,
    )


def snapshot_fields(snapshot: RunSnapshot) -> dict[str, Any]:
    return {
        "run_id": snapshot.run_id,
        "status": snapshot.status,
        "last_event_seq": snapshot.last_event_seq,
        "steps": canonical_json({str(status): count for status, count in snapshot.steps.items()}),
        "started_at": snapshot.started_at,
        "ended_at": snapshot.ended_at,
        "inconsistencies": snapshot.inconsistencies,
        "stale_since": snapshot.stale_since,
    }
