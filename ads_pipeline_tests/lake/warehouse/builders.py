"""Builders of small loads, loaders that are killed, and independent readers of a table."""

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.storage.open_store import is_bucket, open_store
from ads_pipeline.lake.storage.store import FileInfo
from ads_pipeline.lake.warehouse import maintenance
from ads_pipeline.lake.warehouse.file_writer import StagedRows
from ads_pipeline.lake.warehouse.replacement import DEFAULT_RETENTION, RunFilter, Warehouse
from ads_pipeline.lake.warehouse.table_values import StagedFile, StagedRun, TableLoadResult, WarehouseTable
from ads_pipeline_tests.builders import sealed_run
from ads_pipeline_tests.lake.storage import s3_server

COLUMNS = {"campaign_id": "long", "cost": "double"}


def key(customer: int = 1, day: int = 1) -> PartitionKey:
    return PartitionKey(
        source="google_ads", customer_id=str(customer), query_name="campaign_daily", logical_date=date(2026, 1, day)
    )


def make_load(run_id: str, partition: PartitionKey, rows: int = 3, *, schema_version: str = "1") -> SealedRun:
    return sealed_run(Run(key=partition, run_id=run_id), rows, schema_version=schema_version)


def make_loads(run_id: str, customers: Sequence[int], days: Sequence[int] = (1,), rows: int = 3) -> list[SealedRun]:
    return [make_load(run_id, key(customer, day), rows) for customer in customers for day in days]


def stage(root: str, loads: Sequence[SealedRun], **extra: Any) -> list[StagedFile]:
    """Write the rows of each load as a task does, as many as its record_count. The cost depends on the run.

    All have one schema version.
    """
    table = Warehouse(root).table("google_ads", "campaign_daily")
    staged = StagedRows(table.location, table.folder, loads[0].facts.schema_version if loads else "1")
    ordered = sorted(loads, key=lambda load: (load.run.key.logical_date, load.run.key.customer_id))
    for load in ordered:
        key, count = load.run.key, load.record_count
        runs = [StagedRun(key.customer_id, load.run.run_id, count)]
        columns = {"campaign_id": list(range(count)), "cost": [float(len(load.run.run_id))] * count}
        rows = columns | {name: [value] * count for name, value in extra.items()}
        staged.add(key.logical_date, runs, pa.table(rows, schema=_SCHEMA if not count else None))
    return staged.finish()


_SCHEMA = pa.schema([("campaign_id", pa.int64()), ("cost", pa.float64())])


def publish(spark: SparkSession, root: str, run_id: str, customers: Sequence[int], days: Sequence[int] = (1,)) -> int:
    """Load a run of each partition and return the table version."""
    return publish_loads(spark, root, make_loads(run_id, customers, days))


def publish_loads(
    spark: SparkSession,
    root: str,
    loads: Sequence[SealedRun],
    *,
    staged: Sequence[StagedFile] | None = None,
    columns: Mapping[str, str] = COLUMNS,
) -> int:
    """Publish loads, with other staged files than their own if given, and return the table version."""
    return replace_partitions(spark, root, loads, staged=staged, columns=columns).table_version


def replace_partitions(
    spark: SparkSession,
    root: str,
    loads: Sequence[SealedRun],
    *,
    staged: Sequence[StagedFile] | None = None,
    columns: Mapping[str, str] = COLUMNS,
    is_publishable: RunFilter | None = None,
) -> TableLoadResult:
    files = stage(root, loads) if staged is None else staged
    return Warehouse(root).replace(
        lambda: spark,
        loads,
        files,
        stage=lambda _missing: [],
        columns=columns,
        is_publishable=is_publishable or keep_all_runs,
    )


def keep_all_runs(runs: Sequence[Run]) -> Collection[Run]:
    """A callback that returns every run."""
    return runs


KILLED_PROCESS = """
import os, signal, sys
from pyspark.sql import SparkSession
from ads_pipeline.lake.warehouse import log_statistics
from ads_pipeline.lake.warehouse import replacement
from ads_pipeline.lake.warehouse import staging
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline_tests.lake.warehouse.builders import make_loads, replace_partitions

def kill_process(function, *, after):
    def call(*args, **kwargs):
        if after:
            function(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
    return call

module, name, after = sys.argv[2].split(".")
patched = {"staging": staging, "replacement": replacement, "log_statistics": log_statistics}[module]
setattr(patched, name, kill_process(getattr(patched, name), after=after == "after"))
root, address = sys.argv[1], sys.argv[3]
spark = SparkSession.builder.remote(address).getOrCreate()
loads = make_loads("r2", (1,))
CALL
"""


