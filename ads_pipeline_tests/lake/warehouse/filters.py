"""Filters of one column, and readers that answer them: pandas, pyarrow, DuckDB, datafusion and the product itself."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from ads_pipeline.lake.readers.sql_session import connect_duckdb
from ads_pipeline.lake.readers.visible_rows import TableView, read_with_spark
from ads_pipeline.lake.warehouse.delta_commits import open_table
from ads_pipeline.lake.warehouse.table_values import WarehouseTable
from ads_pipeline_tests.lake.warehouse.builders import connect_with_delta, list_version_files, read_rows, table_uri

ROW_NUMBER = "row_number"
OPERATORS = ("=", ">=", "IS NULL", "IS NOT NULL")


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on one column. `value` is None for IS NULL and IS NOT NULL."""

    column: str
    operator: str
    value: Any = None

    @property
    def sql(self) -> str:
        return f'"{self.column}" {self.operator} {_literal(self.value)}'.strip()

    @property
    def expression(self) -> pads.Expression:
        field = pads.field(self.column)
        match self.operator:
            case "=":
                return field == self.value
            case ">=":
                return field >= self.value
            case "IS NULL":
                return field.is_null()
        return field.is_valid()

    def keeps(self, found: Any) -> bool:
        match self.operator:
            case "=":
                return found is not None and bool(found == self.value)
            case ">=":
                return found is not None and bool(found >= self.value)
            case "IS NULL":
                return found is None
        return found is not None


@dataclass(frozen=True, slots=True)
class Answer:
    """How many rows were found, and the sum of their numbers."""

    rows: int
    numbers: int


Read = Callable[[str, Sequence[Filter]], Iterator[Answer]]


def list_filters(root: str) -> list[Filter]:
    """Each operator on every column of the newest version, with a value that is in the table if it has one."""
    rows = _read_every_row(root)
    filters = []
    for name in rows[0]:
        value = next((row[name] for row in rows if row[name] is not None), _VALUES_OF_EMPTY_COLUMNS.get(name))
        filters += [Filter(name, operator, value) for operator in OPERATORS[:2] if value is not None]
        filters += [Filter(name, operator) for operator in OPERATORS[2:]]
    return filters


def find_right_answers(root: str, filters: Sequence[Filter]) -> list[Answer]:
    """The answers, computed row by row from the files of the newest version."""
    rows = _read_every_row(root)
    kept = [[row for row in rows if each.keeps(row[each.column])] for each in filters]
    return [Answer(len(found), sum(row[ROW_NUMBER] for row in found)) for found in kept]


_VALUES_OF_EMPTY_COLUMNS: Mapping[str, Any] = {"nothing": 1, "added": "x"}


def _read_every_row(root: str) -> list[dict[str, Any]]:
    names = [field.name for field in DeltaTable(table_uri(root)).schema().fields]
    rows = []
    for path in sorted(list_version_files(root)):
        day = date.fromisoformat(path.partition("/")[0].removeprefix("logical_date="))
        for row in read_rows(root, path).to_pylist():
            found = {**row, "logical_date": day}
            rows.append({name: found.get(name) for name in names})
    return rows


