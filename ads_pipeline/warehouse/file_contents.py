"""Reads Parquet files of a table with Spark, and counts and digests their rows with DuckDB.

The digest depends neither on the order of the rows nor on how they are spread over files. Staging compares the rows
of replaced files with the rows of the new files in this way.
"""

from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ads_pipeline.warehouse.columns import TableColumn
from ads_pipeline.warehouse.values import DATE_COLUMN, KEY_COLUMNS, Slice


def read_slices(
    paths: Sequence[str], columns: Iterable[TableColumn], *, days: tuple[date, date] | None = None
) -> list[Slice]:
    """The slices that these files hold. The digest covers the given columns; without columns it is 0."""
    if not paths:
        return []
    present = {name for path in paths for name in pq.read_schema(path).names} | {DATE_COLUMN}
    digested = ", ".join(
        _quote(column.name) if column.name in present else "NULL" for column in columns if column.name != DATE_COLUMN
    )
    digest = f"sum(hash({digested})::HUGEINT)" if digested else "0"
    keys = ", ".join((KEY_COLUMNS[0], f"{DATE_COLUMN}::DATE AS {DATE_COLUMN}", *KEY_COLUMNS[1:]))
    query = (
        f"SELECT {keys}, count(*), {digest} "  # noqa: S608 - names of our own table, quoted
        "FROM read_parquet($paths, hive_partitioning = true, hive_types_autocast = false, union_by_name = true) "
        f"WHERE {DATE_COLUMN}::DATE BETWEEN $since AND $until GROUP BY ALL"
    )
    since, until = days or (date.min, date.max)
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        rows = connection.execute(query, {"paths": list(paths), "since": since, "until": until}).fetchall()
    return [Slice(*row) for row in rows]


def read_parquet(spark: SparkSession, table: Path, paths: Sequence[str], schema: StructType) -> DataFrame:
    """The rows of these files of a table. Characters of the paths, such as *, have no special meaning."""
    reader = spark.read.schema(schema).option("basePath", str(table)).option("__globPaths__", "false")
    return reader.parquet(*paths)


def group_by_partition(slices: Iterable[Slice]) -> dict[tuple[str, date], list[Slice]]:
    """The slices of each partition. There is more than one only if another application mixed runs."""
    grouped: dict[tuple[str, date], list[Slice]] = {}
    for part in slices:
        grouped.setdefault((part.customer_id, part.day), []).append(part)
    return grouped


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
