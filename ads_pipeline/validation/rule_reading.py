"""Reads a pandera model into plain data. As a program, it writes those of the shipped models to `shipped_rules.json`.

Pandera runs one Spark job per check, so a thousand partitions would need tens of thousands of jobs. The validator
evaluates the same declarations itself. `read_rules` refuses a declaration that the validator cannot evaluate.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyspark.sql.types as st

from ads_pipeline.domain.warehouse_names import find_column_problem
from ads_pipeline.validation.contract_models import CONTRACTS, Row
from ads_pipeline.validation.contract_rules import (
    PARTITION_CUSTOMER,
    PARTITION_DAY,
    CheckRule,
    ColumnRule,
    Rules,
    encode_rules,
)

COLUMN_KINDS: Final[Mapping[type[st.DataType], str]] = {
    st.LongType: "long",
    st.DoubleType: "double",
    st.StringType: "string",
    st.DateType: "date",
}
IDENTITY_KINDS: Final = {"date": "date", "customer_id": "string"}  # of the columns that `Row` declares
# pandera's name of a check -> (comparison, the statistic that holds the bound, description)
SUPPORTED_CHECKS: Final[Mapping[str, tuple[str, str, str]]] = {
    "greater_than_or_equal_to": ("ge", "min_value", "must be at least {bound}"),
    "less_than_or_equal_to": ("le", "max_value", "must be at most {bound}"),
    "isin": ("isin", "allowed_values", "must be one of {bound}"),
    "str_matches": ("matches", "pattern", "must match {bound}"),
}
# Frame checks that a model may declare -> (column, the partition's value that the column must equal)
SUPPORTED_FRAME_CHECKS: Final[Mapping[str, tuple[str, str]]] = {
    "date_matches_partition": ("date", PARTITION_DAY),
    "customer_matches_partition": ("customer_id", PARTITION_CUSTOMER),
}


def read_rules(model: type[Row], *, schema_version: str) -> Rules:
    """The model's declarations. Raises TypeError for a check or column that the validator does not support."""
    schema: Any = model.to_schema()
    frame_checks = [check.name for check in schema.checks]
    unsupported = [name for name in frame_checks if name not in SUPPORTED_FRAME_CHECKS]
    if unsupported:
        raise TypeError(f"{model.__name__}: the validator does not support frame check {unsupported[0]!r}")
    return Rules(
        schema_version=schema_version,
        columns=tuple(_column(model, column) for column in schema.columns.values()),
        checks=tuple(
            _check(model, column.name, check) for column in schema.columns.values() for check in column.checks
        ),
        partition_columns=tuple(SUPPORTED_FRAME_CHECKS[name] for name in frame_checks),
        natural_key=tuple(schema.unique or ()),
    )


def read_shipped() -> dict[tuple[str, str], Rules]:
    """The rules of the shipped models."""
    return {key: read_rules(model, schema_version=key[1]) for key, model in CONTRACTS.items()}


def _column(model: type[Row], column: Any) -> ColumnRule:
    kind = COLUMN_KINDS.get(type(column.dtype.type))
    if problem := find_column_problem(column.name) or _find_identity_problem(column.name, kind):
        raise TypeError(f"{model.__name__}.{column.name}: {problem}")
    if kind is None or column.unique or column.regex or not column.required:
        raise TypeError(f"{model.__name__}.{column.name}: the validator does not support this kind of column")
    return ColumnRule(name=column.name, kind=kind, nullable=column.nullable, coerce=column.coerce)


def _find_identity_problem(column: str, kind: str | None) -> str | None:
    """A declaration of the date or the customer that is not the one of `Row`."""
    expected = IDENTITY_KINDS.get(column, kind)
    return None if kind == expected else f"keep its type as Row declares it: {expected}"


def _check(model: type[Row], column: str, check: Any) -> CheckRule:
    if check.name not in SUPPORTED_CHECKS:
        raise TypeError(f"{model.__name__}.{column}: the validator does not support check {check.name!r}")
    comparison, statistic, description = SUPPORTED_CHECKS[check.name]
    bound = check.statistics[statistic]
    bound = getattr(bound, "pattern", bound)
    if comparison == "matches" and not bound.startswith("^"):  # as pandera does
        bound = f"^{bound}"
    return CheckRule(column=column, comparison=comparison, bound=bound, description=description.format(bound=bound))


if __name__ == "__main__":
    (Path(__file__).parent / "shipped_rules.json").write_text(encode_rules(read_shipped()), encoding="utf-8")
