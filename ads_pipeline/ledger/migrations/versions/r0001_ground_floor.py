"""State, runs, attempts, pointers, load records and operator acts, with the rules the database itself keeps."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_KEY = "source, customer_id, query_name, logical_date"

_DIALECTS = {
    "postgresql": {
        # "C" orders by bytes, as SQLite does, whatever the server's locale: pages come in one order everywhere.
        "text": 'TEXT COLLATE "C"',
        "day": "DATE",
        "instant": "TIMESTAMPTZ",
        "big": "BIGINT",
        "strict": "",
        # Room in each page lets a row's next version stay beside it, and its indexes as they are.
        "often_updated": "WITH (fillfactor = 70)",
        "differs": "IS DISTINCT FROM",
        "real_day": "",
        "real_instant": "",
    },
    "sqlite": {
        "text": "TEXT",
        "day": "TEXT",
        "instant": "TEXT",
        "big": "INTEGER",
        # Without STRICT a column takes a value of any type.
        "strict": "STRICT",
        "often_updated": "",
        "differs": "IS NOT",
        "real_day": ", CONSTRAINT real_day CHECK (logical_date IS date(logical_date, '+0 days'))",
        "real_instant": "CHECK ({column} LIKE '____-__-__T__:__:__.______Z')",
    },
}

_TABLES = """
CREATE TABLE partition_state (
    {key_columns},
    status {text} NOT NULL CHECK (status IN ('pending', 'success', 'failed')),
    current_run_id {text},
    schema_version {text},
    record_count {big} CHECK (record_count >= 0),
    updated_at {instant} NOT NULL {check_updated_at},
    error_message {text} CHECK (length(error_message) BETWEEN 1 AND 2000),
    attempt_count INTEGER NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    PRIMARY KEY ({key}),
    FOREIGN KEY ({key}, current_run_id) REFERENCES runs ({key}, run_id),
    CONSTRAINT authority_is_whole CHECK (
        (current_run_id IS NULL) = (schema_version IS NULL) AND (current_run_id IS NULL) = (record_count IS NULL)
    ),
    CONSTRAINT success_is_authoritative CHECK (
        status <> 'success' OR (current_run_id IS NOT NULL AND error_message IS NULL)
    ),
    CONSTRAINT failure_is_explained CHECK (status <> 'failed' OR error_message IS NOT NULL),
    CONSTRAINT only_verdicts_judge CHECK (status = 'pending' OR attempt_count >= 1)
    {real_day}
) {strict}{often_updated};

CREATE TABLE runs (
    {key_columns},
    run_id {text} NOT NULL CHECK (length(run_id) BETWEEN 1 AND 96),
    ordinal INTEGER NOT NULL CHECK (ordinal >= 1),
    schema_version {text},
    record_count {big} CHECK (record_count >= 0),
    payload_sha256 {text} CHECK (length(payload_sha256) = 64),
    registered_at {instant} NOT NULL {check_registered_at},
    PRIMARY KEY ({key}, run_id),
    CONSTRAINT one_run_an_ordinal UNIQUE ({key}, ordinal),
    CONSTRAINT sealed_or_damaged CHECK ((schema_version IS NULL) = (record_count IS NULL))
    {real_day}
) {strict};

CREATE TABLE attempts (
    {key_columns},
    attempt_no INTEGER NOT NULL CHECK (attempt_no >= 1),
    run_id {text} NOT NULL,
    validation_id {text} NOT NULL CHECK (length(validation_id) <= 96),
    ordinal INTEGER NOT NULL CHECK (ordinal >= 1),
    outcome {text} NOT NULL CHECK (outcome IN ('accepted', 'rejected')),
    effect {text} NOT NULL,
    error_class {text} CHECK (length(error_class) BETWEEN 1 AND 64),
    error_message {text} CHECK (length(error_message) BETWEEN 1 AND 2000),
    rows_read {big} CHECK (rows_read >= 0),
    rows_failed {big} CHECK (rows_failed >= 0),
    judged_at {instant} NOT NULL {check_judged_at},
    current_ordinal INTEGER,
    message_ordinal INTEGER,
    PRIMARY KEY ({key}, attempt_no),
    FOREIGN KEY ({key}, run_id) REFERENCES runs ({key}, run_id),
    CONSTRAINT one_verdict_a_run UNIQUE ({key}, run_id, validation_id),
    CONSTRAINT effect_fits_outcome CHECK (
        outcome = 'accepted' AND effect IN ('promoted', 'confirmed', 'superseded')
        OR outcome = 'rejected' AND effect IN ('set_aside', 'failed', 'demoted')
    ),
    CONSTRAINT rejection_is_explained CHECK (
        (outcome = 'rejected') = (error_class IS NOT NULL) AND (outcome = 'rejected') = (error_message IS NOT NULL)
    )
) {strict};

CREATE TABLE warehouse_pointer (
    {key_columns},
    run_id {text} NOT NULL,
    schema_version {text} NOT NULL,
    record_count {big} NOT NULL CHECK (record_count >= 0),
    table_version {big} NOT NULL CHECK (table_version >= 0),
    availability {text} NOT NULL CHECK (availability IN ('published', 'unavailable')),
    changed_at {instant} NOT NULL {check_changed_at},
    PRIMARY KEY ({key}),
    FOREIGN KEY ({key}, run_id) REFERENCES runs ({key}, run_id)
) {strict};

