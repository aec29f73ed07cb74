"""Reads one table version through Spark, restricted to the runs that readers may see. DuckDB is in `sql_session`.

The ledger is not known here. The caller passes the visible runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ads_pipeline.warehouse.columns import to_spark_schema
from ads_pipeline.warehouse.delta_commits import TableSnapshot, open_table
from ads_pipeline.warehouse.error_translation import translate_errors
from ads_pipeline.warehouse.values import DATE_COLUMN, WarehouseTable

_VISIBLE_RUNS_SCHEMA = pa.schema(
    [("customer_id", pa.string()), (DATE_COLUMN, pa.date32()), ("run_id", pa.string()), ("is_current", pa.bool_())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """A version of a table and its visible runs: customer, day, run and whether the run is current."""

    snapshot: TableSnapshot
    visible_runs: Sequence[tuple[str, date, str, bool]]


def open_newest_version(table: WarehouseTable) -> TableSnapshot | None:
    """The newest version, or None when there is no table."""
    with translate_errors(table):
        return open_table(table)


def read_with_spark(spark: SparkSession, view: TableView) -> DataFrame:
    """The visible rows with the table's columns and `is_current`. Spark reads them when the frame is used."""
    snapshot = view.snapshot
    with translate_errors(snapshot.table):
        schema = to_spark_schema(snapshot.columns)
        files = [snapshot.table.uri_of(file) for file in snapshot.files]
        if not files:
            return spark.createDataFrame([], schema).withColumn("is_current", sf.lit(None).cast("boolean"))
        reader = spark.read.schema(schema).option("basePath", snapshot.table.uri).option("__globPaths__", "false")
        rows = reader.parquet(*files)  # characters of the paths, such as *, have no special meaning
        runs = sf.broadcast(spark.createDataFrame(to_arrow(view)))
        return rows.join(runs, ["customer_id", DATE_COLUMN, "run_id"]).select(*schema.names, "is_current")


def to_arrow(view: TableView) -> pa.Table:
    """The visible runs as an Arrow table."""
    schema = _VISIBLE_RUNS_SCHEMA
    columns: list[Any] = [list(column) for column in zip(*view.visible_runs, strict=True)] or [[]] * len(schema)
    return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)
