"""Checks rows against their contract: of one run, with the failing rows of each check, or of many runs at once.

The result is the one pandera gives: a null fails `nullable` and passes every comparison, and all rows that share a
natural key fail it. Arrow evaluates the checks inside the Spark task that read the rows.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ads_pipeline.domain.quoting import quoted
from ads_pipeline.domain.reason import MAX_SAMPLES, Problem, Sample
from ads_pipeline.validation.contract_rules import ENUM, PARTITION_CUSTOMER, PARTITION_DAY, CheckRule, Rules

_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*|[0-9]{1,20}", re.ASCII)
_RUN: Final = "ads_pipeline_run"  # beside the columns of a contract: the position of the row's run
Mask = Any  # a boolean column; pyarrow has no type annotations

_COMPARISONS: Final[Mapping[str, Callable[[Mask, Any], Mask]]] = {
    "ge": pc.greater_equal,
    "le": pc.less_equal,
    "isin": lambda values, bound: pc.is_in(values, value_set=pa.array(bound)),
    "matches": lambda values, pattern: pc.is_in(values, value_set=_select_matching(pc.unique(values), pattern)),
}


def _select_matching(values: Any, pattern: str) -> Any:
    """The values that match. Python's `re` supports lookahead, as Spark does; Arrow's engine does not."""
    matches = re.compile(pattern).search
    return pa.array([value for value in values.to_pylist() if value is not None and matches(value)], pa.string())


def check_rows(
    table: pa.Table, rules: Rules, *, customer_id: str, logical_date: date, show_text: bool = False
) -> tuple[Problem, ...]:
    """One problem for every check that a row of the run fails. `show_text` shows free text in its samples."""
    partition = {PARTITION_DAY: logical_date, PARTITION_CUSTOMER: customer_id}
    named = None if show_text else _columns_of_names(rules)
    failures = _find_failures(table, rules, partition, rules.natural_key)
    return tuple(_problem(table, failing, rule, fields, named) for rule, fields, failing in failures)


def find_failing_runs(
    table: pa.Table, rules: Rules, *, row_counts: Sequence[int], customer_ids: Sequence[str], days: Sequence[date]
) -> set[int]:
    """The positions of the runs that fail a check. The table holds the rows of several runs, one after the other.

    The result is the one that `check_rows` gives for each run alone, in a fraction of the time.
    """
    runs = pa.array(np.repeat(np.arange(len(row_counts), dtype=np.int32), row_counts))
    partition = {
        PARTITION_DAY: pa.array(days, pa.date32()).take(runs),
        PARTITION_CUSTOMER: pa.array(customer_ids, pa.string()).take(runs),
    }
    table = table.append_column(_RUN, runs)
    key = (_RUN, *rules.natural_key) if rules.natural_key else ()
    failing = [runs.filter(mask) for _rule, _fields, mask in _find_failures(table, rules, partition, key)]
    return {position for positions in failing for position in pc.unique(positions).to_pylist()}


def _find_failures(
    table: pa.Table, rules: Rules, partition: Mapping[str, Any], natural_key: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...], Mask]]:
    """Every check that some rows fail: the rule, its fields and which rows."""
    checks: list[tuple[str, tuple[str, ...], Mask | None]] = [
        *(("is missing", (each.name,), _find_nulls(table, each.name)) for each in rules.columns if not each.nullable),
        *((check.description, (check.column,), _find_failing(table, check)) for check in rules.checks),
        *(
            ("does not match the partition", (column,), _find_unequal(table[column], partition[value]))
            for column, value in rules.partition_columns
        ),
    ]
    if natural_key:
        checks.append(("not unique", rules.natural_key, _find_duplicates(table, natural_key)))
    for rule, fields, failing in checks:
        if failing is not None and pc.any(failing).as_py():
            yield rule, fields, failing.combine_chunks()


def _find_nulls(table: pa.Table, column: str) -> Mask | None:
    values = table[column]
    return pc.is_null(values) if values.null_count else None


def _find_failing(table: pa.Table, check: CheckRule) -> Mask | None:
    values = table[check.column]
    passing = _COMPARISONS[check.comparison](values, check.bound)
    if pc.all(passing, skip_nulls=False).as_py() is True:  # the usual case; the next line doubles the cost
        return None
    return pc.and_(pc.is_valid(values), pc.invert(pc.fill_null(passing, False)))


def _find_unequal(values: Mask, expected: Any) -> Mask | None:
    unequal = pc.not_equal(values, expected)
    return pc.fill_null(unequal, False) if pc.any(unequal).as_py() else None


def _find_duplicates(table: pa.Table, natural_key: tuple[str, ...]) -> Mask | None:
    """Rows whose key another row has too. Nulls in a key count as equal."""
    if table.group_by(list(natural_key), use_threads=False).aggregate([]).num_rows == table.num_rows:
        return None
    keys = table.select(natural_key).append_column("row", pa.array(range(table.num_rows), pa.int64()))
    groups = keys.group_by(list(natural_key)).aggregate([("row", "count"), ("row", "list")])
    duplicates = groups.filter(pc.greater(groups["row_count"], 1))
    if not duplicates.num_rows:
        return None
    rows = pc.list_flatten(duplicates["row_list"])
    return pc.is_in(keys["row"], value_set=rows.combine_chunks())


def _problem(
    table: pa.Table, failing: Mask, rule: str, fields: tuple[str, ...], named: frozenset[str] | None
) -> Problem:
    samples = tuple(
        Sample(line=row + 1, values=tuple(_show(table[field][row].as_py(), field, named) for field in fields))
        for row in pc.indices_nonzero(failing)[:MAX_SAMPLES].to_pylist()
    )
    return Problem(error_class="contract", rule=rule, fields=fields, rows=pc.sum(failing).as_py(), samples=samples)


def _columns_of_names(rules: Rules) -> frozenset[str]:
    """The columns whose text is a customer or a name from one of Google's lists. Any other text may be personal."""
    lists = {check.column for check in rules.checks if check.comparison == "isin" or check.bound == ENUM}
    return frozenset(lists | {column for column, _value in rules.partition_columns})


def _show(value: Any, column: str, named: frozenset[str] | None) -> str:
    """A value as a reason shows it. A text becomes its length, unless it is a name in a column of names.

    `named` is None when every text may be shown.
    """
    if value is None:
        return "absent"
    if isinstance(value, str) and named is not None and not (column in named and _NAME.fullmatch(value)):
        return f"text of {len(value)} characters"
    return quoted(value.isoformat() if isinstance(value, date) else value)
