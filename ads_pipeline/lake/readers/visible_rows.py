"""Reads one table version through Spark, restricted to the runs that readers may see. DuckDB is in `sql_session`.

The ledger is not known here. The caller passes the visible runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ads_pipeline.lake.storage.open_store import is_bucket
from ads_pipeline.lake.warehouse.columns import to_arrow_schema, to_spark_schema
from ads_pipeline.lake.warehouse.delta_commits import TableSnapshot, open_table
from ads_pipeline.lake.warehouse.error_translation import translate_errors
from ads_pipeline.lake.warehouse.file_damage import find_damage
from ads_pipeline.lake.warehouse.merging import read_files_in_task
from ads_pipeline.lake.warehouse.table_values import DATE_COLUMN, WarehouseTable

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


def leave_out_damaged(view: TableView) -> TableView:
    """The view without its damaged files, or the same view when there are none."""
    snapshot = view.snapshot
    with translate_errors(snapshot.table):
        damaged = {each.file.path for each in find_damage(snapshot.table, snapshot.files)}
    if not damaged:
        return view
    kept = tuple(file for file in snapshot.files if file.path not in damaged)
    return replace(view, snapshot=replace(snapshot, files=kept))


def read_with_spark(spark: SparkSession, view: TableView) -> DataFrame:
    """The visible rows with the table's columns and `is_current`. Spark reads them when the frame is used."""
    snapshot = view.snapshot
    with translate_errors(snapshot.table):
        schema = to_spark_schema(snapshot.columns)
        if not snapshot.files:
            return spark.createDataFrame([], schema).withColumn("is_current", sf.lit(None).cast("boolean"))
        rows = _read_in_tasks(spark, snapshot) if is_bucket(snapshot.table.location) else _read_disk(spark, snapshot)
        runs = sf.broadcast(spark.createDataFrame(to_arrow(view)))
        return rows.join(runs, ["customer_id", DATE_COLUMN, "run_id"]).select(*schema.names, "is_current")


def _read_disk(spark: SparkSession, snapshot: TableSnapshot) -> DataFrame:
    table = snapshot.table
    reader = spark.read.schema(to_spark_schema(snapshot.columns))
    reader = reader.option("basePath", table.uri).option(
        "__globPaths__", "false"
    )  # * has no special meaning in paths
    return reader.parquet(*(table.uri_of(file) for file in snapshot.files))


def _read_in_tasks(spark: SparkSession, snapshot: TableSnapshot) -> DataFrame:
    """The rows of a table in a bucket, which Spark alone could open only with Hadoop's libraries."""
    read = partial(
        read_files_in_task, snapshot.table.location, snapshot.table.folder, to_arrow_schema(snapshot.columns)
    )
    files = spark.createDataFrame([(file.path, file.day) for file in snapshot.files], "path string, day date")
    return files.mapInArrow(read, to_spark_schema(snapshot.columns))


def to_arrow(view: TableView) -> pa.Table:
    """The visible runs as an Arrow table."""
    schema = _VISIBLE_RUNS_SCHEMA
    columns: list[Any] = [list(column) for column in zip(*view.visible_runs, strict=True)] or [[]] * len(schema)
    return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)
