"""The tables of the ledger, for building statements, read from the schema's text, and the types of their columns.

Constraints, indexes, triggers and the meaning of each table are in `schema`, as SQL.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from ads_pipeline.ledger.schema.texts import read_text


def instant_text(instant: datetime) -> str:
    """The instant in UTC as text of fixed width, so that text order is time order. Postgres accepts it too."""
    return _utc_text(instant.astimezone(UTC))  # in other zones, two instants of the repeated hour in autumn are equal


@lru_cache(maxsize=16)  # most rows of a transaction have the same time
def _utc_text(instant: datetime) -> str:
    return instant.isoformat(timespec="microseconds")[:26] + "Z"


class Instant(TypeDecorator[datetime]):
    """An instant in UTC: timestamptz in Postgres, fixed-width text in SQLite, which has no such type."""

    impl = sa.TIMESTAMP(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(sa.Text() if dialect.name == "sqlite" else sa.TIMESTAMP(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        return instant_text(value) if value is not None and dialect.name == "sqlite" else value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None]:  # noqa: ARG002
        """A function, instead of `process_result_value`: the base calls that through two others, for every value."""
        return _read_instant


class Day(TypeDecorator[date]):
    """A calendar day: date in Postgres, YYYY-MM-DD in SQLite."""

    impl = sa.Date
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(sa.Text() if dialect.name == "sqlite" else sa.Date())

    def process_bind_param(self, value: date | None, dialect: Dialect) -> Any:
        return value.isoformat() if value is not None and dialect.name == "sqlite" else value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], date | None]:  # noqa: ARG002
        return _read_day


def _read_instant(value: Any) -> datetime | None:
    if value is None:
        return None
    # The text ends in Z; strptime takes forty times as long.
    return datetime.fromisoformat(value) if type(value) is str else value.astimezone(UTC)


def _read_day(value: Any) -> date | None:
    return date.fromisoformat(value) if type(value) is str else value


metadata = sa.MetaData()
KEY = ("source", "customer_id", "query_name", "logical_date")
# The columns of `retry_queue` that plan a retry.
PLAN = ("attempt_no", "failures", "error_class", "failed_at", "wait_until", "due_at", "why", "planned_at")
STATUS_KEY = ("tenant_id", "workspace_id", "asset_key", "partition_key")
_TYPES: Final[Mapping[str, type[TypeEngine[Any]]]] = {
    "TEXT": sa.Text,
    "INTEGER": sa.Integer,
    "BIGINT": sa.BigInteger,
    "DOUBLE PRECISION": sa.Double,
    "TIMESTAMPTZ": Instant,
    "DATE": Day,
}
_TABLE: Final = re.compile(r"^CREATE TABLE (\w+) \(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
_COLUMN: Final = re.compile(rf"^    ([a-z]\w*) ({'|'.join(_TYPES)})\b(.*)", re.MULTILINE)
_KEY: Final = re.compile(r"^    PRIMARY KEY \((.*)\)", re.MULTILINE)


def _read_tables() -> None:
    """Define the tables of the schema. Postgres's text has the types."""
    for name, text in _TABLE.findall(read_text("postgresql")):
        declared = _KEY.search(text)
        key = set(declared[1].split(", ")) if declared else set[str]()
        columns = (
            sa.Column(column, _TYPES[kind], primary_key=column in key or "PRIMARY KEY" in rest)
            for column, kind, rest in _COLUMN.findall(text)
        )
        sa.Table(name, metadata, *columns)


_read_tables()
runs = metadata.tables["runs"]
partition_state = metadata.tables["partition_state"]
attempts = metadata.tables["attempts"]
warehouse_pointer = metadata.tables["warehouse_pointer"]
load_records = metadata.tables["load_records"]
demotions = metadata.tables["demotions"]
control_actions = metadata.tables["control_actions"]
control_action_partitions = metadata.tables["control_action_partitions"]
leases = metadata.tables["leases"]
claims = metadata.tables["claims"]
retry_queue = metadata.tables["retry_queue"]
parkings = metadata.tables["parkings"]
run_head = metadata.tables["run_head"]
run_events = metadata.tables["run_events"]
partition_status = metadata.tables["partition_status"]
finished_attempts = metadata.tables["finished_attempts"]
code_versions = metadata.tables["code_versions"]
accounts = metadata.tables["accounts"]
api_operations = metadata.tables["api_operations"]
api_holds = metadata.tables["api_holds"]
