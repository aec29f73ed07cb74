"""The values that the warehouse modules exchange: partition contents, data files and tables."""

import re
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple

from ads_pipeline.domain.partition import PartitionKey, Run, validate_name
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.domain.warehouse_names import DATE_COLUMN, KEY_COLUMNS, PARTITION_COLUMNS, SEAL_COLUMNS
from ads_pipeline.lake.storage.open_store import open_store
from ads_pipeline.lake.storage.store import Store

__all__ = ["DATE_COLUMN", "KEY_COLUMNS", "SEAL_COLUMNS"]
REMOVAL_PREFIX = "removal-"  # of the token of a commit that removes partitions without replacing them
_FILE_NAME = re.compile(r"([0-9]{1,20})-([0-9]{1,20})-[0-9a-f]{32}\.parquet", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLoadResult:
    """The runs that the table holds at this version, and those that lost their authority before the commit."""

    table_version: int
    runs: tuple[SealedRun, ...]
    superseded: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPartition:
    """The content of one partition of a table. `run_id` is None if another application mixed rows of several runs."""

    run_id: str | None
    schema_version: str | None
    rows: int


class Slice(NamedTuple):
    """The rows of one run in one partition: their number, and a digest that does not depend on their order.

    A tuple, because there are very many.
    """

    customer_id: str
    day: date
    run_id: str
    schema_version: str
    rows: int
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of one table version; `path` is relative to the table. A bound is None if its name does not say it.

    `partition` has the values of the table's partition columns. `row_count` is None if the log does not record it.
    """

    path: str
    size: int
    partition: tuple[str, ...]
    written_at: int  # milliseconds since 1970, as the log has it
    row_count: int | None
    has_column_statistics: bool  # in the log: `log_statistics` removes them
    min_customer_id: str | None
    max_customer_id: str | None

    @property
    def day(self) -> date:
        """The day of a file of a query's table."""
        return date.fromisoformat(self.partition[0])

    def may_hold(self, customer_id: str) -> bool:
        """True if rows of the customer may be in the file."""
        if self.min_customer_id is None or self.max_customer_id is None:
            return True
        return self.min_customer_id <= customer_id <= self.max_customer_id


class HeldRun(NamedTuple):
    """The number of rows of a run in a file. A tuple, because JSON carries it from the task that wrote the file."""

    customer_id: str
    run_id: str
    rows: int


class StagedRun(NamedTuple):
    """The number of rows of a run that is to be stored, and the facts of its seal that each row gets."""

    customer_id: str
    run_id: str
    rows: int
    currency_code: str | None = None
    extracted_at: datetime | None = None

    @property
    def held(self) -> HeldRun:
        return HeldRun(self.customer_id, self.run_id, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A new file under its final name that no version refers to yet; `path` is relative to the table."""

    path: str
    size: int
    written_at: int  # milliseconds since 1970 by the store's clock
    runs: tuple[HeldRun, ...]

    @property
    def day(self) -> date:
        return date.fromisoformat(self.path.partition("/")[0].removeprefix(f"{DATE_COLUMN}="))

    @property
    def row_count(self) -> int:
        return sum(run.rows for run in self.runs)


def name_data_file(day: date, customer_ids: Collection[str]) -> str:
    """A new path in a table. The name says the first and the last customer, in the order of the texts.

    Statistics in the log would say it too, but readers misread statistics of some columns only.
    """
    return f"{DATE_COLUMN}={day.isoformat()}/{min(customer_ids)}-{max(customer_ids)}-{uuid.uuid4().hex}.parquet"


def read_bounds(path: str) -> tuple[str, str] | tuple[None, None]:
    """The first and the last customer of a data file. None for the files of other writers and earlier releases."""
    name = _FILE_NAME.fullmatch(path.rpartition("/")[2])
    return (name[1], name[2]) if name else (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseTable:
    """One query's table in the warehouse at a location, or one of the tables that `PARTITION_COLUMNS` names.

    Raises BadName if a name is not safe in a path.
    """

    location: str
    source: str
    query_name: str

    def __post_init__(self) -> None:
        validate_name("source", self.source)
        validate_name("query_name", self.query_name)

    def __str__(self) -> str:
        return self.folder

    @property
    def folder(self) -> str:
        """The table's folder in the warehouse."""
        return f"{self.source}/{self.query_name}"

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return PARTITION_COLUMNS.get(self.query_name, (DATE_COLUMN,))

    def name_values(self, partition: Sequence[str]) -> dict[str, str | None]:
        """The value of each partition column."""
        return dict(zip(self.partition_columns, partition, strict=True))

    @property
    def required_columns(self) -> tuple[str, ...]:
        """The columns without which the table is none of this product."""
        own = () if self.query_name in PARTITION_COLUMNS else KEY_COLUMNS
        return *own, *self.partition_columns

    @property
    def uri(self) -> str:
        return f"{self.location}/{self.folder}"

    @property
    def store(self) -> Store:
        return open_store(self.location)

    def partition_key(self, customer_id: str, day: date) -> PartitionKey:
        return PartitionKey(source=self.source, customer_id=customer_id, query_name=self.query_name, logical_date=day)

    def name_of(self, path: str) -> str:
        """The name in the warehouse's store of a path that is relative to the table."""
        return f"{self.folder}/{path}"

    def uri_of(self, file: DataFile | StagedFile) -> str:
        return f"{self.uri}/{file.path}"
