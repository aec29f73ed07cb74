"""What the control plane keeps: leases, requests, the retry schedule, failed fetches, marks and parkings."""

from alembic import op

revision = "0004"
down_revision = "0003"
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
        "often_updated": "WITH (fillfactor = 50)",
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
        "real_day": ", CONSTRAINT real_day CHECK (logical_date IS date(logical_date, '+0 days'))",
        "real_instant": "CHECK ({column} LIKE '____-__-__T__:__:__.______Z')",
    },
}

# The index of what is not ready takes in the status, so that pending partitions are told from failed ones without a
# look at the rows of either.
_TABLES = """
CREATE TABLE leases (
    run_id {text} NOT NULL PRIMARY KEY CHECK (length(run_id) BETWEEN 1 AND 96),
    opened_at {instant} NOT NULL {check_opened_at},
    beat_at {instant} NOT NULL {check_beat_at},
    expires_at {instant} NOT NULL {check_expires_at},
    ended_at {instant} {check_ended_at}
) {strict}{often_updated};

CREATE TABLE claims (
    {key_columns},
    run_id {text} NOT NULL REFERENCES leases (run_id),
    fence {big} NOT NULL CHECK (fence >= 1),
    claimed_at {instant} NOT NULL {check_claimed_at},
    PRIMARY KEY ({key})
    {real_day}
) {strict}{often_updated};

CREATE TABLE requests (
    {key_columns},
    kind {text} NOT NULL CHECK (kind IN ('retry', 'backfill', 'reprocess')),
    act_id {text} NOT NULL REFERENCES operator_acts (act_id),
    attempt_no INTEGER NOT NULL CHECK (attempt_no >= 0),
    requested_at {instant} NOT NULL {check_requested_at},
    PRIMARY KEY ({key})
    {real_day}
) {strict};

CREATE TABLE failed_fetches (
    {key_columns},
    failed_at {instant} NOT NULL {check_failed_at},
    engine_run_id {text} NOT NULL CHECK (length(engine_run_id) BETWEEN 1 AND 96),
    error_class {text} NOT NULL CHECK (length(error_class) BETWEEN 1 AND 64),
    error_message {text} NOT NULL CHECK (length(error_message) BETWEEN 1 AND 2000),
    wait_until {instant} {check_wait_until},
    PRIMARY KEY ({key}, failed_at)
    {real_day}
) {strict};

CREATE TABLE retry_schedule (
    {key_columns},
    attempt_no INTEGER NOT NULL CHECK (attempt_no >= 0),
    failures INTEGER NOT NULL CHECK (failures >= 0),
    error_class {text} CHECK (length(error_class) BETWEEN 1 AND 64),
    failed_at {instant} NOT NULL {check_failed_at},
    wait_until {instant} {check_wait_until},
    due_at {instant} {check_due_at},
    why {text} NOT NULL CHECK (length(why) BETWEEN 1 AND 500),
    planned_at {instant} NOT NULL {check_planned_at},
    PRIMARY KEY ({key}),
    CONSTRAINT due_after_failing CHECK (due_at > failed_at)
    {real_day}
) {strict}{often_updated};

CREATE TABLE terminal_marks (
    {key_columns},
    act_id {text} NOT NULL REFERENCES operator_acts (act_id),
    marked_at {instant} NOT NULL {check_marked_at},
    PRIMARY KEY ({key})
    {real_day}
) {strict};

CREATE TABLE parkings (
    source {text} NOT NULL,
    scope {text} NOT NULL CHECK (scope IN ('customer', 'query')),
    name {text} NOT NULL,
    error_class {text} NOT NULL CHECK (length(error_class) BETWEEN 1 AND 64),
    why {text} NOT NULL CHECK (length(why) BETWEEN 1 AND 2000),
    parked_at {instant} NOT NULL {check_parked_at},
    PRIMARY KEY (source, scope, name)
) {strict};

DROP INDEX partition_state_not_ready;
CREATE INDEX partition_state_not_ready ON partition_state ({key}, status) WHERE status <> 'success';
CREATE INDEX leases_open ON leases (expires_at) WHERE ended_at IS NULL;
CREATE INDEX claims_of_run ON claims (run_id);
CREATE INDEX requests_oldest ON requests (source, requested_at);
CREATE INDEX retry_schedule_due ON retry_schedule (source, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX partition_state_failed ON partition_state ({key}) WHERE status = 'failed';
CREATE INDEX operator_acts_newest ON operator_acts (acted_at, act_id)
"""

_INSTANTS = (
    *("opened_at", "beat_at", "expires_at", "ended_at", "claimed_at", "requested_at", "failed_at", "wait_until"),
    *("due_at", "planned_at", "marked_at", "parked_at"),
)

# A lease that has ended stays so, and a claim goes to another run only under a greater fence.
_LEASE_FORBIDDEN = """
    NEW.run_id <> OLD.run_id OR NEW.opened_at <> OLD.opened_at OR NEW.expires_at < OLD.expires_at
    OR OLD.ended_at IS NOT NULL
"""
_CLAIM_FORBIDDEN = "NEW.fence < OLD.fence OR NEW.fence = OLD.fence AND NEW.run_id <> OLD.run_id"


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
    for statement in _sqlite_triggers() if dialect == "sqlite" else _postgres_triggers():
        op.execute(statement)


def _sqlite_triggers() -> list[str]:
    def refuse(name: str, verb: str, table: str, when: str = "") -> str:
        return f"""
            CREATE TRIGGER {name} BEFORE {verb} ON {table} {when}
            BEGIN SELECT RAISE(ABORT, '{table}: {verb} is refused'); END
        """

    return [
        *(refuse(f"failed_fetches_no_{verb}", verb, "failed_fetches") for verb in ("UPDATE", "DELETE")),
        *(refuse(f"{table}_no_DELETE", "DELETE", table) for table in ("leases", "claims")),
        refuse("leases_move", "UPDATE", "leases", f"WHEN {_LEASE_FORBIDDEN}"),
        refuse("claims_move", "UPDATE", "claims", f"WHEN {_CLAIM_FORBIDDEN}"),
    ]


def _postgres_triggers() -> list[str]:
    def refuse(name: str, verbs: str, table: str, when: str = "") -> str:
        return f"CREATE TRIGGER {name} BEFORE {verbs} ON {table} {when} EXECUTE FUNCTION ledger_refuses()"

    return [
        refuse("failed_fetches_kept", "UPDATE OR DELETE OR TRUNCATE", "failed_fetches"),
        refuse("leases_kept", "DELETE OR TRUNCATE", "leases"),
        refuse("claims_kept", "DELETE OR TRUNCATE", "claims"),
        refuse("leases_move", "UPDATE", "leases", f"FOR EACH ROW WHEN ({_LEASE_FORBIDDEN})"),
        refuse("claims_move", "UPDATE", "claims", f"FOR EACH ROW WHEN ({_CLAIM_FORBIDDEN})"),
    ]
