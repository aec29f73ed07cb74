"""The tables of runs, with their snapshots, and of run events."""

from typing import Final

from ads_pipeline.ledger.migrations.dialects import refuse, refuse_update, require, sqlite_trigger

TABLES: Final = """
CREATE TABLE run_head (
    run_id {text} NOT NULL PRIMARY KEY CHECK (length(run_id) BETWEEN 1 AND 96),
    plan_version {text} NOT NULL CHECK (length(plan_version) BETWEEN 1 AND 96),
    last_seq {bigint} NOT NULL CHECK (last_seq >= 0),
    last_at {instant} NOT NULL,
    opened_at {instant} NOT NULL,
    projected_seq {bigint} NOT NULL DEFAULT 0,
    payload_conflicts INTEGER NOT NULL DEFAULT 0 CHECK (payload_conflicts >= 0),
    retired_at {instant},
    status {text} CHECK (status IN ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')),
    steps {text} NOT NULL DEFAULT '{{}}',
    started_at {instant},
    ended_at {instant},
    inconsistencies INTEGER NOT NULL DEFAULT 0 CHECK (inconsistencies >= 0),
    missing_events {bigint} NOT NULL DEFAULT 0 CHECK (missing_events >= 0),
    stale_since {instant},
    CONSTRAINT projected_seq_in_range CHECK (projected_seq BETWEEN 0 AND last_seq)
) {options_50};

CREATE TABLE run_events (
    run_id {text} NOT NULL,
    run_seq {bigint} NOT NULL CHECK (run_seq >= 1),
    event_id {text} NOT NULL CHECK (length(event_id) = 36),
    event_type {text} NOT NULL CHECK (length(event_type) BETWEEN 1 AND 64),
    step_id {text} CHECK (length(step_id) BETWEEN 1 AND 256),
    logical_attempt_id {bigint} NOT NULL CHECK (logical_attempt_id >= 1),
    engine_attempt_id {bigint} CHECK (engine_attempt_id >= 1),
    event_data {text} NOT NULL,
    engine_run_ref {text} NOT NULL,
    idempotency_key {text} NOT NULL CHECK (length(idempotency_key) = 64),
    emitted_at {text} NOT NULL,
    persisted_at {instant} NOT NULL,
    adapter_version {text},
    caused_by_signal_id {text},
    parent_event_id {text},
    PRIMARY KEY (run_id, run_seq),
    CONSTRAINT run_events_idempotency_key_unique UNIQUE (run_id, idempotency_key)
) {options};

CREATE INDEX run_head_unprojected ON run_head (run_id) WHERE last_seq > projected_seq;
CREATE INDEX run_head_by_time ON run_head (opened_at);
CREATE INDEX run_head_open ON run_head (run_id) WHERE ended_at IS NULL;
CREATE INDEX run_events_by_step ON run_events (step_id, run_id, run_seq) WHERE step_id IS NOT NULL;
CREATE INDEX run_events_discovery_failed ON run_events (persisted_at) WHERE event_type = 'DiscoveryFailed'
"""

NEVER_REPLACED: Final = ("run_events",)

# Sequence numbers only grow. A retired run takes no events and stays retired.
_INVALID_HEAD_UPDATE: Final = """
    NEW.run_id <> OLD.run_id OR NEW.plan_version <> OLD.plan_version OR NEW.opened_at <> OLD.opened_at
    OR NEW.last_seq < OLD.last_seq OR NEW.last_at < OLD.last_at OR NEW.projected_seq < OLD.projected_seq
    OR OLD.retired_at IS NOT NULL AND (NEW.last_seq <> OLD.last_seq OR NEW.retired_at {differs} OLD.retired_at)
"""
_IS_RETIRED: Final = (
    "EXISTS (SELECT 1 FROM run_head WHERE run_head.run_id = OLD.run_id AND run_head.retired_at IS NOT NULL)"
)
# An upsert of a head inserts nothing, but REPLACE inserts a head for a run that has events. A retired run has none.
_IS_NEW: Final = "NOT EXISTS (SELECT 1 FROM run_events AS e WHERE e.run_id = NEW.run_id)"
_REPLACES_HEAD: Final = """EXISTS (
    SELECT 1 FROM run_head AS h WHERE h.rowid = NEW.rowid OR h.run_id = NEW.run_id AND h.retired_at IS NOT NULL)"""
_RETIRES: Final = "NEW.retired_at IS NOT NULL AND OLD.retired_at IS NULL"
# The update that retires a run deletes its events, so that both happen or neither.
_DELETE_EVENTS: Final = "DELETE FROM run_events WHERE run_id = NEW.run_id;"


def triggers(dialect: str) -> list[str]:
    return [
        *refuse(dialect, "run_head", "DELETE"),
        *refuse_update(dialect, "run_head", _INVALID_HEAD_UPDATE),
        *refuse(dialect, "run_events", "UPDATE"),
        *(_sqlite_retirement() if dialect == "sqlite" else _postgres_retirement()),
    ]


def _sqlite_retirement() -> list[str]:
    return [
        *refuse("sqlite", "run_events", "DELETE", when=f"NOT {_IS_RETIRED}"),
        *require(
            "sqlite",
            "run_head",
            "INSERT",
            "inserted_head_is_new",
            when="TRUE",
            evidence=_IS_NEW,
            message="the run has a head",
        ),
        sqlite_trigger(
            "inserted_head_replaces_none",
            "BEFORE INSERT",
            "run_head",
            "INSERT of an existing row is refused",
            _REPLACES_HEAD,
        ),
        f"CREATE TRIGGER run_head_retire AFTER UPDATE ON run_head WHEN {_RETIRES} BEGIN {_DELETE_EVENTS} END",
    ]


def _postgres_retirement() -> list[str]:
    # Postgres allows no subquery in WHEN, so a function checks whether the run is retired.
    return [
        f"""CREATE FUNCTION refuse_unless_retired() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
        IF NOT {_IS_RETIRED} THEN
            RAISE EXCEPTION '%: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'check_violation';
        END IF;
        RETURN OLD; END$$""",
        f"""CREATE FUNCTION delete_run_events() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN {_DELETE_EVENTS} RETURN NULL; END$$""",
        """CREATE TRIGGER run_events_no_delete BEFORE DELETE ON run_events
        FOR EACH ROW EXECUTE FUNCTION refuse_unless_retired()""",
        f"""CREATE TRIGGER run_head_retire AFTER UPDATE ON run_head
        FOR EACH ROW WHEN ({_RETIRES}) EXECUTE FUNCTION delete_run_events()""",
    ]
