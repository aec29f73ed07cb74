"""Triggers that hold a login of the role extractor to the rows of its reports.

Privileges name tables and columns. These name rows: a report is a failed fetch of the raw asset, and nothing else. A
login that is also in another writing role is not held, because it may write these rows anyway.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_EVENTS: Final = "'FetchFailed', 'RunQueued', 'RunStarted', 'RunCompleted', 'RunFailed', 'RunCancelled'"
_MATERIALIZATION: Final = (
    "last_materialization_run_id",
    "last_materialization_at",
    "last_materialization_code_version",
    "stale_since",
    "stale_reason_code",
)
_NO_FAILED_FETCH: Final = "NEW.asset_key NOT LIKE 'raw/%' OR NEW.last_attempt_outcome IS DISTINCT FROM 'FAILED'"
_CHANGED: Final = " OR ".join(f"NEW.{column} IS DISTINCT FROM OLD.{column}" for column in _MATERIALIZATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Rows that the role extractor may not write. `why` completes the message of the refusal."""

    table: str
    act: str
    refused: str  # in SQL, of NEW and OLD
    why: str


GUARDS: Final = (
    Guard(table="run_events", act="INSERT", refused=f"NEW.event_type NOT IN ({_EVENTS})", why="emit this event"),
    Guard(
        table="run_events",
        act="INSERT",
        refused="EXISTS (SELECT FROM {schema}.leases WHERE leases.engine_run_id = NEW.engine_run_id)",
        why="emit an event of a run of Dagster",
    ),
    Guard(
        table="run_head",
        act="UPDATE",
        refused=(
            "NEW.last_seq < OLD.last_seq OR "
            "EXISTS (SELECT FROM {schema}.leases WHERE leases.engine_run_id = NEW.engine_run_id)"
        ),
        why="number the events of another run",
    ),
    Guard(table="parkings", act="INSERT", refused="NEW.scope = 'source'", why="park the whole source"),
    Guard(
        table="finished_attempts",
        act="INSERT",
        refused="NEW.error_class IS NULL",
        why="record another attempt than a failed fetch",
    ),
    Guard(
        table="partition_status",
        act="INSERT",
        refused=f"NEW.last_materialization_at IS NOT NULL OR {_NO_FAILED_FETCH}",
        why="record another attempt than a failed fetch",
    ),
    Guard(
        table="partition_status",
        act="UPDATE",
        refused=f"{_CHANGED} OR {_NO_FAILED_FETCH}",
        why="change when a partition was materialized or became stale",
    ),
)
_FUNCTION: Final = """
CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $guard$
BEGIN
    IF {refused} THEN
        RAISE EXCEPTION 'permission denied: the role extractor may not {why}' USING ERRCODE = '42501';
    END IF;
    RETURN NULL;
END
$guard$
"""
_IS_HELD: Final = "pg_has_role(current_user, '{extractor}', 'USAGE') AND NOT ({others})"


def guard_statements(schema: str, extractor: str, others: Sequence[str]) -> Iterator[str]:
    """The statements that create the triggers, for the schema on the search path. They may be executed again."""
    exempt = " OR ".join(f"pg_has_role(current_user, '{role}', 'USAGE')" for role in others)
    held = _IS_HELD.format(extractor=extractor, others=exempt)
    for number, guard in enumerate(GUARDS):
        name = f"guard_extractor_{number}"
        refused = guard.refused.format(schema=schema)
        yield " ".join(_FUNCTION.format(name=name, refused=refused, why=guard.why).split())
        yield f"DROP TRIGGER IF EXISTS {name} ON {guard.table}"
        yield (
            f"CREATE TRIGGER {name} AFTER {guard.act} ON {guard.table} FOR EACH ROW WHEN ({held}) "
            f"EXECUTE FUNCTION {name}()"
        )
