"""Says what is loaded, what a table holds and which table that is: the words the rest of the room is written in.

Plain frozen values. How a table's log is read and written is for `commits`.
"""

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

from ads_pipeline.domain.partition import PartitionKey, Run, checked_name

DATE = "logical_date"
KEYS = ("customer_id", "run_id", "schema_version")
STAGING = "_staging"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One run to publish, with what its seal says of it."""

    run: Run
    schema_version: str
    record_count: int

    def __post_init__(self) -> None:
        checked_name("schema_version", self.schema_version)
        if self.record_count < 0:
            raise ValueError(f"{self.run}: a load has no fewer than 0 rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLoadResult:
    """What became of the loads: those the table holds at this version, and the runs that lost their authority."""

    table_version: int
    loads: tuple[Load, ...]
    outdated: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPartition:
    """What a table holds of one partition. No run is named where a foreign writer has mixed rows of several."""

    run_id: str | None
    schema_version: str | None
    rows: int


class Slice(NamedTuple):
    """The rows of one run in one partition of a known table; a tuple because there are very many."""

    customer_id: str
    day: date
    run_id: str
    schema_version: str


class Content(NamedTuple):
    """How many rows a slice has, and a digest of them that does not depend on their order."""

    rows: int
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file the log names, by its path below the table. A bound is None where the log does not tell it."""

    path: str
    size: int
    rows: int | None
    day: date
    lowest: str | None
    highest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The place of one query's table. BadName when its name would not be safe in a path."""

    root: Path
    source: str
    query_name: str

    def __post_init__(self) -> None:
        checked_name("source", self.source)
        checked_name("query_name", self.query_name)

    def __str__(self) -> str:
        return f"{self.source}/{self.query_name}"

    @property
    def path(self) -> Path:
        return self.root / self.source / self.query_name

    @property
    def log(self) -> Path:
        return self.path / "_delta_log"

    def key(self, customer_id: str, day: date) -> PartitionKey:
        """The partition of this table that these two name."""
        return PartitionKey(source=self.source, customer_id=customer_id, query_name=self.query_name, logical_date=day)

    def absolute(self, file: DataFile) -> str:
        return str(self.path / file.path)
