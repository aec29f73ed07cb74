"""The tables and columns of the ledger, for building statements. `control.tables` has those of the control actions.

Constraints, indexes and triggers are in `schema`, as SQL. A test compares the two.
"""

from datetime import UTC, date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine


def instant_text(instant: datetime) -> str:
    """The instant in UTC as text of fixed width, so that text order is time order. Postgres accepts it too."""
    return instant.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"


class Instant(TypeDecorator[datetime]):
    """An instant in UTC: timestamptz in Postgres, fixed-width text in SQLite, which has no such type."""

    impl = sa.TIMESTAMP(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(sa.Text() if dialect.name == "sqlite" else sa.TIMESTAMP(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        return instant_text(value) if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the base's
        if isinstance(value, str):
            return datetime.fromisoformat(value)  # the text ends in Z; strptime takes forty times as long
        return None if value is None else value.astimezone(UTC)


class Day(TypeDecorator[date]):
    """A calendar day: date in Postgres, YYYY-MM-DD in SQLite."""

    impl = sa.Date
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(sa.Text() if dialect.name == "sqlite" else sa.Date())

    def process_bind_param(self, value: date | None, dialect: Dialect) -> Any:
        return value.isoformat() if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> date | None:  # noqa: ARG002 - the base's signature
        return date.fromisoformat(value) if isinstance(value, str) else value


metadata = sa.MetaData()
KEY = ("source", "customer_id", "query_name", "logical_date")
STATUS_KEY = ("tenant_id", "workspace_id", "asset_key", "partition_key")
PARTITION_KEY = "source text key, customer_id text key, query_name text key, logical_date day key"
_TYPES = {
    "text": sa.Text,
    "integer": sa.Integer,
    "bigint": sa.BigInteger,
    "double": sa.Double,
    "instant": Instant,
    "day": Day,
}


def define_table(name: str, *column_lists: str) -> sa.Table:
    """Define a table from lists of columns like "run_id text key, ordinal integer"; `key` marks the primary key."""
    columns = (column.split() for column_list in column_lists for column in column_list.split(", "))
    return sa.Table(
        name,
        metadata,
        *(sa.Column(column, _TYPES[kind], primary_key=bool(key)) for column, kind, *key in columns),
    )


partition_state = define_table(
    "partition_state",
    PARTITION_KEY,
    "status text, current_run_id text, schema_version text, record_count bigint, updated_at instant, "
    "error_message text, attempt_count integer",
)

# Every registered run. The ordinal is the order of registration, the only order between the runs of a partition.
runs = define_table(
    "runs",
    PARTITION_KEY,
    "run_id text key, ordinal integer, schema_version text, record_count bigint, payload_sha256 text, "
    "extracted_at instant, registered_at instant",
)

# Every verdict, numbered within its partition. A rejection has its reason as JSON. payload_bytes and payload_sha256
# describe the bytes that were judged. After the verdict, current_ordinal is the ordinal of the current run, and
# message_ordinal the ordinal of the run that the state's error_message is about.
attempts = define_table(
    "attempts",
    PARTITION_KEY,
    "attempt_no integer key, run_id text, validation_id text, ordinal integer, outcome text, effect text, "
    "error_class text, reason text, rows_read bigint, rows_failed bigint, payload_bytes bigint, payload_sha256 text, "
    "judged_at instant, current_ordinal integer, message_ordinal integer, cost_micros bigint, conversions double, "
    "conversions_value double",
)

# The run that readers see of a partition. It is written after the rows are in the warehouse.
warehouse_pointer = define_table(
    "warehouse_pointer",
    PARTITION_KEY,
    "run_id text, schema_version text, record_count bigint, table_version bigint, availability text, "
    "changed_at instant",
)

# The first publication of each run. Publishing it again adds no row.
load_records = define_table(
    "load_records",
    PARTITION_KEY,
    "run_id text key, schema_version text, record_count bigint, table_version bigint, loaded_at instant",
)

# Unfinished demotions: the rows are hidden at once, and the verdict is recorded when the warehouse has removed them.
demotions = define_table(
    "demotions",
    PARTITION_KEY,
    "run_id text key, validation_id text, reason text, rows_read bigint, payload_bytes bigint, payload_sha256 text, "
    "started_at instant",
)

control_actions = define_table(
    "control_actions",
    "action_id text key, action text, operator text, command text, filters text, reason text, "
    "partitions_changed integer, performed_at instant",
)

# The partitions that an action changed, with their status and number of attempts before it. The number gives actions
# and verdicts one order, also when a clock went back.
control_action_partitions = define_table(
    "control_action_partitions",
    "action_id text key, source text key, customer_id text key, query_name text key, logical_date day key, "
    "status_before text, attempt_no integer",
)

# The newest event of each run, and its snapshot, folded from the events up to projected_seq. The row is locked to
# append events in order. Until the first fold there is no status.
run_head = define_table(
    "run_head",
    "engine_run_id text key, plan_version text, last_seq bigint, last_at instant, opened_at instant, "
    "projected_seq bigint, payload_conflicts integer, retired_at instant, status text, steps text, "
    "started_at instant, ended_at instant, inconsistencies integer, missing_events bigint, stale_since instant",
)

run_events = define_table(
    "run_events",
    "engine_run_id text key, run_seq bigint key, event_id text, event_type text, step_id text, "
    "logical_attempt_id bigint, engine_attempt_id bigint, event_data text, engine_run_ref text, "
    "idempotency_key text, emitted_at text, persisted_at instant, adapter_version text, "
    "caused_by_signal_id text, parent_event_id text",
)

# The table of ADR-026, with exactly its columns.
partition_status = define_table(
    "partition_status",
    "tenant_id text key, workspace_id text key, asset_key text key, partition_key text key, "
    "last_materialization_run_id text, last_materialization_at instant, last_materialization_code_version text, "
    "last_attempt_run_id text, last_attempt_at instant, last_attempt_outcome text, stale_since instant, "
    "stale_reason_code text, partition_values text, row_version text",
)

# Attempts that ended without a verdict: loads, runs that ended before it, and fetches that produced no run. A failed
# fetch has an error_class. The attempt_id is the raw run, or the id of a failed fetch, which has no run.
# partition_status is folded from these and from `attempts`.
finished_attempts = define_table(
    "finished_attempts",
    "asset text key, source text key, customer_id text key, query_name text key, logical_date day key, "
    "finished_at instant key, attempt_id text key, outcome text, code_version text, failed_at instant, "
    "engine_run_id text, error_class text, error_message text, wait_until instant, request_id text",
)

# The code version of each asset, and since when it is in use.
code_versions = define_table(
    "code_versions",
    "tenant_id text key, workspace_id text key, asset_key text key, code_version text, seen_since instant",
)
