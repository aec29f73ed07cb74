"""The tables of partition states: runs, states, attempts, pointers, load records and demotions."""

from functools import partial
from typing import Final

from ads_pipeline.ledger.migrations.dialects import (
    append_only,
    refuse,
    refuse_update,
    require,
    require_after_update,
)

TABLES: Final = """
CREATE TABLE runs (
    {key_columns},
    run_id {text} NOT NULL CHECK (length(run_id) BETWEEN 1 AND 96),
    ordinal INTEGER NOT NULL CHECK (ordinal >= 1),
    schema_version {text},
    record_count {bigint} CHECK (record_count >= 0),
    payload_sha256 {text} CHECK (length(payload_sha256) = 64),
    extracted_at {instant},
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
    CONSTRAINT verdict_has_attempt CHECK (
        attempt_count >= 1 OR status = 'pending' AND current_run_id IS NULL AND error_message IS NULL
    )
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
    reason {text} CHECK (length(reason) >= 1),
    rows_read {bigint} CHECK (rows_read >= 0),
    rows_failed {bigint} CHECK (rows_failed >= 0),
    payload_bytes {bigint} CHECK (payload_bytes >= 0),
    payload_sha256 {text} CHECK (length(payload_sha256) = 64),
    judged_at {instant} NOT NULL,
    current_ordinal INTEGER,
    message_ordinal INTEGER,
    cost_micros {bigint},
    conversions {double},
    conversions_value {double},
    PRIMARY KEY ({key}, attempt_no),
    FOREIGN KEY ({key}, run_id) REFERENCES runs ({key}, run_id),
    CONSTRAINT attempts_verdict_unique UNIQUE ({key}, run_id, validation_id),
    CONSTRAINT effect_matches_outcome CHECK (
        outcome = 'accepted' AND effect IN ('promoted', 'confirmed', 'superseded')
        OR outcome = 'rejected' AND effect IN ('set_aside', 'failed', 'demoted')
    ),
    CONSTRAINT effect_matches_current_run CHECK (
        effect = 'failed'
        OR effect IN ('promoted', 'confirmed', 'demoted') AND NOT (ordinal {differs} current_ordinal)
        OR effect = 'superseded' AND coalesce(ordinal < current_ordinal, FALSE)
        OR effect = 'set_aside' AND coalesce(ordinal <> current_ordinal, FALSE)
    ),
    CONSTRAINT rejection_has_reason CHECK (
        (outcome = 'rejected') = (error_class IS NOT NULL) AND (outcome = 'rejected') = (reason IS NOT NULL)
    ),
    CONSTRAINT acceptance_has_payload CHECK (
        outcome = 'rejected'
        OR rows_read IS NOT NULL AND payload_bytes IS NOT NULL AND payload_sha256 IS NOT NULL
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
    reason {text} NOT NULL CHECK (length(reason) >= 1),
    rows_read {bigint} CHECK (rows_read >= 0),
    payload_bytes {bigint} CHECK (payload_bytes >= 0),
    payload_sha256 {text} CHECK (length(payload_sha256) = 64),
    started_at {instant} NOT NULL,
    PRIMARY KEY ({key}, run_id),
    FOREIGN KEY ({key}, run_id) REFERENCES runs ({key}, run_id)
) {options};

CREATE INDEX partition_state_by_date ON partition_state (source, query_name, logical_date, customer_id);
CREATE INDEX partition_state_not_success ON partition_state ({key}, status) WHERE status <> 'success';
CREATE INDEX partition_state_failed ON partition_state ({key}) WHERE status = 'failed';
CREATE INDEX attempts_rejected ON attempts ({key}, ordinal, attempt_no) WHERE outcome = 'rejected'
"""

NEVER_REPLACED: Final = ("partition_state", "runs", "attempts", "load_records")

# No verdict and no control action updates a row like this, so no connection may.
_INVALID_UPDATE: Final = """
    NEW.source <> OLD.source OR NEW.customer_id <> OLD.customer_id
    OR NEW.query_name <> OLD.query_name OR NEW.logical_date <> OLD.logical_date
    OR NEW.updated_at <= OLD.updated_at
    OR NEW.attempt_count < OLD.attempt_count
    OR OLD.current_run_id IS NOT NULL AND NEW.current_run_id IS NULL
    OR NEW.attempt_count > OLD.attempt_count AND NEW.status = 'pending'
    OR NEW.attempt_count = OLD.attempt_count AND (
        NEW.status <> 'pending' OR OLD.status = 'pending'
        OR NEW.current_run_id {differs} OLD.current_run_id
        OR NEW.schema_version {differs} OLD.schema_version
        OR NEW.record_count {differs} OLD.record_count
        OR NEW.error_message {differs} OLD.error_message
    )
"""

