"""Demotions that have begun: what was found bad is hidden and gone before its failure is recorded."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_WORDS = {
    "postgresql": {
        "text": 'TEXT COLLATE "C"',
        "day": "DATE",
        "instant": "TIMESTAMPTZ",
        "big": "BIGINT",
        "strict": "",
    },
    "sqlite": {"text": "TEXT", "day": "TEXT", "instant": "TEXT", "big": "INTEGER", "strict": "STRICT"},
}

# A list of work and no log: a row goes when its verdict is recorded, and the attempts tell of it from then on.
_TABLE = """
CREATE TABLE demotions (
    source {text} NOT NULL,
    customer_id {text} NOT NULL,
    query_name {text} NOT NULL,
    logical_date {day} NOT NULL,
    run_id {text} NOT NULL,
    validation_id {text} NOT NULL CHECK (length(validation_id) <= 96),
    error_class {text} NOT NULL CHECK (length(error_class) BETWEEN 1 AND 64),
    error_message {text} NOT NULL CHECK (length(error_message) BETWEEN 1 AND 2000),
    rows_read {big} CHECK (rows_read >= 0),
    rows_failed {big} CHECK (rows_failed >= 0),
    begun_at {instant} NOT NULL,
    PRIMARY KEY (source, customer_id, query_name, logical_date, run_id),
    FOREIGN KEY (source, customer_id, query_name, logical_date, run_id)
        REFERENCES runs (source, customer_id, query_name, logical_date, run_id)
) {strict}
"""


def upgrade() -> None:
    op.execute(_TABLE.format(**_WORDS[op.get_bind().dialect.name]))