def _literal(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return f"'{value}'"
        case datetime():
            return f"TIMESTAMP '{value:%Y-%m-%d %H:%M:%S}+00:00'"
        case date():
            return f"DATE '{value}'"
    return str(value)


def _sum_up(table: pa.Table) -> Answer:
    return Answer(table.num_rows, sum(table[ROW_NUMBER].to_pylist()))


def _read_with_pandas(root: str, filters: Sequence[Filter]) -> Iterator[Answer]:
    table = DeltaTable(table_uri(root))
    for each in filters:
        conjunction = [(each.column, "=" if each.operator == "=" else each.operator, each.value)]
        rows = table.to_pandas(filters=conjunction if each.value is not None else each.expression)
        yield Answer(len(rows), int(rows[ROW_NUMBER].sum()))


def _read_with_pyarrow(root: str, filters: Sequence[Filter]) -> Iterator[Answer]:
    table = DeltaTable(table_uri(root))
    return (_sum_up(table.to_pyarrow_table(filters=each.expression)) for each in filters)


def _read_dataset(root: str, filters: Sequence[Filter]) -> Iterator[Answer]:
    dataset = DeltaTable(table_uri(root)).to_pyarrow_dataset()
    return (_sum_up(dataset.to_table(filter=each.expression)) for each in filters)


def _read_dataset_with_duckdb(root: str, filters: Sequence[Filter]) -> Iterator[Answer]:
    dataset = DeltaTable(table_uri(root)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("t", dataset)
        yield from _ask_duckdb(connection, "t", filters)


def _read_with_delta_scan(root: str, filters: Sequence[Filter]) -> Iterator[Answer]:
    with connect_with_delta(root) as connection:
        yield from _ask_duckdb(connection, f"delta_scan('{table_uri(root)}')", filters)


def _read_with_datafusion(root: str, filters: Sequence[Filter]) -> Iterator[Answer]:
    builder = QueryBuilder().register("t", DeltaTable(table_uri(root)))
    for each in filters:
        yield _sum_up(pa.table(builder.execute(f"SELECT {ROW_NUMBER} FROM t WHERE {each.sql}").read_all()))


def _read_with_product(root: str, filters: Sequence[Filter]) -> Iterator[Answer]:
    with connect_duckdb([_open_view(root)]) as connection:
        yield from _ask_duckdb(connection, "campaign_daily", filters)


def _ask_duckdb(connection: duckdb.DuckDBPyConnection, table: str, filters: Sequence[Filter]) -> Iterator[Answer]:
    for each in filters:
        found = connection.execute(f"SELECT {ROW_NUMBER} FROM {table} WHERE {each.sql}").to_arrow_table()
        yield _sum_up(found)


def _open_view(root: str) -> TableView:
    """A view in which every row is visible."""
    snapshot = open_table(WarehouseTable(location=root, source="google_ads", query_name="campaign_daily"))
    assert snapshot is not None
    rows = {(row["customer_id"], row["logical_date"], row["run_id"], True) for row in _read_every_row(root)}
    return TableView(snapshot=snapshot, visible_runs=sorted(rows))


def read_with_spark_product(spark: SparkSession, root: str, filters: Sequence[Filter]) -> list[Answer]:
    """The product's own reading by Spark, with all filters in one job."""
    read_with_spark(spark, _open_view(root)).createOrReplaceTempView("filtered_rows")
    queries = [
        f"SELECT {number} AS filter, {ROW_NUMBER} FROM filtered_rows WHERE {each.sql.replace(chr(34), '`')}"
        for number, each in enumerate(filters)
    ]
    totals = f"SELECT filter, count(*), sum({ROW_NUMBER}) FROM ({' UNION ALL '.join(queries)}) GROUP BY filter"
    answers = {row[0]: Answer(row[1], row[2]) for row in spark.sql(totals).collect()}
    return [answers.get(number, Answer(0, 0)) for number in range(len(filters))]


def _read_with_polars(root: str, filters: Sequence[Filter], **options: Any) -> Iterator[Answer]:
    for each in filters:
        column = pl.col(each.column)
        match each.operator:
            case "=":
                kept = column == each.value
            case ">=":
                kept = column >= each.value
            case "IS NULL":
                kept = column.is_null()
            case _:
                kept = column.is_not_null()
        rows = pl.scan_delta(table_uri(root), **options).filter(kept).select(ROW_NUMBER).collect()
        yield _sum_up(rows.to_arrow())


READERS: Mapping[str, Read] = {
    "pandas": _read_with_pandas,
    "pyarrow table": _read_with_pyarrow,
    "pyarrow dataset": _read_dataset,
    "DuckDB over a dataset": _read_dataset_with_duckdb,
    "DuckDB delta_scan": _read_with_delta_scan,
    "datafusion": _read_with_datafusion,
    "warehouse query": _read_with_product,
    "polars": _read_with_polars,
    "polars with use_pyarrow": partial(_read_with_polars, use_pyarrow=True),
}