def run_and_kill(moment: str, call: str, root: str, spark_server: str) -> None:
    """Call the warehouse in another process, which is killed before or after the function that `moment` names."""
    script = [sys.executable, "-W", "ignore", "-c", KILLED_PROCESS.replace("CALL", call), root, moment, spark_server]
    done = subprocess.run(script, capture_output=True, check=False, timeout=600)
    assert done.returncode == -9, done.stderr.decode()[-2000:]


TABLE = "google_ads/campaign_daily"


def table_uri(root: str) -> str:
    return f"{root}/{TABLE}"


def table_path(root: str) -> Path:
    """The table's folder on a disk."""
    return Path(root) / TABLE


def list_table(root: str) -> dict[str, FileInfo]:
    """All files below the table, by their names in it."""
    return {file.name.removeprefix(f"{TABLE}/"): file for file in open_store(root).list(TABLE)}


def read_file(root: str, path: str) -> bytes:
    return open_store(root).read(f"{TABLE}/{path}")


def write_file(root: str, path: str, content: bytes) -> None:
    """Write a file of the table, or replace it."""
    open_store(root).replace(f"{TABLE}/{path}", content)


def read_rows(root: str, path: str, columns: list[str] | None = None) -> pa.Table:
    return pq.read_table(io.BytesIO(read_file(root, path)), columns=columns)


def write_rows(root: str, path: str, rows: pa.Table) -> None:
    content = io.BytesIO()
    pq.write_table(rows, content)
    write_file(root, path, content.getvalue())


def read_with_duckdb(root: str) -> dict[PartitionKey, tuple[set[str], int]]:
    """The runs and the row count of each partition, read by DuckDB's own implementation of Delta."""
    with connect_with_delta(root) as connection:
        rows = connection.execute(
            "SELECT customer_id, logical_date, list(DISTINCT run_id), count(*) FROM delta_scan(?) GROUP BY ALL",
            [table_uri(root)],
        ).fetchall()
    return {
        PartitionKey(source="google_ads", customer_id=customer, query_name="campaign_daily", logical_date=day): (
            set(runs),
            count,
        )
        for customer, day, runs, count in rows
    }


def connect_with_delta(root: str) -> duckdb.DuckDBPyConnection:
    """A connection with DuckDB's function delta_scan."""
    connection = duckdb.connect()
    _load_extension(connection, duckdb_extension_delta)
    if is_bucket(root):
        import duckdb_extension_httpfs  # noqa: PLC0415 - only a bucket needs it

        _load_extension(connection, duckdb_extension_httpfs)
        connection.execute(_s3_secret())
    return connection


def _load_extension(connection: duckdb.DuckDBPyConnection, package: ModuleType) -> None:
    extension = next(Path(str(package.__file__)).parent.rglob("*.duckdb_extension"))
    connection.execute(f"LOAD '{extension}'")


def _s3_secret() -> str:
    """DuckDB's own access to the S3 server of the tests."""
    host = urlsplit(os.environ["AWS_ENDPOINT_URL"]).netloc
    return (
        f"CREATE SECRET (TYPE s3, KEY_ID '{s3_server.KEY_ID}', SECRET '{s3_server.SECRET}', ENDPOINT '{host}', "
        "USE_SSL false, URL_STYLE 'path', REGION 'eu-west-1')"
    )


def read_all_versions(root: str) -> list[dict[PartitionKey, tuple[set[str], int]]]:
    """The same for every version of the table, read from the JSON of the log and the files it names."""
    files: dict[str, dict[str, Any]] = {}
    versions = []
    for number in list_log_versions(root):
        for action in map(json.loads, read_file(root, entry_path(number)).splitlines()):
            if "remove" in action:
                del files[action["remove"]["path"]]
            if "add" in action:
                files[action["add"]["path"]] = action["add"]
        versions.append(_read_partitions(root, files))
    return versions


