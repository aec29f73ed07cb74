"""The tables of control actions: the actions and their requests, leases and claims, the retry queue and parkings."""

from typing import Final

from ads_pipeline.ledger.migrations.dialects import append_only, refuse, refuse_update

TABLES: Final = """
CREATE TABLE control_actions (
    action_id {text} NOT NULL PRIMARY KEY CHECK (length(action_id) BETWEEN 1 AND 96),
    action {text} NOT NULL,
    operator {text} NOT NULL CHECK (length(operator) >= 1),
    command {text} NOT NULL,
    filters {text} NOT NULL,
    reason {text} NOT NULL CHECK (length(reason) >= 1),
    partitions_changed INTEGER NOT NULL CHECK (partitions_changed >= 0),
    performed_at {instant} NOT NULL
) {options};

CREATE TABLE control_action_partitions (
    action_id {text} NOT NULL REFERENCES control_actions (action_id),
    {key_columns},
    status_before {text} CHECK (status_before IN ('pending', 'success', 'failed')),
    attempt_no INTEGER NOT NULL CHECK (attempt_no >= 0),
    PRIMARY KEY (action_id, {key})
) {options};

CREATE TABLE leases (
    run_id {text} NOT NULL PRIMARY KEY CHECK (length(run_id) BETWEEN 1 AND 96),
    opened_at {instant} NOT NULL,
    heartbeat_at {instant} NOT NULL,
    expires_at {instant} NOT NULL,
    ended_at {instant}
) {options_50};

CREATE TABLE claims (
    {key_columns},
    run_id {text} NOT NULL REFERENCES leases (run_id),
    fence {bigint} NOT NULL CHECK (fence >= 1),
    claimed_at {instant} NOT NULL,
    PRIMARY KEY ({key})
    {check_date}
) {options_50};

CREATE TABLE requests (
    {key_columns},
    kind {text} NOT NULL CHECK (kind IN ('retry', 'backfill', 'reprocess')),
    action_id {text} NOT NULL REFERENCES control_actions (action_id),
    attempt_no INTEGER NOT NULL CHECK (attempt_no >= 0),
    requested_at {instant} NOT NULL,
    PRIMARY KEY ({key})
    {check_date}
) {options};

CREATE TABLE failed_fetches (
    {key_columns},
    failure_id {text} NOT NULL CHECK (length(failure_id) BETWEEN 1 AND 96),
    failed_at {instant} NOT NULL,
    engine_run_id {text} NOT NULL CHECK (length(engine_run_id) BETWEEN 1 AND 96),
    error_class {text} NOT NULL CHECK (length(error_class) BETWEEN 1 AND 64),
    error_message {text} NOT NULL CHECK (length(error_message) BETWEEN 1 AND 2000),
    wait_until {instant},
    request_id {text} CHECK (length(request_id) BETWEEN 1 AND 200),
    PRIMARY KEY ({key}, failure_id)
    {check_date}
) {options};

CREATE TABLE retry_schedule (
    {key_columns},
    attempt_no INTEGER NOT NULL CHECK (attempt_no >= 0),
    failures INTEGER NOT NULL CHECK (failures >= 0),
    error_class {text} CHECK (length(error_class) BETWEEN 1 AND 64),
    failed_at {instant} NOT NULL,
    wait_until {instant},
    due_at {instant},
    why {text} NOT NULL CHECK (length(why) BETWEEN 1 AND 500),
    planned_at {instant} NOT NULL,
    PRIMARY KEY ({key}),
    CONSTRAINT due_after_failure CHECK (due_at >= failed_at)
    {check_date}
) {options_50};

CREATE TABLE parkings (
    source {text} NOT NULL,
    scope {text} NOT NULL CHECK (scope IN ('customer', 'query', 'source')),
    name {text} NOT NULL,
    error_class {text} NOT NULL CHECK (length(error_class) BETWEEN 1 AND 64),
    why {text} NOT NULL CHECK (length(why) BETWEEN 1 AND 2000),
    parked_at {instant} NOT NULL,
    PRIMARY KEY (source, scope, name)
) {options};

CREATE INDEX control_actions_by_time ON control_actions (performed_at, action_id);
CREATE INDEX control_actions_acknowledging ON control_actions (action_id)
    WHERE action IN ('acknowledge', 'mark_terminal');
CREATE INDEX control_action_partitions_by_key ON control_action_partitions ({key});
CREATE INDEX leases_open ON leases (expires_at) WHERE ended_at IS NULL;
CREATE INDEX claims_by_run ON claims (run_id);
CREATE INDEX requests_by_time ON requests (source, requested_at);
CREATE INDEX retry_schedule_due ON retry_schedule (source, due_at) WHERE due_at IS NOT NULL
"""

NEVER_REPLACED: Final = ("control_actions", "control_action_partitions", "failed_fetches", "leases", "claims")

# An ended lease never changes. Another run gets a claim only with a greater fence.
_INVALID_LEASE_UPDATE: Final = """
    NEW.run_id <> OLD.run_id OR NEW.opened_at <> OLD.opened_at OR NEW.expires_at < OLD.expires_at
    OR OLD.ended_at IS NOT NULL
"""
_INVALID_CLAIM_UPDATE: Final = "NEW.fence < OLD.fence OR NEW.fence = OLD.fence AND NEW.run_id <> OLD.run_id"


def triggers(dialect: str) -> list[str]:
    return [
        *append_only(dialect, "control_actions"),
        *append_only(dialect, "control_action_partitions"),
        *append_only(dialect, "failed_fetches"),
        *refuse(dialect, "leases", "DELETE"),
        *refuse_update(dialect, "leases", _INVALID_LEASE_UPDATE),
        *refuse(dialect, "claims", "DELETE"),
        *refuse_update(dialect, "claims", _INVALID_CLAIM_UPDATE),
    ]