CREATE TABLE load_records (
    {key_columns},
    run_id {text} NOT NULL,
    schema_version {text} NOT NULL,
    record_count {big} NOT NULL CHECK (record_count >= 0),
    table_version {big} NOT NULL CHECK (table_version >= 0),
    loaded_at {instant} NOT NULL {check_loaded_at},
    PRIMARY KEY ({key}, run_id),
    FOREIGN KEY ({key}, run_id) REFERENCES runs ({key}, run_id)
) {strict};

CREATE TABLE operator_acts (
    act_id {text} NOT NULL PRIMARY KEY CHECK (length(act_id) BETWEEN 1 AND 96),
    act {text} NOT NULL,
    operator {text} NOT NULL CHECK (length(operator) >= 1),
    command {text} NOT NULL,
    filters {text} NOT NULL,
    reason {text} NOT NULL CHECK (length(reason) >= 1),
    partitions_changed INTEGER NOT NULL CHECK (partitions_changed >= 0),
    acted_at {instant} NOT NULL {check_acted_at}
) {strict};

CREATE TABLE acted_partitions (
    act_id {text} NOT NULL REFERENCES operator_acts (act_id),
    {key_columns},
    status_before {text} CHECK (status_before IN ('pending', 'success', 'failed')),
    PRIMARY KEY (act_id, {key})
) {strict};

CREATE INDEX partition_state_by_day ON partition_state (source, query_name, logical_date, customer_id);
CREATE INDEX partition_state_not_ready ON partition_state ({key}) WHERE status <> 'success';
CREATE INDEX acted_partitions_by_partition ON acted_partitions ({key})
"""

_APPEND_ONLY = ("runs", "attempts", "load_records", "operator_acts", "acted_partitions")

# What no verdict and no control act ever does, whoever holds the connection.
_FORBIDDEN = """
    NEW.source <> OLD.source OR NEW.customer_id <> OLD.customer_id
    OR NEW.query_name <> OLD.query_name OR NEW.logical_date <> OLD.logical_date
    OR NEW.updated_at <= OLD.updated_at
    OR NEW.attempt_count < OLD.attempt_count
    OR OLD.current_run_id IS NOT NULL AND NEW.current_run_id IS NULL
    OR NEW.attempt_count > OLD.attempt_count AND NEW.status = 'pending'
    OR NEW.attempt_count = OLD.attempt_count AND (
        NEW.status NOT IN (OLD.status, 'pending')
        OR NEW.current_run_id {differs} OLD.current_run_id
        OR NEW.schema_version {differs} OLD.schema_version
        OR NEW.record_count {differs} OLD.record_count
        OR NEW.error_message {differs} OLD.error_message
    )
"""


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    words = _DIALECTS[dialect]
    words = words | {
        "key": _KEY,
        "key_columns": _key_columns(words),
        **{
            f"check_{column}": words["real_instant"].format(column=column)
            for column in (
                "updated_at",
                "registered_at",
                "judged_at",
                "changed_at",
                "loaded_at",
                "acted_at",
            )
        },
    }
    tables = sorted(_TABLES.split(";"), key=lambda statement: "CREATE TABLE runs" not in statement)  # referred to
    for statement in tables:
        op.execute(statement.format(**words))
    for statement in _triggers(dialect, _FORBIDDEN.format(**words)):
        op.execute(statement)


def _key_columns(words: dict[str, str]) -> str:
    return (
        f"source {words['text']} NOT NULL, customer_id {words['text']} NOT NULL, "
        f"query_name {words['text']} NOT NULL, logical_date {words['day']} NOT NULL"
    )


def _triggers(dialect: str, forbidden: str) -> list[str]:
    return _sqlite_triggers(forbidden) if dialect == "sqlite" else _postgres_triggers(forbidden)


def _sqlite_triggers(forbidden: str) -> list[str]:
    moves = f"""
        CREATE TRIGGER partition_state_moves BEFORE UPDATE ON partition_state WHEN {forbidden}
        BEGIN SELECT RAISE(ABORT, 'partition_state: no such move'); END
    """
    kept = [
        ("partition_state", "DELETE"),
        *((table, verb) for table in _APPEND_ONLY for verb in ("UPDATE", "DELETE")),
    ]
    refuse = """
        CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table}
        BEGIN SELECT RAISE(ABORT, '{table}: {verb} is refused'); END
    """
    return [moves, *(refuse.format(table=table, verb=verb) for table, verb in kept)]


def _postgres_triggers(forbidden: str) -> list[str]:
    function = """
        CREATE FUNCTION ledger_refuses() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN RAISE EXCEPTION '%: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'check_violation'; END$$
    """
    moves = f"""
        CREATE TRIGGER partition_state_moves BEFORE UPDATE ON partition_state
        FOR EACH ROW WHEN ({forbidden}) EXECUTE FUNCTION ledger_refuses()
    """
    kept = [
        ("partition_state", "DELETE OR TRUNCATE"),
        *((table, "UPDATE OR DELETE OR TRUNCATE") for table in _APPEND_ONLY),
    ]
    # For each statement, so that one which would touch no row is refused as well.
    refuse = "CREATE TRIGGER {table}_kept BEFORE {verbs} ON {table} EXECUTE FUNCTION ledger_refuses()"
    return [function, moves, *(refuse.format(table=table, verbs=verbs) for table, verbs in kept)]
