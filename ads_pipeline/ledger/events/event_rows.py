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

# Events of one origin share these columns.
ORIGIN_COLUMNS: Final = ("run_id", "plan_version", "engine_attempt_id", "engine_run_ref", "adapter_version")
OWN_COLUMNS: Final = (
    "event_id",
    "event_type",
    "step_id",
    "logical_attempt_id",
    "event_data",
    "idempotency_key",
    "emitted_at",
    "caused_by_signal_id",
    "parent_event_id",
)
_encode_json: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def encode_event(event: Event) -> dict[str, Any]:
    """Return the row of an event, without the columns that `add_positions` adds."""
    origin = {name: getattr(event, name) for name in ORIGIN_COLUMNS} | {"engine_run_ref": event.engine_run_json}
    own = {name: getattr(event, name) for name in OWN_COLUMNS} | {"event_data": event.payload}
    return origin | own


class EventEncoder:
    """Builds the rows of events that the ledger emits for one origin.

    The ledger emits thousands of events per transaction from values that it has already checked. An `Event` would
    check them again, which takes 14 microseconds.
    """

    def __init__(self, origin: EventOrigin) -> None:
        reference = canonical_json(origin.engine_run_ref, field_name="engine_run_ref")
        self.origin_columns = {name: getattr(origin, name) for name in ORIGIN_COLUMNS} | {"engine_run_ref": reference}

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
        """Return the event's own columns, without those of the origin."""
        key = idempotency_key(
            run_id=self.origin_columns["run_id"],
            step_id=step_id,
            logical_attempt_id=attempt,
            event_type=event_type,
            plan_version=self.origin_columns["plan_version"],
        )
        event_id, payload = str(uuid.uuid4()), _encode_json(data)
        values = event_id, event_type, step_id, attempt, payload, key, emitted_at, caused_by, None
        return dict(zip(OWN_COLUMNS, values, strict=True))


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
    values = {name: getattr(row, name) for name in (*ORIGIN_COLUMNS, *OWN_COLUMNS) if name != "idempotency_key"}
    event = Event(**values | {name: json.loads(values[name]) for name in ("event_data", "engine_run_ref")})
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
