"""The tables and columns of the ledger, for building statements. `control.tables` has those of the control actions.

Constraints, indexes and triggers are in `migrations`. A test compares the two.
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


def key_columns() -> list[sa.Column[Any]]:
    return [sa.Column(name, Day() if name == "logical_date" else sa.Text, primary_key=True) for name in KEY]


partition_state = sa.Table(
    "partition_state",
    metadata,
    *key_columns(),
    sa.Column("status", sa.Text),
    sa.Column("current_run_id", sa.Text),
    sa.Column("schema_version", sa.Text),
    sa.Column("record_count", sa.BigInteger),
    sa.Column("updated_at", Instant),
    sa.Column("error_message", sa.Text),
    sa.Column("attempt_count", sa.Integer),
)

# Every registered run. The ordinal is the order of registration, the only order between the runs of a partition.
runs = sa.Table(
    "runs",
    metadata,
    *key_columns(),
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("ordinal", sa.Integer),
    sa.Column("schema_version", sa.Text),
    sa.Column("record_count", sa.BigInteger),
    sa.Column("payload_sha256", sa.Text),
    sa.Column("registered_at", Instant),
)

# Every verdict, numbered within its partition. After the verdict, current_ordinal is the ordinal of the current run,
# and message_ordinal the ordinal of the run that the state's error_message is about.
attempts = sa.Table(
    "attempts",
    metadata,
    *key_columns(),
    sa.Column("attempt_no", sa.Integer, primary_key=True),
    sa.Column("run_id", sa.Text),
    sa.Column("validation_id", sa.Text),
    sa.Column("ordinal", sa.Integer),
    sa.Column("outcome", sa.Text),
    sa.Column("effect", sa.Text),
    sa.Column("error_class", sa.Text),
    sa.Column("error_message", sa.Text),
    sa.Column("rows_read", sa.BigInteger),
    sa.Column("rows_failed", sa.BigInteger),
    sa.Column("judged_at", Instant),
    sa.Column("current_ordinal", sa.Integer),
    sa.Column("message_ordinal", sa.Integer),
)

# The run that readers see of a partition. It is written after the rows are in the warehouse.
warehouse_pointer = sa.Table(
    "warehouse_pointer",
    metadata,
    *key_columns(),
    sa.Column("run_id", sa.Text),
    sa.Column("schema_version", sa.Text),
    sa.Column("record_count", sa.BigInteger),
    sa.Column("table_version", sa.BigInteger),
    sa.Column("availability", sa.Text),
    sa.Column("changed_at", Instant),
)

# The first publication of each run. Publishing it again adds no row.
load_records = sa.Table(
    "load_records",
    metadata,
    *key_columns(),
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("schema_version", sa.Text),
    sa.Column("record_count", sa.BigInteger),
    sa.Column("table_version", sa.BigInteger),
    sa.Column("loaded_at", Instant),
)

# Unfinished demotions: the rows are hidden at once, and the verdict is recorded when the warehouse has removed them.
demotions = sa.Table(
    "demotions",
    metadata,
    *key_columns(),
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("validation_id", sa.Text),
    sa.Column("error_class", sa.Text),
    sa.Column("error_message", sa.Text),
    sa.Column("rows_read", sa.BigInteger),
    sa.Column("rows_failed", sa.BigInteger),
    sa.Column("started_at", Instant),
)

control_actions = sa.Table(
    "control_actions",
    metadata,
    sa.Column("action_id", sa.Text, primary_key=True),
    sa.Column("action", sa.Text),
    sa.Column("operator", sa.Text),
    sa.Column("command", sa.Text),
    sa.Column("filters", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("partitions_changed", sa.Integer),
    sa.Column("performed_at", Instant),
)

# The partitions that an action changed, with their status and number of attempts before it. The number gives actions
# and verdicts one order. Their times cannot: an action is dated before it waits for its locks.
control_action_partitions = sa.Table(
    "control_action_partitions",
    metadata,
    sa.Column("action_id", sa.Text, primary_key=True),
    *key_columns(),
    sa.Column("status_before", sa.Text),
    sa.Column("attempt_no", sa.Integer),
)

# The newest event of each run. The row is locked to append events in order. The snapshot includes projected_seq.
run_head = sa.Table(
    "run_head",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("plan_version", sa.Text),
    sa.Column("last_seq", sa.BigInteger),
    sa.Column("last_at", Instant),
    sa.Column("opened_at", Instant),
    sa.Column("projected_seq", sa.BigInteger),
    sa.Column("payload_conflicts", sa.Integer),
    sa.Column("retired_at", Instant),
)

run_events = sa.Table(
    "run_events",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("run_seq", sa.BigInteger, primary_key=True),
    sa.Column("event_id", sa.Text),
    sa.Column("event_type", sa.Text),
    sa.Column("step_id", sa.Text),
    sa.Column("logical_attempt_id", sa.BigInteger),
    sa.Column("engine_attempt_id", sa.BigInteger),
    sa.Column("event_data", sa.Text),
    sa.Column("engine_run_ref", sa.Text),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("emitted_at", sa.Text),
    sa.Column("persisted_at", Instant),
    sa.Column("adapter_version", sa.Text),
    sa.Column("caused_by_signal_id", sa.Text),
    sa.Column("parent_event_id", sa.Text),
)

# The snapshot of each run, folded from its events. It can be rebuilt at any time.
run_snapshots = sa.Table(
    "run_snapshots",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("status", sa.Text),
    sa.Column("last_event_seq", sa.BigInteger),
    sa.Column("steps", sa.Text),
    sa.Column("started_at", Instant),
    sa.Column("ended_at", Instant),
    sa.Column("inconsistencies", sa.Integer),
    sa.Column("missing_events", sa.BigInteger),
    sa.Column("stale_since", Instant),
)

run_steps = sa.Table(
    "run_steps",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("step_id", sa.Text, primary_key=True),
    sa.Column("status", sa.Text),
)

# The table of ADR-026, with exactly its columns.
partition_status = sa.Table(
    "partition_status",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("workspace_id", sa.Text, primary_key=True),
    sa.Column("asset_key", sa.Text, primary_key=True),
    sa.Column("partition_key", sa.Text, primary_key=True),
    sa.Column("last_materialization_run_id", sa.Text),
    sa.Column("last_materialization_at", Instant),
    sa.Column("last_materialization_code_version", sa.Text),
    sa.Column("last_attempt_run_id", sa.Text),
    sa.Column("last_attempt_at", Instant),
    sa.Column("last_attempt_outcome", sa.Text),
    sa.Column("stale_since", Instant),
    sa.Column("stale_reason_code", sa.Text),
    sa.Column("partition_values", sa.Text),
    sa.Column("row_version", sa.Text),
)

# Finished attempts without a verdict: loads, and attempts that failed before it. partition_status is folded from
# these and from `attempts`.
finished_attempts = sa.Table(
    "finished_attempts",
    metadata,
    sa.Column("asset", sa.Text, primary_key=True),
    *key_columns(),
    sa.Column("finished_at", Instant, primary_key=True),
    sa.Column("run_id", sa.Text),
    sa.Column("outcome", sa.Text),
    sa.Column("code_version", sa.Text),
)

# The code version of each asset, and since when it is in use.
code_versions = sa.Table(
    "code_versions",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("workspace_id", sa.Text, primary_key=True),
    sa.Column("asset_key", sa.Text, primary_key=True),
    sa.Column("code_version", sa.Text),
    sa.Column("seen_since", Instant),
)
