"""Run events with their snapshots, and the status of partitions after ADR-026 with the finishes it is folded from."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_KEY = "source, customer_id, query_name, logical_date"

_DIALECTS = {
    "postgresql": {
        "text": 'TEXT COLLATE "C"',
        "day": "DATE",
        "instant": "TIMESTAMPTZ",
        "big": "BIGINT",
        "strict": "",
        # These rows are updated over and over: room in each page lets the next version stay beside the last.
        "often_updated": "WITH (fillfactor = 50)",
        "differs": "IS DISTINCT FROM",
        "real_day": "",
        "real_instant": "",
    },
    "sqlite": {
        "text": "TEXT",
        "day": "TEXT",
        "instant": "TEXT",
        "big": "INTEGER",
        "strict": "STRICT",
        "often_updated": "",
        "differs": "IS NOT",
        "real_day": ", CONSTRAINT real_day CHECK (logical_date IS date(logical_date, '+0 days'))",
        "real_instant": "CHECK ({column} LIKE '____-__-__T__:__:__.______Z')",
    },
}

_TABLES = """
CREATE TABLE run_head (
    run_id {text} NOT NULL PRIMARY KEY CHECK (length(run_id) BETWEEN 1 AND 96),
    plan_version {text} NOT NULL CHECK (length(plan_version) BETWEEN 1 AND 96),
    last_seq {big} NOT NULL CHECK (last_seq >= 0),
    last_at {instant} NOT NULL {check_last_at},
    opened_at {instant} NOT NULL {check_opened_at},
    projected_seq {big} NOT NULL DEFAULT 0,
    payload_conflicts INTEGER NOT NULL DEFAULT 0 CHECK (payload_conflicts >= 0),
    retired_at {instant} {check_retired_at},
    CONSTRAINT projected_is_behind CHECK (projected_seq BETWEEN 0 AND last_seq)
) {strict}{often_updated};

CREATE TABLE run_events (
    run_id {text} NOT NULL,
    run_seq {big} NOT NULL CHECK (run_seq >= 1),
    event_id {text} NOT NULL CHECK (length(event_id) = 36),
    event_type {text} NOT NULL CHECK (length(event_type) BETWEEN 1 AND 64),
    step_id {text} CHECK (length(step_id) BETWEEN 1 AND 256),
    logical_attempt_id {big} NOT NULL CHECK (logical_attempt_id >= 1),
    engine_attempt_id {big} CHECK (engine_attempt_id >= 1),
    event_data {text} NOT NULL,
    engine_run_ref {text} NOT NULL,
    idempotency_key {text} NOT NULL CHECK (length(idempotency_key) = 64),
    emitted_at {text} NOT NULL,
    persisted_at {instant} NOT NULL {check_persisted_at},
    adapter_version {text},
    caused_by_signal_id {text},
    parent_event_id {text},
    PRIMARY KEY (run_id, run_seq),
    CONSTRAINT one_event_a_key UNIQUE (run_id, idempotency_key)
) {strict};

