"""Opens one version of a table to readers, and lets through the rows of the runs that they may see.

Which runs these are is asked of the caller; the ledger is not known here.
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

from ads_pipeline.warehouse.columns import columns_held, spark_schema
from ads_pipeline.warehouse.delta_commits import open_table
from ads_pipeline.warehouse.error_translation import translated
from ads_pipeline.warehouse.values import DATE, Table

Pass = tuple[str, date, str, bool]
_PASSES = pa.schema(
    [("customer_id", pa.string()), (DATE, pa.date32()), ("run_id", pa.string()), ("is_current", pa.bool_())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """A version of a table, with a pass for each run whose rows may be seen: customer, day, run, whether current."""

    table: Table
    version: int
    passes: Sequence[Pass]


def newest_version(table: Table) -> int | None:
    """None when there is no table."""
    with translated(table):
        snapshot = open_table(table)
    return None if snapshot is None else snapshot.version


def spark_rows(spark: SparkSession, opened: TableVersion) -> DataFrame:
    """The rows, with `is_current` beside the table's columns; read when the frame is used."""
    with translated(opened.table):
        handle = DeltaTable(str(opened.table.path), version=opened.version)
        schema = spark_schema(columns_held(handle.schema()))
        files = handle.file_uris()
        if not files:
            return spark.createDataFrame([], schema).withColumn("is_current", sf.lit(None).cast("boolean"))
        rows = spark.read.schema(schema).option("basePath", str(opened.table.path)).parquet(*files)
        passes = spark.createDataFrame(_passes(opened))
        return rows.join(sf.broadcast(passes), ["customer_id", DATE, "run_id"]).select(*schema.names, "is_current")


def connect(tables: Iterable[TableVersion], *, root: Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB session with two views a table: `<query>`, and `<query>_current` of current runs alone.

    It reaches nothing but the files below the root, and nobody can talk it out of that. DuckDB has no way to forbid
    writing there; who takes statements from others lets through a SELECT alone.
    """
    connection = duckdb.connect()
    try:
        connection.execute(f"LOAD {_text(str(_delta_extension()))}")
        for opened in tables:
            with translated(opened.table):
                _add_views(connection, opened)
        for setting in (f"allowed_directories = [{_text(str(root))}]", "enable_external_access = false"):
            connection.execute(f"SET {setting}")
        connection.execute("SET lock_configuration = true")
    except BaseException:
        connection.close()
        raise
    return connection


def _add_views(connection: duckdb.DuckDBPyConnection, opened: TableVersion) -> None:
    name, table = opened.table.query_name, f"delta_{opened.table.query_name}"
    passes = f"{table}_passes"
    path = _text(str(opened.table.path))
    connection.execute(f"ATTACH {path} AS {table} (TYPE delta, VERSION {opened.version})")
    connection.register("offered", _passes(opened))
    connection.execute(f"CREATE TABLE {passes} AS FROM offered")
    connection.unregister("offered")
    rows = f"SELECT t.*, p.is_current FROM {table} t JOIN {passes} p USING (customer_id, {DATE}, run_id)"  # noqa: S608
    connection.execute(f"CREATE VIEW {name} AS {rows}")
    connection.execute(f"CREATE VIEW {name}_current AS FROM {name} WHERE is_current")


def _passes(opened: TableVersion) -> pa.Table:
    columns: list[Any] = [list(column) for column in zip(*opened.passes, strict=True)] or [[]] * len(_PASSES)
    return pa.table(dict(zip(_PASSES.names, columns, strict=True)), schema=_PASSES)


def _delta_extension() -> Path:
    """The extension that was installed with DuckDB, so that nothing is downloaded when a reader comes."""
    return next(Path(duckdb_extension_delta.__file__).parent.rglob("*.duckdb_extension"))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
