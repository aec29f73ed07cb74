"""The tables of extraction: accounts, API operations and holds."""

from typing import Final

from ads_pipeline.ledger.migrations.dialects import append_only, refuse

TABLES: Final = """
CREATE TABLE accounts (
    source {text} NOT NULL,
    customer_id {text} NOT NULL,
    status {text} NOT NULL CHECK (length(status) BETWEEN 1 AND 64),
    level INTEGER NOT NULL CHECK (level >= 0),
    name {text} CHECK (length(name) <= 300),
    is_manager INTEGER NOT NULL CHECK (is_manager IN (0, 1)),
    manager_id {text},
    login_customer_id {text},
    time_zone {text} CHECK (length(time_zone) <= 100),
    currency_code {text} CHECK (length(currency_code) <= 16),
    is_test INTEGER NOT NULL CHECK (is_test IN (0, 1)),
    is_hidden INTEGER NOT NULL CHECK (is_hidden IN (0, 1)),
    seen_at {instant} NOT NULL,
    gone_at {instant},
    lookback_days INTEGER CHECK (lookback_days BETWEEN 0 AND 90),
    lookback_read_at {instant},
    PRIMARY KEY (source, customer_id)
) {options_50};

CREATE TABLE api_operations (
    source {text} NOT NULL,
    operation_no {bigint} NOT NULL CHECK (operation_no >= 1),
    entry {text} NOT NULL CHECK (entry IN ('reserved', 'finished')),
    at {instant} NOT NULL,
    engine_run_id {text} NOT NULL CHECK (length(engine_run_id) BETWEEN 1 AND 96),
    kind {text} NOT NULL CHECK (length(kind) BETWEEN 1 AND 64),
    lane {text} NOT NULL CHECK (lane IN ('fresh', 'backfill')),
    others_no {bigint} NOT NULL CHECK (others_no BETWEEN 0 AND operation_no),
    customer_id {text},
    query_name {text},
    since {date},
    until {date},
    outcome {text} CHECK (length(outcome) BETWEEN 1 AND 64),
    error_message {text} CHECK (length(error_message) BETWEEN 1 AND 2000),
    request_id {text} CHECK (length(request_id) BETWEEN 1 AND 200),
    rows_received {bigint} CHECK (rows_received >= 0),
    milliseconds {bigint} CHECK (milliseconds >= 0),
    consumption {bigint},
    PRIMARY KEY (source, operation_no, entry),
    CONSTRAINT outcome_when_finished CHECK ((entry = 'finished') = (outcome IS NOT NULL))
) {options};

CREATE TABLE api_holds (
    source {text} NOT NULL,
    customer_id {text} NOT NULL,
    held_until {instant} NOT NULL,
    why {text} NOT NULL CHECK (length(why) BETWEEN 1 AND 2000),
    request_id {text} CHECK (length(request_id) BETWEEN 1 AND 200),
    held_at {instant} NOT NULL,
    error_class {text} NOT NULL CHECK (length(error_class) BETWEEN 1 AND 64),
    failures INTEGER NOT NULL CHECK (failures >= 0),
    failed_no {bigint} CHECK (failed_no >= 1),
    probe_no {bigint} CHECK (probe_no >= 1),
    probe_at {instant},
    lifted_at {instant},
    PRIMARY KEY (source, customer_id),
    CONSTRAINT probe_has_a_time CHECK ((probe_no IS NULL) = (probe_at IS NULL))
) {options_50};

CREATE TABLE retry_resets (
    source {text} NOT NULL,
    scope {text} NOT NULL CHECK (scope IN ('recovery', 'source', 'customer', 'query')),
    name {text} NOT NULL,
    reset_at {instant} NOT NULL,
    PRIMARY KEY (source, scope, name)
) {options};

CREATE INDEX api_operations_by_time ON api_operations (source, at, operation_no) WHERE entry = 'reserved';

CREATE INDEX api_operations_by_query ON api_operations (source, customer_id, query_name, operation_no)
WHERE entry = 'reserved';

CREATE INDEX api_operations_narrowed ON api_operations (source, at)
WHERE outcome IN ('range_too_wide', 'single_days_only', 'timed_out')
"""

NEVER_REPLACED: Final = ("api_operations",)


def triggers(dialect: str) -> list[str]:
    return [
        *append_only(dialect, "api_operations"),
        *refuse(dialect, "accounts", "DELETE"),
    ]
