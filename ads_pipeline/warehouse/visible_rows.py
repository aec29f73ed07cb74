"""Reads one table version through Spark or DuckDB, restricted to the runs that readers may see.

The ledger is not known here. The caller passes the visible runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ads_pipeline.warehouse.columns import read_delta_columns, to_spark_schema
from ads_pipeline.warehouse.delta_commits import open_table
from ads_pipeline.warehouse.error_translation import translate_errors
from ads_pipeline.warehouse.values import DATE_COLUMN, WarehouseTable

_VISIBLE_RUNS_SCHEMA = pa.schema(
    [("customer_id", pa.string()), (DATE_COLUMN, pa.date32()), ("run_id", pa.string()), ("is_current", pa.bool_())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """A version of a table and its visible runs: customer, day, run and whether the run is current."""

    table: WarehouseTable
    version: int
    visible_runs: Sequence[tuple[str, date, str, bool]]


def read_newest_version(table: WarehouseTable) -> int | None:
    """The number of the newest version, or None when there is no table."""
    with translate_errors(table):
        snapshot = open_table(table)
    return None if snapshot is None else snapshot.version


def read_with_spark(spark: SparkSession, opened: TableVersion) -> DataFrame:
    """The visible rows with the table's columns and `is_current`. Spark reads them when the frame is used."""
    with translate_errors(opened.table):
        handle = DeltaTable(str(opened.table.path), version=opened.version)
        schema = to_spark_schema(read_delta_columns(handle.schema()))
        files = handle.file_uris()
        if not files:
            return spark.createDataFrame([], schema).withColumn("is_current", sf.lit(None).cast("boolean"))
        rows = spark.read.schema(schema).option("basePath", str(opened.table.path)).parquet(*files)
        runs = sf.broadcast(spark.createDataFrame(_to_arrow(opened)))
        return rows.join(runs, ["customer_id", DATE_COLUMN, "run_id"]).select(*schema.names, "is_current")


def connect_duckdb(tables: Iterable[TableVersion], *, root: Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB session with two views per table: `<query>`, and `<query>_current` with current runs only.

    The session can access only files below the root, and its settings are locked. DuckDB cannot forbid writing
    there, so a caller that executes statements of others must allow only SELECT.
    """
    connection = duckdb.connect()
    try:
        connection.execute(f"LOAD {_quote(str(_find_delta_extension()))}")
        for opened in tables:
            with translate_errors(opened.table):
                _add_views(connection, opened)
        for setting in (f"allowed_directories = [{_quote(str(root))}]", "enable_external_access = false"):
            connection.execute(f"SET {setting}")
        connection.execute("SET lock_configuration = true")
    except BaseException:
        connection.close()
        raise
    return connection


def _add_views(connection: duckdb.DuckDBPyConnection, opened: TableVersion) -> None:
    name, table = opened.table.query_name, f"delta_{opened.table.query_name}"
    runs = f"{table}_visible_runs"
    path = _quote(str(opened.table.path))
    connection.execute(f"ATTACH {path} AS {table} (TYPE delta, VERSION {opened.version})")
    connection.register("visible_runs", _to_arrow(opened))
    connection.execute(f"CREATE TABLE {runs} AS FROM visible_runs")
    connection.unregister("visible_runs")
    rows = f"SELECT t.*, r.is_current FROM {table} t JOIN {runs} r USING (customer_id, {DATE_COLUMN}, run_id)"  # noqa: S608
    connection.execute(f"CREATE VIEW {name} AS {rows}")
    connection.execute(f"CREATE VIEW {name}_current AS FROM {name} WHERE is_current")


def _to_arrow(opened: TableVersion) -> pa.Table:
    schema = _VISIBLE_RUNS_SCHEMA
    columns: list[Any] = [list(column) for column in zip(*opened.visible_runs, strict=True)] or [[]] * len(schema)
    return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)


def _find_delta_extension() -> Path:
    """The extension that is installed as a package, so that DuckDB downloads nothing."""
    return next(Path(duckdb_extension_delta.__file__).parent.rglob("*.duckdb_extension"))


def _quote(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
