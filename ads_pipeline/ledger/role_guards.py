"""Triggers that hold a login of the role extractor to the rows of its reports, and an operator to withdrawals.

Privileges name tables and columns. These name rows: a report is a failed fetch of the raw asset, and nothing else. An
operator begins and ends withdrawals, and no demotion, which follows from a verdict. A login that is also in a role
that writes these rows is not held.
"""

from collections.abc import Iterator, Mapping, Sequence
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
    """Rows that the role may not write. `why` completes the message of the refusal."""

    table: str
    act: str
    refused: str  # in SQL, of NEW and OLD
    why: str
    role: str = "extractor"


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
    Guard(table="demotions", act="INSERT", refused="NEW.request IS NULL", why="begin a demotion", role="operator"),
    Guard(table="demotions", act="DELETE", refused="OLD.request IS NULL", why="end a demotion", role="operator"),
)
# Logins that are also in one of these roles are not held.
_EXEMPT: Final[Mapping[str, Sequence[str]]] = {
    "extractor": ("runner", "operator", "owner"),
    "operator": ("runner", "owner"),
}
_FUNCTION: Final = """
CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $guard$
BEGIN
    IF {refused} THEN
        RAISE EXCEPTION 'permission denied: the role {role} may not {why}' USING ERRCODE = '42501';
    END IF;
    RETURN NULL;
END
$guard$
"""
_IS_IN: Final = "pg_has_role(current_user, '{}', 'USAGE')"


def guard_statements(schema: str, names: Mapping[str, str]) -> Iterator[str]:
    """The statements that create the triggers, for the schema on the search path. They may be executed again.

    `names` has the name of each role in the database.
    """
    for number, guard in enumerate(GUARDS):
        exempt = " OR ".join(_IS_IN.format(names[role]) for role in _EXEMPT[guard.role])
        held = f"{_IS_IN.format(names[guard.role])} AND NOT ({exempt})"
        name = f"guard_{guard.role}_{number}"
        refused = guard.refused.format(schema=schema)
        yield " ".join(_FUNCTION.format(name=name, refused=refused, why=guard.why, role=guard.role).split())
        yield f"DROP TRIGGER IF EXISTS {name} ON {guard.table}"
        yield (
            f"CREATE TRIGGER {name} AFTER {guard.act} ON {guard.table} FOR EACH ROW WHEN ({held}) "
            f"EXECUTE FUNCTION {name}()"
        )