CREATE TABLE run_snapshots (
    run_id {text} NOT NULL PRIMARY KEY,
    status {text} NOT NULL
        CHECK (status IN ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')),
    last_event_seq {big} NOT NULL CHECK (last_event_seq >= 0),
    steps {text} NOT NULL,
    started_at {instant} {check_started_at},
    ended_at {instant} {check_ended_at},
    inconsistencies INTEGER NOT NULL CHECK (inconsistencies >= 0),
    holes {big} NOT NULL CHECK (holes >= 0),
    stale_since {instant} {check_stale_since}
) {strict}{often_updated};

CREATE TABLE run_steps (
    run_id {text} NOT NULL,
    step_id {text} NOT NULL,
    status {text} NOT NULL CHECK (status IN ('RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELLED', 'SKIPPED')),
    PRIMARY KEY (run_id, step_id)
) {strict}{often_updated};

CREATE TABLE partition_status (
    tenant_id {text} NOT NULL,
    workspace_id {text} NOT NULL,
    asset_key {text} NOT NULL,
    partition_key {text} NOT NULL,
    last_materialization_run_id {text},
    last_materialization_at {instant} {check_last_materialization_at},
    last_materialization_code_version {text},
    last_attempt_run_id {text} NOT NULL,
    last_attempt_at {instant} NOT NULL {check_last_attempt_at},
    last_attempt_outcome {text} NOT NULL CHECK (last_attempt_outcome IN ('SUCCEEDED', 'FAILED', 'CANCELLED')),
    stale_since {instant} {check_stale_since},
    stale_reason_code {text}
        CHECK (stale_reason_code IN ('FRESHNESS_POLICY', 'UPSTREAM_CHANGED', 'CODE_CHANGED')),
    partition_values {text} NOT NULL,
    row_version {text} NOT NULL CHECK (length(row_version) = 26),
    PRIMARY KEY (tenant_id, workspace_id, asset_key, partition_key),
    CONSTRAINT materialization_is_whole CHECK (
        (last_materialization_run_id IS NULL) = (last_materialization_at IS NULL)
        AND (last_materialization_run_id IS NULL) = (last_materialization_code_version IS NULL)
    ),
    CONSTRAINT staleness_is_whole CHECK (
        (stale_since IS NULL) = (stale_reason_code IS NULL)
        AND (stale_since IS NULL OR last_materialization_at IS NOT NULL)
    )
) {strict}{often_updated};

CREATE TABLE finishes (
    asset {text} NOT NULL CHECK (asset IN ('raw', 'warehouse')),
    {key_columns},
    finished_at {instant} NOT NULL {check_finished_at},
    run_id {text} NOT NULL CHECK (length(run_id) BETWEEN 1 AND 96),
    outcome {text} NOT NULL CHECK (outcome IN ('SUCCEEDED', 'FAILED', 'CANCELLED')),
    code_version {text},
    PRIMARY KEY (asset, {key}, finished_at),
    CONSTRAINT only_success_materializes CHECK (code_version IS NULL OR outcome = 'SUCCEEDED')
    {real_day}
) {strict};

CREATE TABLE code_versions (
    tenant_id {text} NOT NULL,
    workspace_id {text} NOT NULL,
    asset_key {text} NOT NULL,
    code_version {text} NOT NULL,
    seen_since {instant} NOT NULL {check_seen_since},
    PRIMARY KEY (tenant_id, workspace_id, asset_key)
) {strict};

CREATE INDEX run_head_behind ON run_head (run_id) WHERE last_seq > projected_seq;
CREATE INDEX run_snapshots_unended ON run_snapshots (run_id) WHERE ended_at IS NULL;
CREATE INDEX run_head_newest ON run_head (opened_at);
INSERT INTO finishes
SELECT 'warehouse', {key}, loaded_at, run_id, 'SUCCEEDED', load_records.schema_version
FROM load_records JOIN runs USING ({key}, run_id)
WHERE true
ORDER BY ordinal DESC
ON CONFLICT DO NOTHING
"""

_INSTANTS = (
    "last_at",
    "opened_at",
    "retired_at",
    "persisted_at",
    "started_at",
    "ended_at",
    "stale_since",
    "last_materialization_at",
    "last_attempt_at",
    "finished_at",
    "seen_since",
)

# A run's place in the order only grows; a retired run takes nothing more and is never opened again.
_HEAD_FORBIDDEN = """
    NEW.run_id <> OLD.run_id OR NEW.plan_version <> OLD.plan_version OR NEW.opened_at <> OLD.opened_at
    OR NEW.last_seq < OLD.last_seq OR NEW.last_at < OLD.last_at OR NEW.projected_seq < OLD.projected_seq
    OR OLD.retired_at IS NOT NULL AND (NEW.last_seq <> OLD.last_seq OR NEW.retired_at {differs} OLD.retired_at)
"""
_SNAPSHOT_FORBIDDEN = "NEW.run_id <> OLD.run_id OR NEW.last_event_seq < OLD.last_event_seq"
_RETIRED = "EXISTS (SELECT 1 FROM run_head WHERE run_head.run_id = OLD.run_id AND run_head.retired_at IS NOT NULL)"
_RETIRING = "NEW.retired_at IS NOT NULL AND OLD.retired_at IS NULL"
# Retiring a run is what deletes its events, so that they go together or not at all.
_DELETE_ALL = "DELETE FROM run_events WHERE run_id = NEW.run_id; DELETE FROM run_steps WHERE run_id = NEW.run_id;"


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    words = dict(_DIALECTS[dialect])
    words["key"] = _KEY
    words["key_columns"] = (
        f"source {words['text']} NOT NULL, customer_id {words['text']} NOT NULL, "
        f"query_name {words['text']} NOT NULL, logical_date {words['day']} NOT NULL"
    )
    words |= {f"check_{column}": words["real_instant"].format(column=column) for column in _INSTANTS}
    for statement in _TABLES.split(";"):
        op.execute(statement.format(**words))
    triggers = _sqlite_triggers if dialect == "sqlite" else _postgres_triggers
    for statement in triggers(_HEAD_FORBIDDEN.format(**words)):
        op.execute(statement)


def _sqlite_triggers(head_forbidden: str) -> list[str]:
    def refuse(name: str, verb: str, table: str, when: str = "") -> str:
        return f"""
            CREATE TRIGGER {name} BEFORE {verb} ON {table} {when}
            BEGIN SELECT RAISE(ABORT, '{table}: {verb} is refused'); END
        """

    kept = (("run_events", "UPDATE"), ("finishes", "UPDATE"), ("finishes", "DELETE"), ("run_head", "DELETE"))
    return [
        *(refuse(f"{table}_no_{verb}", verb, table) for table, verb in kept),
        refuse("run_events_no_DELETE", "DELETE", "run_events", f"WHEN NOT {_RETIRED}"),
        refuse("run_head_moves", "UPDATE", "run_head", f"WHEN {head_forbidden}"),
        refuse("run_snapshots_moves", "UPDATE", "run_snapshots", f"WHEN {_SNAPSHOT_FORBIDDEN}"),
        f"CREATE TRIGGER run_head_retires AFTER UPDATE ON run_head WHEN {_RETIRING} BEGIN {_DELETE_ALL} END",
    ]


def _postgres_triggers(head_forbidden: str) -> list[str]:
    def refuse(name: str, verbs: str, table: str, when: str = "") -> str:
        return f"CREATE TRIGGER {name} BEFORE {verbs} ON {table} {when} EXECUTE FUNCTION ledger_refuses()"

    # Postgres allows no subquery in WHEN, so the question whether the run is retired is the function's.
    unretired = f"""
        CREATE FUNCTION ledger_refuses_unless_retired() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
        IF NOT {_RETIRED} THEN
            RAISE EXCEPTION '%: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'check_violation';
        END IF;
        RETURN OLD; END$$
    """
    retire = f"""
        CREATE FUNCTION ledger_retires_run() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN {_DELETE_ALL} RETURN NULL; END$$
    """
    return [
        unretired,
        retire,
        refuse("run_events_kept", "UPDATE OR TRUNCATE", "run_events"),
        refuse("finishes_kept", "UPDATE OR DELETE OR TRUNCATE", "finishes"),
        refuse("run_head_kept", "DELETE OR TRUNCATE", "run_head"),
        refuse("run_head_moves", "UPDATE", "run_head", f"FOR EACH ROW WHEN ({head_forbidden})"),
        refuse("run_snapshots_moves", "UPDATE", "run_snapshots", f"FOR EACH ROW WHEN ({_SNAPSHOT_FORBIDDEN})"),
        """CREATE TRIGGER run_events_of_retired BEFORE DELETE ON run_events
           FOR EACH ROW EXECUTE FUNCTION ledger_refuses_unless_retired()""",
        f"""CREATE TRIGGER run_head_retires AFTER UPDATE ON run_head
            FOR EACH ROW WHEN ({_RETIRING}) EXECUTE FUNCTION ledger_retires_run()""",
    ]