# A judged state follows from its logs: every counted attempt exists, and the last one led to this status and current
# run. Counting is one scan of an index, which is cheaper than a search for each of these.
_JUDGED: Final = """
    (SELECT count(*) FROM attempts AS a
        WHERE {same_key_a} AND a.attempt_no > {before} AND a.attempt_no <= NEW.attempt_count
        AND (a.attempt_no < NEW.attempt_count OR {led_to_status} AND (
            CASE WHEN NEW.current_run_id IS NULL THEN a.current_ordinal IS NULL ELSE a.current_ordinal = (
                SELECT r.ordinal FROM runs AS r WHERE {same_key_r} AND r.run_id = NEW.current_run_id
                    AND r.schema_version = NEW.schema_version AND r.record_count = NEW.record_count
            ) END
        ))
    ) = NEW.attempt_count - {before}
"""
_LED_TO_STATUS: Final = "NEW.status = CASE WHEN a.effect IN ('failed', 'demoted') THEN 'failed' ELSE 'success' END"
# Only a control action after the last attempt makes a judged partition pending.
_WITHDRAWN: Final = """
    EXISTS (SELECT 1 FROM control_action_partitions AS p JOIN control_actions AS c ON c.action_id = p.action_id
        WHERE {same_key_p} AND p.attempt_no = NEW.attempt_count AND c.action IN ('requeue', 'withdraw'))
"""
_ACCEPTED: Final = """
    EXISTS (SELECT 1 FROM attempts AS a WHERE {same_key_a} AND a.run_id = NEW.run_id AND a.outcome = 'accepted')
    AND EXISTS (SELECT 1 FROM runs AS r WHERE {same_key_r} AND r.run_id = NEW.run_id
        AND r.schema_version = NEW.schema_version AND r.record_count = NEW.record_count)
"""
_LOADED: Final = """
    EXISTS (SELECT 1 FROM load_records AS l WHERE {same_key_l} AND l.run_id = NEW.run_id
        AND l.schema_version = NEW.schema_version AND l.record_count = NEW.record_count)
    AND EXISTS (SELECT 1 FROM partition_state AS s WHERE {same_key_s} AND s.status = 'success' {is_current})
"""
_POINTS: Final = "NEW.availability = 'published'"
_MOVES: Final = f"{_POINTS} AND (NEW.run_id <> OLD.run_id OR OLD.availability <> 'published')"


def triggers(dialect: str) -> list[str]:
    return [
        *refuse_update(dialect, "partition_state", _INVALID_UPDATE),
        *refuse(dialect, "partition_state", "DELETE"),
        *_state_evidence(dialect),
        *append_only(dialect, "runs"),
        *append_only(dialect, "attempts"),
        *append_only(dialect, "load_records"),
        *_publication_evidence(dialect),
    ]


def _state_evidence(dialect: str) -> list[str]:
    message = "no attempt or control action led to this state"
    rule = partial(require, dialect, "partition_state", message=message)
    judged, pending = (
        "NEW.attempt_count > 0 AND NEW.status <> 'pending'",
        "NEW.attempt_count > 0 AND NEW.status = 'pending'",
    )
    counted = _JUDGED.replace("{led_to_status}", _LED_TO_STATUS)
    copied = _JUDGED.replace("{led_to_status}", "TRUE").replace("{before}", "0") + f" AND {_WITHDRAWN}"
    return [
        *rule("INSERT", "inserted_judged_state", when=judged, evidence=counted.replace("{before}", "0")),
        *require_after_update(
            dialect,
            "partition_state",
            "updated_judged_state",
            when=judged,
            evidence=counted.replace("{before}", "OLD.attempt_count"),
            message=message,
        ),
        *rule("INSERT", "inserted_pending_state", when=pending, evidence=copied),
        *rule("UPDATE", "updated_pending_state", when=pending, evidence=_WITHDRAWN),
    ]


def _publication_evidence(dialect: str) -> list[str]:
    """A loaded run was accepted. A published pointer is at a loaded run of a success; it moves to the current run."""
    loaded, current = (_LOADED.replace("{is_current}", text) for text in ("", "AND s.current_run_id = NEW.run_id"))
    load = partial(require, dialect, "load_records", message="no verdict accepted this run")
    rule = partial(require, dialect, "warehouse_pointer", message="the run is not loaded or not readable")
    return [
        *load("INSERT", "loaded_run_was_accepted", when="TRUE", evidence=_ACCEPTED),
        *rule("INSERT", "inserted_pointer_is_readable", when=_POINTS, evidence=loaded),
        *rule("UPDATE", "updated_pointer_is_readable", when=_POINTS, evidence=loaded),
        *rule("UPDATE", "moved_pointer_is_current", when=_MOVES, evidence=current),
    ]
