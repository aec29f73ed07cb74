"""A contract as plain data: columns, checks and natural key. Spark sends it to its workers.

`rule_reading` makes it from a pandera model. Nothing here imports a library, so that a worker starts quickly.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

ENUM = r"^[A-Z][A-Z0-9_]*(?![\s\S])"  # $ would allow a trailing line break

# The largest value of a row. Sums of rows stay below 2^63, beyond which Spark and pandas add without an error.
MAX_COUNT = 10**12  # impressions, clicks, conversions
MAX_MICROS = 10**18  # a cost: 10^12 units of the currency. In Vietnamese dong, that is about 40 million US dollars.
MAX_VALUE = 10.0**18  # of conversions, in units of the currency; advertisers set it themselves

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


def encode_rules(contracts: Mapping[tuple[str, str], Rules]) -> str:
    """Contracts by query name and schema version, as JSON."""
    documents = [{"query_name": name, **asdict(rules)} for (name, _version), rules in contracts.items()]
    return json.dumps(documents, indent=1) + "\n"


def decode_rules(text: str) -> dict[tuple[str, str], Rules]:
    """Read the rules that `encode_rules` wrote. A bound that is a list is one of allowed values."""
    return {(each.pop("query_name"), each["schema_version"]): _decode(each) for each in json.loads(text)}


def _decode(document: dict[str, Any]) -> Rules:
    return Rules(
        schema_version=document["schema_version"],
        columns=tuple(ColumnRule(**column) for column in document["columns"]),
        checks=tuple(CheckRule(**check) for check in document["checks"]),
        partition_columns=tuple((column, value) for column, value in document["partition_columns"]),
        natural_key=tuple(document["natural_key"]),
    )
