"""Converts run events and snapshots to database rows and back, and has the SQL that appends events.

The `run_head` row of a run is the lock on its event order. A writer takes this lock after all its other locks and
holds it until the commit. So events of a run become visible in the order of their `run_seq`.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.run_events import Event, EventOrigin, LoggedEvent, canonical_json, idempotency_key
from ads_pipeline.domain.run_snapshots import RunSnapshot, RunStatus, StepStatus
from ads_pipeline.ledger.sql.state_tables import instant_text, run_events
from ads_pipeline.ledger.sql.statements import NO_COLUMNS, Columns, RowWrite, Statement, Values, columns_of, names

# Events of one origin share these columns.
ORIGIN_COLUMNS: Final = ("engine_run_id", "plan_version", "engine_attempt_id", "engine_run_ref", "adapter_version")
OWN_COLUMNS: Final = (
    "event_id",
    "event_type",
    "step_id",
    "logical_attempt_id",
    "event_data",
    "idempotency_key",
    "emitted_at",
    "caused_by_signal_id",
)
_EVENT_COLUMNS: Final = (*OWN_COLUMNS, "parent_event_id")
_GIVEN_EVENT: Final = [column.name for column in run_events.c if column.name not in {"run_seq", "persisted_at"}]
_EVENT: Final[Columns] = {
    **columns_of(run_events, *_GIVEN_EVENT),
    "plan_version": "text",
    "position": "integer",  # among the events of the same run in this call, from 1
    "event_count": "integer",  # of the same run in this call
    "appended_at": "instant",  # null: the database's clock
}
# Add the number of each run's events to its head, and insert missing heads. max() gives each run one time. Without
# it, every row would read the clock again.
_ADVANCE_HEADS: Final = """
    INSERT INTO run_head (engine_run_id, plan_version, last_seq, last_at, opened_at)
    SELECT engine_run_id, plan_version, event_count, max(coalesce(appended_at, clock_timestamp())),
        max(coalesce(appended_at, clock_timestamp()))
    FROM given WHERE true GROUP BY engine_run_id, plan_version, event_count ORDER BY engine_run_id
    ON CONFLICT (engine_run_id) DO UPDATE
    SET plan_version = excluded.plan_version,  -- a trigger refuses a different one
        last_seq = run_head.last_seq + excluded.last_seq,
        last_at = greatest(run_head.last_at, excluded.last_at)
    """
_INSERT_EVENTS: Final = f"""
    INSERT INTO run_events (run_seq, persisted_at, {names(_GIVEN_EVENT)})
    SELECT heads.last_seq - event_count + position, heads.last_at, {names(_GIVEN_EVENT, prefix="given.")}
    """
_RETURNING: Final = "RETURNING engine_run_id, run_seq, idempotency_key"
# The last statement returns the assigned `run_seq`.
_APPEND_ON_POSTGRES: Final = (
    Statement(
        "append_events",
        _EVENT,
        f"""
    WITH given AS (SELECT * FROM given), heads AS ({_ADVANCE_HEADS} RETURNING engine_run_id, last_seq, last_at)
    {_INSERT_EVENTS} FROM given JOIN heads ON heads.engine_run_id = given.engine_run_id {_RETURNING}
    """,
    ),
)
_APPEND_ON_SQLITE: Final = (
    Statement("advance_heads", _EVENT, _ADVANCE_HEADS),
    Statement(
        "insert_events",
        _EVENT,
        f"""
    {_INSERT_EVENTS} FROM given JOIN run_head AS heads ON heads.engine_run_id = given.engine_run_id {_RETURNING}
    """,
    ),
)
# The events that the ledger emits: one head, and rows that share the origin.
ORIGIN: Final[Columns] = {
    **columns_of(run_events, *(name for name in ORIGIN_COLUMNS if name != "plan_version")),
    "plan_version": "text",
    "appended_at": "instant",
    "event_count": "integer",
}
ADVANCE_HEAD_TEXT: Final = """
    INSERT INTO run_head (engine_run_id, plan_version, last_seq, last_at, opened_at)
    SELECT shared.engine_run_id, shared.plan_version, shared.event_count, shared.appended_at, shared.appended_at
    FROM shared WHERE true
    ON CONFLICT (engine_run_id) DO UPDATE
    SET plan_version = excluded.plan_version,  -- a trigger refuses a different one
        last_seq = run_head.last_seq + excluded.last_seq,
        last_at = greatest(run_head.last_at, excluded.last_at)
    """
INSERT_OWN_EVENTS_TEXT: Final = f"""
    INSERT INTO run_events (
        engine_run_id, run_seq, engine_attempt_id, engine_run_ref, adapter_version, persisted_at, {names(OWN_COLUMNS)}
    )
    SELECT
        heads.engine_run_id, heads.last_seq - shared.event_count + given.position, shared.engine_attempt_id,
        shared.engine_run_ref, shared.adapter_version, heads.last_at,
        {names(OWN_COLUMNS, prefix="given.")}
    """
FROM_HEADS_ON_POSTGRES: Final = "FROM given CROSS JOIN shared CROSS JOIN heads"
FROM_HEADS_ON_SQLITE: Final = """
    FROM run_head AS heads CROSS JOIN given CROSS JOIN shared WHERE heads.engine_run_id = shared.engine_run_id
    """
_OWN_EVENT: Final[Columns] = {**columns_of(run_events, *OWN_COLUMNS), "position": "integer"}
_APPEND_OWN_ON_POSTGRES: Final = Statement(
    "append_own_events",
    _OWN_EVENT,
    f"""
    WITH given AS (SELECT * FROM given), shared AS MATERIALIZED (SELECT * FROM shared),
    heads AS ({ADVANCE_HEAD_TEXT} RETURNING engine_run_id, last_seq, last_at)
    {INSERT_OWN_EVENTS_TEXT} {FROM_HEADS_ON_POSTGRES}
    """,
    shared=ORIGIN,
)
ADVANCE_HEAD_ON_SQLITE: Final = RowWrite("advance_own_head", NO_COLUMNS, ADVANCE_HEAD_TEXT, shared=ORIGIN)
_INSERT_OWN_ON_SQLITE: Final = RowWrite(
    "insert_own_events", _OWN_EVENT, f"{INSERT_OWN_EVENTS_TEXT} {FROM_HEADS_ON_SQLITE}", shared=ORIGIN
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
_RANDOM: Final = random.SystemRandom()
_UUID4_SET: Final = 4 << 76 | 2 << 62  # the version and the variant
_UUID4_CLEARED: Final = ~(15 << 76 | 3 << 62)
_encode_json: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def encode_event(event: Event) -> dict[str, Any]:
    """Return the row of an event, for `append_rows`."""
    origin = {name: getattr(event, name) for name in ORIGIN_COLUMNS} | {"engine_run_ref": event.engine_run_json}
    own = {name: getattr(event, name) for name in _EVENT_COLUMNS} | {"event_data": event.payload}
    return origin | own


class EventEncoder:
    """Builds the rows of events that the ledger emits for one origin.

    The ledger emits thousands of events per transaction from values that it has already checked. An `Event` would
    check them again, which takes 14 microseconds.
    """

    def __init__(self, origin: EventOrigin) -> None:
        self._origin, self._reference = origin, canonical_json(origin.engine_run_ref, field_name="engine_run_ref")

    def encode_origin(self, *, appended_at: str, event_count: int) -> Values:
        """Return the values that all events of a transaction share."""
        origin = self._origin
        own = (
            origin.engine_run_id,
            origin.engine_attempt_id,
            self._reference,
            origin.adapter_version,
            origin.plan_version,
        )
        return *own, appended_at, event_count

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
        """Return the event's own columns, without those of the origin."""
        key = idempotency_key(
            engine_run_id=self._origin.engine_run_id,
            step_id=step_id,
            logical_attempt_id=attempt,
            event_type=event_type,
            plan_version=self._origin.plan_version,
        )
        return _new_event_id(), event_type, step_id, attempt, _encode_json(data), key, emitted_at, caused_by


