"""Holds the rows of one partition against its contract, and says which checks how many rows fail.

The answer is pandera's: an absent value fails `nullable` and passes every comparison, and all rows that share a
natural key fail it. The checks are evaluated by Arrow where the rows already are.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ads_pipeline.contracts.models import PARTITION_CUSTOMER, PARTITION_DAY
from ads_pipeline.contracts.rules import CheckRule, Rules
from ads_pipeline.errors import quoted
from ads_pipeline.validator.payload import SHOWN, Violation

Mask = Any  # a column of true and false; Arrow ships no types

_PASSES: Final[Mapping[str, Callable[[Mask, Any], Mask]]] = {
    "ge": pc.greater_equal,
    "le": pc.less_equal,
    "isin": lambda values, bound: pc.is_in(values, value_set=pa.array(bound)),
    "matches": lambda values, pattern: pc.is_in(values, value_set=_matching(pc.unique(values), pattern)),
}


def _matching(values: Any, pattern: str) -> Any:
    """The values that match. Python's expressions read a pattern as Spark's do; Arrow's know no lookahead."""
    matches = re.compile(pattern).search
    return pa.array([value for value in values.to_pylist() if value is not None and matches(value)], pa.string())


def check_rows(table: pa.Table, rules: Rules, *, customer_id: str, logical_date: date) -> tuple[Violation, ...]:
    """Every check that some row of the partition fails."""
    partition = {PARTITION_DAY: logical_date, PARTITION_CUSTOMER: customer_id}
    findings = [
        _finding(table, _absent(table, column.name), f"{column.name} is missing", column.name)
        for column in rules.columns
        if not column.nullable
    ]
    findings += [_finding(table, _failing(table, check), check.words, check.column) for check in rules.checks]
    findings += [
        _finding(table, _not_equal(table[column], partition[own]), f"{column} is not the partition's", column)
        for column, own in rules.of_partition
    ]
    if rules.natural_key:
        words = f"{' and '.join(rules.natural_key)} not unique"
        findings.append(_finding(table, _repeated(table, rules.natural_key), words, *rules.natural_key))
    return tuple(finding for finding in findings if finding is not None)


def _absent(table: pa.Table, column: str) -> Mask | None:
    values = table[column]
    return pc.is_null(values) if values.null_count else None


def _failing(table: pa.Table, check: CheckRule) -> Mask | None:
    values = table[check.column]
    passes = _PASSES[check.by](values, check.bound)
    if _is_all_true(passes):  # the usual case; what follows costs as much again
        return None
    return pc.and_(pc.is_valid(values), pc.invert(pc.fill_null(passes, False)))


def _is_all_true(passes: Mask) -> bool:
    """Whether every row passes for certain; an absent value does not say so."""
    return pc.all(passes, skip_nulls=False).as_py() is True


def _not_equal(values: Mask, own: Any) -> Mask:
    return pc.fill_null(pc.not_equal(values, own), False)


def _repeated(table: pa.Table, natural_key: tuple[str, ...]) -> Mask | None:
    """Rows whose key another row has too; absent parts of a key count as equal."""
    if table.group_by(list(natural_key), use_threads=False).aggregate([]).num_rows == table.num_rows:
        return None
    keys = table.select(natural_key).append_column("place", pa.array(range(table.num_rows), pa.int64()))
    groups = keys.group_by(list(natural_key)).aggregate([("place", "count"), ("place", "list")])
    repeated = groups.filter(pc.greater(groups["place_count"], 1))
    if not repeated.num_rows:
        return None
    places = pc.list_flatten(repeated["place_list"])
    return pc.is_in(keys["place"], value_set=places.combine_chunks())


def _finding(table: pa.Table, failing: Mask | None, words: str, *columns: str) -> Violation | None:
    rows = 0 if failing is None else pc.sum(failing).as_py() or 0
    if failing is None or not rows:
        return None
    first = pc.indices_nonzero(failing)[:SHOWN].to_pylist()
    samples = tuple(f"line {place + 1}: {_shown(table, place, columns)}" for place in first)
    return Violation(error_class="contract", problem=words, rows=rows, samples=samples)


def _shown(table: pa.Table, place: int, columns: tuple[str, ...]) -> str:
    values = (table[column][place].as_py() for column in columns)
    return ", ".join("absent" if value is None else quoted(_plain(value), limit=40) for value in values)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value
