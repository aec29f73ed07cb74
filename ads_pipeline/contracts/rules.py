"""A contract as plain data: columns, checks and natural key. Spark sends it to its workers.

`rule_reading` makes it from a pandera model. Nothing here imports a library, so that a worker starts quickly.
"""

from dataclasses import dataclass, replace
from typing import Any

ENUM = r"^[A-Z][A-Z0-9_]*(?![\s\S])"  # $ would allow a trailing line break

# Pandera sees the partition's date and customer as these extra columns of each row.
PARTITION_DAY = "partition_logical_date"
PARTITION_CUSTOMER = "partition_customer_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule:
    """A required column. With `coerce`, an integer may arrive as text."""

    name: str
    kind: str
    nullable: bool
    coerce: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRule:
    """A comparison that every value of a column must pass. Nulls pass; `ColumnRule.nullable` covers them."""

    column: str
    comparison: str
    bound: Any
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A contract as plain data. `partition_columns` pairs a column with the partition value that it must equal."""

    schema_version: str
    columns: tuple[ColumnRule, ...]
    checks: tuple[CheckRule, ...]
    partition_columns: tuple[tuple[str, str], ...]
    natural_key: tuple[str, ...]

    @property
    def column_types(self) -> dict[str, str]:
        """The type of each column, in the words of Delta and Spark."""
        return {column.name: column.kind for column in self.columns}

    def without_checks(self) -> "Rules":
        """The same columns, for rows that were accepted before."""
        columns = tuple(replace(column, nullable=True) for column in self.columns)
        return replace(self, columns=columns, checks=(), partition_columns=(), natural_key=())
