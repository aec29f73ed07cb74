"""The tables of partition states: runs, states, attempts, pointers, load records and demotions."""

from typing import Final

from ads_pipeline.ledger.migrations.dialects import refuse, refuse_update

TABLES: Final = """
CREATE TABLE runs (
    {key_columns},
    run_id {text} NOT NULL CHECK (length(run_id) BETWEEN 1 AND 96),
    ordinal INTEGER NOT NULL CHECK (ordinal >= 1),
    schema_version {text},
    record_count {bigint} CHECK (record_count >= 0),
    payload_sha256 {text} CHECK (length(payload_sha256) = 64),
    registered_at {instant} NOT NULL,
    PRIMARY KEY ({key}, run_id),
    CONSTRAINT runs_ordinal_unique UNIQUE ({key}, ordinal),
    CONSTRAINT seal_facts_complete CHECK ((schema_version IS NULL) = (record_count IS NULL))
    {check_date}
) {options};

CREATE TABLE partition_state (
    {key_columns},
    status {text} NOT NULL CHECK (status IN ('pending', 'success', 'failed')),
    current_run_id {text},
    schema_version {text},
    record_count {bigint} CHECK (record_count >= 0),
    updated_at {instant} NOT NULL,
    error_message {text} CHECK (length(error_message) BETWEEN 1 AND 2000),
    attempt_count INTEGER NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    PRIMARY KEY ({key}),
    FOREIGN KEY ({key}, current_run_id) REFERENCES runs ({key}, run_id),
    CONSTRAINT current_run_complete CHECK (
        (current_run_id IS NULL) = (schema_version IS NULL) AND (current_run_id IS NULL) = (record_count IS NULL)
    ),
    CONSTRAINT success_has_current_run CHECK (
        status <> 'success' OR (current_run_id IS NOT NULL AND error_message IS NULL)
    ),
    CONSTRAINT failure_has_message CHECK (status <> 'failed' OR error_message IS NOT NULL),
    CONSTRAINT verdict_has_attempt CHECK (status = 'pending' OR attempt_count >= 1)
    {check_date}
) {options_70};

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
    rows_read {bigint} CHECK (rows_read >= 0),
    rows_failed {bigint} CHECK (rows_failed >= 0),
    judged_at {instant} NOT NULL,
    current_ordinal INTEGER,
    message_ordinal INTEGER,
    PRIMARY KEY ({key}, attempt_no),
    FOREIGN KEY ({key}, run_id) REFERENCES runs ({key}, run_id),
    CONSTRAINT attempts_verdict_unique UNIQUE ({key}, run_id, validation_id),
    CONSTRAINT effect_matches_outcome CHECK (
        outcome = 'accepted' AND effect IN ('promoted', 'confirmed', 'superseded')
        OR outcome = 'rejected' AND effect IN ('set_aside', 'failed', 'demoted')
    ),
    CONSTRAINT rejection_has_error CHECK (
        (outcome = 'rejected') = (error_class IS NOT NULL) AND (outcome = 'rejected') = (error_message IS NOT NULL)
    )
) {options};

CREATE TABLE warehouse_pointer (
    {key_columns},
    run_id {text} NOT NULL,
    schema_version {text} NOT NULL,
    record_count {bigint} NOT NULL CHECK (record_count >= 0),
    table_version {bigint} NOT NULL CHECK (table_version >= 0),
    availability {text} NOT NULL CHECK (availability IN ('published', 'unavailable')),
    changed_at {instant} NOT NULL,
    PRIMARY KEY ({key}),
    FOREIGN KEY ({key}, run_id) REFERENCES runs ({key}, run_id)
) {options};

CREATE TABLE load_records (
    {key_columns},
    run_id {text} NOT NULL,
    schema_version {text} NOT NULL,
    record_count {bigint} NOT NULL CHECK (record_count >= 0),
    table_version {bigint} NOT NULL CHECK (table_version >= 0),
    loaded_at {instant} NOT NULL,
    PRIMARY KEY ({key}, run_id),
    FOREIGN KEY ({key}, run_id) REFERENCES runs ({key}, run_id)
) {options};

CREATE TABLE demotions (
    {key_columns},
    run_id {text} NOT NULL,
    validation_id {text} NOT NULL CHECK (length(validation_id) <= 96),
    error_class {text} NOT NULL CHECK (length(error_class) BETWEEN 1 AND 64),
    error_message {text} NOT NULL CHECK (length(error_message) BETWEEN 1 AND 2000),
    rows_read {bigint} CHECK (rows_read >= 0),
    rows_failed {bigint} CHECK (rows_failed >= 0),
    started_at {instant} NOT NULL,
    PRIMARY KEY ({key}, run_id),
    FOREIGN KEY ({key}, run_id) REFERENCES runs ({key}, run_id)
) {options};

CREATE INDEX partition_state_by_date ON partition_state (source, query_name, logical_date, customer_id);
CREATE INDEX partition_state_not_success ON partition_state ({key}, status) WHERE status <> 'success';
CREATE INDEX partition_state_failed ON partition_state ({key}) WHERE status = 'failed'
"""

# No verdict and no control action updates a row like this, so no connection may.
_INVALID_UPDATE: Final = """
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


def triggers(dialect: str) -> list[str]:
    return [
        *refuse_update(dialect, "partition_state", _INVALID_UPDATE),
        *refuse(dialect, "partition_state", "DELETE"),
        *refuse(dialect, "runs", "UPDATE", "DELETE"),
        *refuse(dialect, "attempts", "UPDATE", "DELETE"),
        *refuse(dialect, "load_records", "UPDATE", "DELETE"),
    ]
