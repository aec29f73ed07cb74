"""Every reader finds the same rows with a filter on any column, whatever was done to the table before."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ads_pipeline.lake.warehouse.file_writer import StagedRows
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.lake.warehouse.table_values import StagedRun
from ads_pipeline_tests.lake.warehouse.builders import (
    give_customer_bounds,
    keep_all_runs,
    key,
    make_load,
    make_older,
    optimize,
    publish_loads,
    table_uri,
    vacuum,
)
from ads_pipeline_tests.lake.warehouse.filters import (
    READERS,
    ROW_NUMBER,
    find_right_answers,
    list_filters,
    read_with_spark_product,
)

KINDS = {
    "clicks": "long",
    "cost": "double",
    "name": "string",
    "started": "date",
    "nothing": "long",
    ROW_NUMBER: "long",
}
ADDED = {"added": "string"}
FIRST: dict[str, list[Any]] = {
    "clicks": [4, None, 0, -5],
    "cost": [0.0, None, 1.5, 2.5],
    "name": ["", None, "Zürich", "a"],
    "started": [date(2026, 1, 2), None, date(2020, 1, 1), date(2026, 1, 2)],
}
WITHOUT_NULLS = {name: [value for value in values if value is not None] for name, values in FIRST.items()}
ALL_NULL: dict[str, list[Any]] = {name: [None, None] for name in FIRST}
WITHOUT_ROWS: dict[str, list[Any]] = {name: [] for name in FIRST}
checked: Counter[str] = Counter()
wrong: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def print_counts() -> Iterator[None]:
    yield
    print(f"\nfilters checked: {checked.total():,}, wrong: {len(wrong):,}; by reader: {dict(checked)}")


def load(
    spark: SparkSession,
    root: str,
    customer: int,
    values: Mapping[str, Sequence[Any]],
    *,
    run_id: str = "r1",
    day: int = 1,
) -> None:
    """Publish a run of one partition with these columns. Its rows have numbers that no other row has."""
    columns = KINDS | {name: kind for name, kind in ADDED.items() if name in values}
    count = len(values["clicks"])
    load = make_load(run_id, key(customer, day), count)
    table = Warehouse(root).table("google_ads", "campaign_daily")
    numbers.append(numbers[-1] + count)
    rows = {**values, "nothing": [None] * count, ROW_NUMBER: list(range(numbers[-2], numbers[-1]))}
    staged = StagedRows(table.location, table.folder, "1")
    schema = pa.schema([(name, _ARROW[columns[name]]) for name in rows])
    currency, extracted_at = (
        (None, None) if customer == 2 else ("EUR", datetime(2026, 1, customer, 4, 30, tzinfo=UTC))
    )
    runs = [StagedRun(str(customer), run_id, count, currency, extracted_at)]
    staged.add(key(1, day).logical_date, runs, pa.table(rows, schema=schema))
    publish_loads(spark, root, [load], staged=staged.finish(), columns=columns)


_ARROW = {"long": pa.int64(), "double": pa.float64(), "string": pa.string(), "date": pa.date32()}
numbers = [1]


def find_wrong_answers(spark: SparkSession | None, root: str, moment: str) -> list[str]:
    """Ask every reader every filter, Spark only if it is given: it takes seconds."""
    filters = list_filters(root)
    right = find_right_answers(root, filters)
    answers = {name: list(read(root, filters)) for name, read in READERS.items()}
    if spark is not None:
        answers["Spark"] = read_with_spark_product(spark, root, filters)
    found = []
    for reader, given in answers.items():
        checked[reader] += len(filters)
        found += [
            f"{moment}: {reader} WHERE {each.sql}: {answer} instead of {expected}"
            for each, answer, expected in zip(filters, given, right, strict=True)
            if answer != expected
        ]
    wrong.extend(found)
    return found


def load_first_versions(spark: SparkSession, root: str) -> None:
    for customer, values in (1, FIRST), (2, WITHOUT_NULLS), (3, ALL_NULL), (4, WITHOUT_ROWS):
        load(spark, root, customer, values)
    load(spark, root, 1, FIRST, day=2)


def keep_entries(_root: str) -> None:
    """The entries as this release writes them."""


def compact_elsewhere(root: str) -> None:
    """Another program compacts the table, which writes statistics of all columns."""
    DeltaTable(table_uri(root)).optimize.compact()


@pytest.mark.invariant("W16")
@pytest.mark.parametrize("earlier", [keep_entries, give_customer_bounds, compact_elsewhere])
def test_every_reader_answers_every_filter(
    spark: SparkSession, disk_root: str, earlier: Callable[[str], None]
) -> None:
    """Every filter on every column gives the same rows in every reader, before and after each change of the table."""
    load_first_versions(spark, disk_root)
    earlier(disk_root)
    Warehouse(disk_root).remove_column_statistics(source="google_ads", query_name="campaign_daily")
    assert find_wrong_answers(None, disk_root, "loaded") == []
    load(spark, disk_root, 2, FIRST, run_id="r2")
    assert find_wrong_answers(None, disk_root, "replaced") == []
    load(spark, disk_root, 3, WITHOUT_NULLS | {"added": ["", None, "x"][: len(WITHOUT_NULLS["clicks"])]}, run_id="r2")
    load(spark, disk_root, 5, WITHOUT_NULLS | {"added": [None] * 3})
    assert find_wrong_answers(None, disk_root, "column added") == []
    DeltaTable(table_uri(disk_root)).create_checkpoint()
    assert find_wrong_answers(None, disk_root, "checkpoint") == []
    load(spark, disk_root, 6, FIRST, day=2)
    assert optimize(spark, disk_root) is not None
    assert find_wrong_answers(spark, disk_root, "optimized") == []
    Warehouse(disk_root).remove(lambda: spark, [key(1), key(2)], is_removable=keep_all_runs)
    assert find_wrong_answers(None, disk_root, "demoted") == []
    make_older(disk_root, 40)
    load(spark, disk_root, 7, ALL_NULL)
    vacuum(disk_root)
    assert find_wrong_answers(spark, disk_root, "log shortened") == []
