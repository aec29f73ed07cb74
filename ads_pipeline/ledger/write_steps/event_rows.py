"""Converts run events and snapshots to database rows and back, and has the SQL that appends events.

The `run_head` row of a run is the lock on its event order. A writer takes this lock after all its other locks and
holds it until the commit. So events of a run become visible in the order of their `run_seq`. Only status rows may be
locked later: their other writers hold the same lock of a partition, or wait for no lock.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.run_events import Event, EventOrigin, LoggedEvent, canonical_json, idempotency_key
from ads_pipeline.domain.run_snapshots import RunSnapshot, RunStatus, StepStatus
from ads_pipeline.ledger.sql.ledger_tables import run_events
from ads_pipeline.ledger.sql.statements import Call, RowWrite, Statement, Values, columns_of, names

# Everything of an event but its run and what the log assigns.
_EVENT_COLUMNS: Final = (
    "event_id",
    "event_type",
    "step_id",
    "logical_attempt_id",
    "event_data",
    "idempotency_key",
    "emitted_at",
    "caused_by_signal_id",
    "parent_event_id",
    "engine_attempt_id",
    "engine_run_ref",
    "adapter_version",
)
# A head row with the number of new events of its run. Without a time, the database's clock dates them.
_ADVANCE_HEADS: Final = RowWrite(
    "advance_heads",
    {"engine_run_id": "text", "plan_version": "text", "event_count": "integer", "appended_at": "instant"},
    """
    INSERT INTO run_head (engine_run_id, plan_version, last_seq, opened_at, last_at)
    SELECT given.engine_run_id, given.plan_version, given.event_count,
        coalesce(given.appended_at, clock_timestamp()), coalesce(given.appended_at, clock_timestamp())
    FROM given WHERE true ORDER BY given.engine_run_id
    ON CONFLICT (engine_run_id) DO UPDATE
    SET plan_version = excluded.plan_version,  -- a trigger refuses a different one
        last_seq = run_head.last_seq + excluded.last_seq,
        last_at = greatest(run_head.last_at, excluded.last_at)
    """,
)
# The events of the advanced heads. `later` is the number of later events of the same run.
_INSERT_EVENTS: Final = RowWrite(
    "insert_events",
    {**columns_of(run_events, *_EVENT_COLUMNS, "engine_run_id"), "later": "integer"},
    f"""
    INSERT INTO run_events (engine_run_id, run_seq, persisted_at, {names(_EVENT_COLUMNS)})
    SELECT given.engine_run_id, run_head.last_seq - given.later, run_head.last_at,
        {names(_EVENT_COLUMNS, prefix="given.")}
    FROM run_head CROSS JOIN given WHERE run_head.engine_run_id = given.engine_run_id
    """,
)
READ_LAST_SEQS: Final = Statement(
    "read_last_seqs",
    {"engine_run_id": "text"},
    "SELECT engine_run_id, last_seq FROM given JOIN run_head USING (engine_run_id)",
)
# For each event its run's locked head, and the existing event with the same key. The statement sees events as of its
# start, but the head as of the moment when it got the lock. `seen_seq` is the head as of the start. If it differs
# from `last_seq`, another writer appended while the statement waited.
FIND_EXISTING: Final = Statement(
    "find_existing_events",
    {"position": "integer", "engine_run_id": "text", "idempotency_key": "text"},
    """
    WITH locked AS (
        SELECT * FROM run_head WHERE engine_run_id IN (SELECT engine_run_id FROM given)
        ORDER BY engine_run_id FOR UPDATE
    )
    SELECT
        locked.plan_version, locked.last_seq, locked.retired_at, seen.last_seq AS seen_seq, prior.run_seq,
        prior.event_data
    FROM given
    LEFT JOIN locked USING (engine_run_id)
    LEFT JOIN run_head AS seen USING (engine_run_id)
    LEFT JOIN run_events AS prior USING (engine_run_id, idempotency_key)
    ORDER BY given.position
    """,
)
# Insert heads for unknown runs, so that there is a row to lock.
INSERT_MISSING_HEADS: Final = Statement(
    "insert_missing_heads",
    {"engine_run_id": "text", "plan_version": "text", "appended_at": "instant"},
    """
    INSERT INTO run_head (engine_run_id, plan_version, last_seq, last_at, opened_at)
    SELECT engine_run_id, plan_version, 0, appended_at, appended_at FROM given
    WHERE NOT EXISTS (SELECT 1 FROM run_head WHERE run_head.engine_run_id = given.engine_run_id)
    ORDER BY engine_run_id
    ON CONFLICT DO NOTHING
    """,
)
COUNT_CONFLICTS: Final = Statement(
    "count_conflicts",
    {"engine_run_id": "text", "conflicts": "integer"},
    """
    UPDATE run_head SET payload_conflicts = payload_conflicts + given.conflicts
    FROM given WHERE run_head.engine_run_id = given.engine_run_id
    """,
)
_VARIANT: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))  # the first digit of a UUID's fourth part
_encode_json: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def encode_event(event: Event) -> Values:
    """Return the row of an event, for `append_in_order`."""
    columns = {name: getattr(event, name) for name in _EVENT_COLUMNS}
    encoded = columns | {"event_data": event.payload, "engine_run_ref": event.engine_run_json}
    return tuple(encoded.values())


class EventEncoder:
    """Builds the rows of events that the ledger emits for one origin.

    The ledger emits thousands of events per transaction from values that it has already checked. An `Event` would
    check them again, which takes 14 microseconds.
    """

    def __init__(self, origin: EventOrigin) -> None:
        self.origin = origin
        reference = canonical_json(origin.engine_run_ref, field_name="engine_run_ref")
        self._of_origin = None, origin.engine_attempt_id, reference, origin.adapter_version  # no parent event

    def encode(
        self,
        event_type: str,
        step_id: str | None,
        attempt: int,
        data: Mapping[str, Any],
        *,
        emitted_at: str,
        caused_by: str | None = None,
    ) -> Values:
        """Return the row of an event, for `append_in_order`."""
        key = idempotency_key(
            engine_run_id=self.origin.engine_run_id,
            step_id=step_id,
            logical_attempt_id=attempt,
            event_type=event_type,
            plan_version=self.origin.plan_version,
        )
        own = _new_event_id(), event_type, step_id, attempt, _encode_json(data), key, emitted_at, caused_by
        return *own, *self._of_origin


def _new_event_id() -> str:
    """Return a random UUID of version 4. `uuid.uuid4` takes twice as long."""
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"


def append_in_order(events: Mapping[tuple[str, str], Sequence[Values]], at: str | None) -> list[Call]:
    """The calls that append the events of each run and its plan, in this order.

    The heads of the runs are the last locks of a transaction. Without a time, the database's clock dates the events.
    """
    heads = [(run, plan, len(rows), at) for (run, plan), rows in events.items()]
    numbered = [
        (*row, run, later)
        for (run, _plan), rows in events.items()
        for row, later in zip(rows, range(len(rows) - 1, -1, -1), strict=True)
    ]
    return [Call(_ADVANCE_HEADS, heads), Call(_INSERT_EVENTS, numbered)]


def decode_event(row: sa.Row[Any]) -> LoggedEvent:
    columns = ("engine_run_id", "plan_version", *_EVENT_COLUMNS)
    values = {name: getattr(row, name) for name in columns if name != "idempotency_key"}
    event = Event(**values | {name: json.loads(values[name]) for name in ("event_data", "engine_run_ref")})
    return LoggedEvent(
        event=event, run_seq=row.run_seq, persisted_at=row.persisted_at, idempotency_key=row.idempotency_key
    )


def decode_snapshot(row: sa.Row[Any]) -> RunSnapshot:
    """The snapshot in a head row; that of a run without folded events is empty."""
    return RunSnapshot(
        engine_run_id=row.engine_run_id,
        status=RunStatus(row.status or RunStatus.PENDING),
        last_event_seq=row.projected_seq,
        steps={StepStatus(name): count for name, count in json.loads(row.steps).items()},
        started_at=row.started_at,
        ended_at=row.ended_at,
        inconsistencies=row.inconsistencies,
        stale_since=row.stale_since,
    )


def encode_snapshot(snapshot: RunSnapshot) -> dict[str, Any]:
    """The columns of a head row that hold the snapshot."""
    return {
        "status": snapshot.status,
        "projected_seq": snapshot.last_event_seq,
        "steps": canonical_json({str(status): count for status, count in snapshot.steps.items()}),
        "started_at": snapshot.started_at,
        "ended_at": snapshot.ended_at,
        "inconsistencies": snapshot.inconsistencies,
        "stale_since": snapshot.stale_since,
    }