def _new_event_id() -> str:
    """Return a random UUID of version 4. `uuid.uuid4` takes twice as long."""
    digits = f"{_RANDOM.getrandbits(128) & _UUID4_CLEARED | _UUID4_SET:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def append_own_rows(connection: sa.Connection, rows: Sequence[Values], origin: Values) -> None:
    """Append rows of an `EventEncoder`. The head of its run is the last lock of the transaction."""
    numbered = [(*row, position) for position, row in enumerate(rows, start=1)]
    if connection.dialect.name == "sqlite":
        ADVANCE_HEAD_ON_SQLITE.write(connection, [()], origin)
        _INSERT_OWN_ON_SQLITE.write(connection, numbered, origin)
    else:
        _APPEND_OWN_ON_POSTGRES.execute(connection, numbered, origin)


def append_rows(
    connection: sa.Connection, rows: Iterable[dict[str, Any]], now: datetime | None
) -> Sequence[sa.Row[Any]]:
    """Append event rows of any runs. Return the run, the key and the assigned `run_seq` of each.

    Without a time, the database's clock dates the events. Adds columns to the rows.
    """
    listed = list(rows)
    if not listed:
        return ()
    counts, positions = Counter(row["engine_run_id"] for row in listed), Counter[str]()
    appended_at = now and instant_text(now)
    for row in listed:
        engine_run_id = row["engine_run_id"]
        positions[engine_run_id] += 1
        row |= {
            "position": positions[engine_run_id],
            "event_count": counts[engine_run_id],
            "appended_at": appended_at,
        }
    *before, last = _APPEND_ON_SQLITE if connection.dialect.name == "sqlite" else _APPEND_ON_POSTGRES
    for statement in before:
        statement.execute(connection, listed)
    return last.execute(connection, listed).all()


def decode_event(row: sa.Row[Any]) -> LoggedEvent:
    values = {name: getattr(row, name) for name in (*ORIGIN_COLUMNS, *_EVENT_COLUMNS) if name != "idempotency_key"}
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