def entry_path(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def list_log_versions(root: str) -> list[int]:
    return [int(Path(name).stem) for name in list_table(root) if re.fullmatch(r"_delta_log/[0-9]{20}\.json", name)]


def _read_partitions(root: str, files: dict[str, dict[str, Any]]) -> dict[PartitionKey, tuple[set[str], int]]:
    partitions: dict[PartitionKey, tuple[set[str], int]] = {}
    existing = list_table(root)
    for path, add in files.items():
        rows = read_rows(root, path, ["customer_id", "run_id"]).to_pylist()
        assert existing[path].size == add["size"]
        assert json.loads(add["stats"])["numRecords"] == len(rows)
        day = date.fromisoformat(add["partitionValues"]["logical_date"])
        assert path.startswith(f"logical_date={day}/")
        for row in rows:
            key = PartitionKey(
                source="google_ads", customer_id=row["customer_id"], query_name="campaign_daily", logical_date=day
            )
            runs, count = partitions.get(key, (set(), 0))
            partitions[key] = (runs | {row["run_id"]}, count + 1)
    return partitions


def optimize(spark: SparkSession, root: str) -> int | None:
    return Warehouse(root).optimize(lambda: spark, source="google_ads", query_name="campaign_daily")


def vacuum(root: str, retention: timedelta = DEFAULT_RETENTION) -> tuple[str, ...]:
    """The removed paths, after checking that they existed before and are gone now."""
    table = WarehouseTable(location=root, source="google_ads", query_name="campaign_daily")
    planned = maintenance.find_removable_paths(table, retention)
    assert set(planned) <= set(list_table(root))
    removed = Warehouse(root).vacuum(source="google_ads", query_name="campaign_daily", retention=retention)
    assert set(planned).isdisjoint(list_table(root))
    assert removed == planned
    return removed


def publish_small_files(spark: SparkSession, root: str) -> None:
    """Publish two days, each in three files."""
    for customers in ((5, 6), (1, 2), (3,)):
        publish(spark, root, f"r{customers[0]}", customers, days=(1, 2))


SMALL_FILE_PARTITIONS = {
    key(customer, day): ({run_id}, 3)
    for customer, run_id in {1: "r1", 2: "r1", 3: "r3", 5: "r5", 6: "r5"}.items()
    for day in (1, 2)
}


def give_customer_bounds(root: str) -> None:
    """Make the log one of an earlier release, which wrote statistics of customer_id alone."""
    for version in list_log_versions(root):
        actions = [json.loads(line) for line in read_file(root, entry_path(version)).splitlines()]
        for action in actions:
            action.get("metaData", {})["configuration"] = {}
            if "add" in action:
                customers = read_rows(root, action["add"]["path"], ["customer_id"])["customer_id"].to_pylist()
                bounds = {"minValues": {"customer_id": min(customers)}, "maxValues": {"customer_id": max(customers)}}
                action["add"]["stats"] = json.dumps({"numRecords": len(customers), **bounds})
        write_file(root, entry_path(version), "".join(json.dumps(each) + "\n" for each in actions).encode())


def list_data_files(root: str) -> list[str]:
    """Every data file below the table, whether or not a version refers to it."""
    return [name for name in list_table(root) if re.fullmatch(r"logical_date=[^/]*/[^/]*\.parquet", name)]


def list_version_files(root: str, version: int | None = None) -> set[str]:
    """The data files of one version."""
    table = DeltaTable(table_uri(root), version=version)
    return set(pa.table(table.get_add_actions(flatten=True))["path"].to_pylist())


def read_sorted_rows(root: str, version: int | None = None) -> list[tuple[Any, ...]]:
    table = DeltaTable(table_uri(root), version=version).to_pyarrow_table()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def make_older(root: str, days: float) -> None:
    """Move the time at which every file in the table was written back by this many days."""
    if is_bucket(root):
        s3_server.make_older(table_uri(root), days)
        return
    for path in table_path(root).rglob("*"):
        written = path.lstat().st_mtime - days * 86400
        os.utime(path, (written, written), follow_symlinks=False)


def create_old_file(root: str, path: str, days: float) -> str:
    """Create an empty file in the table that was last written this many days ago."""
    assert open_store(root).create(f"{TABLE}/{path}", b"")
    if is_bucket(root):
        s3_server.make_older(f"{table_uri(root)}/{path}", days)
    else:
        os.utime(table_path(root) / path, (time.time() - days * 86400,) * 2)
    return path
