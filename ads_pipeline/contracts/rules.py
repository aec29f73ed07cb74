"""Reads a pandera model as plain data: columns, checks and natural key, to be judged without pandera's own passes.

Pandera judges a frame with one Spark job for each check: a thousand partitions would take tens of thousands of jobs.
The validator evaluates the same declarations itself. What it cannot evaluate is refused here, when the contract is
read, and never silently left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyspark.sql.types as st

from ads_pipeline.contracts.models import PARTITION_CUSTOMER, PARTITION_DAY, Row

KINDS: Final[Mapping[type[st.DataType], str]] = {
    st.LongType: "long",
    st.DoubleType: "double",
    st.StringType: "string",
    st.DateType: "date",
}
# pandera's name of a check -> (what it compares by, the statistic that holds the bound, in words)
CHECKS: Final[Mapping[str, tuple[str, str, str]]] = {
    "greater_than_or_equal_to": ("ge", "min_value", "{column} must be at least {bound}"),
    "less_than_or_equal_to": ("le", "max_value", "{column} must be at most {bound}"),
    "isin": ("isin", "allowed_values", "{column} must be one of {bound}"),
    "str_matches": ("matches", "pattern", "{column} must match {bound}"),
}
# The checks of whole frames that a model may carry: each compares a column with the partition's own value.
FRAME_CHECKS: Final[Mapping[str, tuple[str, str]]] = {
    "date_is_the_partitions": ("date", PARTITION_DAY),
    "customer_is_the_partitions": ("customer_id", PARTITION_CUSTOMER),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule:
    """A column the rows must have. `coerce` lets a whole number arrive as text."""

    name: str
    kind: str
    nullable: bool
    coerce: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRule:
    """A comparison every value of a column must pass; absent values pass, `nullable` is for them."""

    column: str
    by: str
    bound: Any
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A contract as plain data. `of_partition` pairs a column with the partition's value that it must equal."""

    schema_version: str
    columns: tuple[ColumnRule, ...]
    checks: tuple[CheckRule, ...]
    of_partition: tuple[tuple[str, str], ...]
    natural_key: tuple[str, ...]


def read_rules(model: type[Row], *, schema_version: str) -> Rules:
    """The model's declarations; TypeError names what the validator cannot evaluate."""
    schema: Any = model.to_schema()
    frame_checks = [check.name for check in schema.checks]
    unknown = [name for name in frame_checks if name not in FRAME_CHECKS]
    if unknown:
        raise TypeError(f"{model.__name__}: the validator knows no frame check {unknown[0]!r}")
    return Rules(
        schema_version=schema_version,
        columns=tuple(_column(model, column) for column in schema.columns.values()),
        checks=tuple(
            _check(model, column.name, each) for column in schema.columns.values() for each in column.checks
        ),
        of_partition=tuple(FRAME_CHECKS[name] for name in frame_checks),
        natural_key=tuple(schema.unique or ()),
    )


def _column(model: type[Row], column: Any) -> ColumnRule:
    kind = KINDS.get(type(column.dtype.type))
    if kind is None or column.unique or column.regex or not column.required:
        raise TypeError(f"{model.__name__}.{column.name}: the validator cannot evaluate this kind of column")
    return ColumnRule(name=column.name, kind=kind, nullable=column.nullable, coerce=column.coerce)


def _check(model: type[Row], column: str, check: Any) -> CheckRule:
    if check.name not in CHECKS:
        raise TypeError(f"{model.__name__}.{column}: the validator knows no check {check.name!r}")
    by, statistic, words = CHECKS[check.name]
    bound = check.statistics[statistic]
    bound = getattr(bound, "pattern", bound)
    if by == "matches" and not bound.startswith("^"):  # as pandera does
        bound = f"^{bound}"
    return CheckRule(column=column, by=by, bound=bound, words=words.format(column=column, bound=bound))
