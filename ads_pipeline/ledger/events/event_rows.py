"""Converts run events and snapshots to database rows and back."""

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.run_events import Event, EventOrigin, LoggedEvent, canonical_json, idempotency_key
from ads_pipeline.domain.run_snapshots import RunSnapshot, RunStatus, StepStatus
from ads_pipeline.ledger.tables import instant_text

_EVENT_COLUMNS: Final = (
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
# All events of an origin have the same values in these columns.
_ORIGIN_COLUMNS: Final = ("run_id", "plan_version", "engine_attempt_id", "engine_run_ref", "adapter_version")


def encode_event(event: Event) -> dict[str, Any]:
    """Return the row of an event, without the columns that `add_positions` adds."""
    return {name: getattr(event, name) for name in _EVENT_COLUMNS} | {
        "event_data": event.payload,
        "engine_run_ref": event.engine_run_json,
    }


class EventEncoder:
    """Builds the rows of events that the ledger emits for one origin.

    The ledger emits thousands of events per transaction from values that it has already checked. So the encoder
    skips the checks of `Event`.
    """

    def __init__(self, origin: EventOrigin) -> None:
        sample = encode_event(origin.make_event("Sample", at=datetime.fromisoformat("2000-01-01T00:00:00+00:00")))
        self.origin_columns = {f"engine_{name.removeprefix('engine_')}": sample[name] for name in _ORIGIN_COLUMNS}
        self._shared = {name: sample[name] for name in _ORIGIN_COLUMNS}
        self._run_id, self._plan_version = origin.run_id, origin.plan_version

    def make_key(self, event_type: str, step_id: str, attempt: int) -> str:
        return idempotency_key(
            run_id=self._run_id,
            step_id=step_id,
            logical_attempt_id=attempt,
            event_type=event_type,
            plan_version=self._plan_version,
        )

    def encode(
        self,
        event_type: str,
        step_id: str,
        attempt: int,
        data: Mapping[str, Any],
        *,
        emitted_at: str,
        caused_by: str | None = None,
    ) -> dict[str, Any]:
        return self._shared | {
            "event_id": str(uuid.uuid4()),
            "event_type": event_type,
            "step_id": step_id,
            "logical_attempt_id": attempt,
            "idempotency_key": self.make_key(event_type, step_id, attempt),
            "event_data": encode_event_data(data),
            "emitted_at": emitted_at,
            "caused_by_signal_id": caused_by,
        }


encode_event_data = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def add_positions(rows: Iterable[dict[str, Any]], now: datetime | None) -> list[dict[str, Any]]:
    """Add to each event row its position among the rows of its run, the number of these rows, and the time."""
    listed = list(rows)
    counts, positions = Counter(row["run_id"] for row in listed), Counter[str]()
    appended_at = now and instant_text(now)
    for row in listed:
        run_id = row["run_id"]
        positions[run_id] += 1
        row |= {"position": positions[run_id], "event_count": counts[run_id], "appended_at": appended_at}
    return listed


def decode_event(row: sa.Row[Any]) -> LoggedEvent:
    values = {name: getattr(row, name) for name in _EVENT_COLUMNS if name != "idempotency_key"}
    event = Event(**values, event_data=json.loads(row.event_data), engine_run_ref=json.loads(row.engine_run_ref))
    return LoggedEvent(
        event=event, run_seq=row.run_seq, persisted_at=row.persisted_at, idempotency_key=row.idempotency_key
    )


def decode_snapshot(row: sa.Row[Any]) -> RunSnapshot:
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


def encode_snapshot(snapshot: RunSnapshot) -> dict[str, Any]:
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
