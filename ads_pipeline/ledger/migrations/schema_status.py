"""The tables of materialization status after ADR-026: the status rows and what they are folded from."""

from typing import Final

from ads_pipeline.ledger.migrations.dialects import append_only

TABLES: Final = """
CREATE TABLE partition_status (
    tenant_id {text} NOT NULL,
    workspace_id {text} NOT NULL,
    asset_key {text} NOT NULL,
    partition_key {text} NOT NULL,
    last_materialization_run_id {text},
    last_materialization_at {instant},
    last_materialization_code_version {text},
    last_attempt_run_id {text} NOT NULL,
    last_attempt_at {instant} NOT NULL,
    last_attempt_outcome {text} NOT NULL CHECK (last_attempt_outcome IN ('SUCCEEDED', 'FAILED', 'CANCELLED')),
    stale_since {instant},
    stale_reason_code {text}
        CHECK (stale_reason_code IN ('FRESHNESS_POLICY', 'UPSTREAM_CHANGED', 'CODE_CHANGED')),
    partition_values {text} NOT NULL,
    row_version {text} NOT NULL CHECK (length(row_version) = 26),
    PRIMARY KEY (tenant_id, workspace_id, asset_key, partition_key),
    CONSTRAINT materialization_complete CHECK (
        (last_materialization_run_id IS NULL) = (last_materialization_at IS NULL)
        AND (last_materialization_run_id IS NULL) = (last_materialization_code_version IS NULL)
    ),
    CONSTRAINT staleness_complete CHECK (
        (stale_since IS NULL) = (stale_reason_code IS NULL)
        AND (stale_since IS NULL OR last_materialization_at IS NOT NULL)
    )
) {options_50};

CREATE TABLE finished_attempts (
    asset {text} NOT NULL CHECK (asset IN ('raw', 'warehouse')),
    {key_columns},
    finished_at {instant} NOT NULL,
    run_id {text} NOT NULL CHECK (length(run_id) BETWEEN 1 AND 96),
    outcome {text} NOT NULL CHECK (outcome IN ('SUCCEEDED', 'FAILED', 'CANCELLED')),
    code_version {text},
    PRIMARY KEY (asset, {key}, finished_at),
    CONSTRAINT code_version_needs_success CHECK (code_version IS NULL OR outcome = 'SUCCEEDED')
    {check_date}
) {options};

CREATE TABLE code_versions (
    tenant_id {text} NOT NULL,
    workspace_id {text} NOT NULL,
    asset_key {text} NOT NULL,
    code_version {text} NOT NULL,
    seen_since {instant} NOT NULL,
    PRIMARY KEY (tenant_id, workspace_id, asset_key)
) {options}
"""

NEVER_REPLACED: Final = ("finished_attempts",)


def triggers(dialect: str) -> list[str]:
    return append_only(dialect, "finished_attempts")
