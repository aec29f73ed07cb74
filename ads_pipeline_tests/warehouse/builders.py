"""Builders of small loads, loaders that are killed, and independent readers of a table."""

import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.warehouse import maintenance
from ads_pipeline.warehouse.file_writer import RowsOfRun, StagedRows
from ads_pipeline.warehouse.publication import DEFAULT_RETENTION, RunFilter, Warehouse
from ads_pipeline.warehouse.values import Load, StagedFile, TableLoadResult, WarehouseTable

COLUMNS = {"campaign_id": "long", "cost": "double"}


def key(customer: int = 1, day: int = 1) -> PartitionKey:
    return PartitionKey(
        source="google_ads", customer_id=str(customer), query_name="campaign_daily", logical_date=date(2026, 1, day)
    )


def make_load(run_id: str, partition: PartitionKey, rows: int = 3) -> Load:
    return Load(run=Run(key=partition, run_id=run_id), schema_version="1", record_count=rows)


def make_loads(run_id: str, customers: Sequence[int], days: Sequence[int] = (1,), rows: int = 3) -> list[Load]:
    return [make_load(run_id, key(customer, day), rows) for customer in customers for day in days]


def stage(root: Path, loads: Sequence[Load], **extra: Any) -> list[StagedFile]:
    """Write the rows of each load as a task does, as many as its record_count. The cost depends on the run."""
    table = Warehouse(str(root)).table("google_ads", "campaign_daily")
    staged = StagedRows(table.location, table.folder)
    ordered = sorted(loads, key=lambda load: (load.run.key.logical_date, load.run.key.customer_id))
    for load in ordered:
        key, count = load.run.key, load.record_count
        runs = [RowsOfRun(key.customer_id, key.logical_date, load.run.run_id, load.schema_version, count)]
        columns = {"campaign_id": list(range(count)), "cost": [float(len(load.run.run_id))] * count}
        rows = columns | {name: [value] * count for name, value in extra.items()}
        staged.add(runs, pa.table(rows, schema=_SCHEMA if not count else None))
    return staged.finish()


_SCHEMA = pa.schema([("campaign_id", pa.int64()), ("cost", pa.float64())])


def publish(
    spark: SparkSession, root: Path, run_id: str, customers: Sequence[int], days: Sequence[int] = (1,)
) -> int:
    """Load a run of each partition and return the table version."""
    return publish_loads(spark, root, make_loads(run_id, customers, days))


def publish_loads(
    spark: SparkSession,
    root: Path,
    loads: Sequence[Load],
    *,
    staged: Sequence[StagedFile] | None = None,
    columns: Mapping[str, str] = COLUMNS,
) -> int:
    """Publish loads, with other staged files than their own if given, and return the table version."""
    return replace_partitions(spark, root, loads, staged=staged, columns=columns).table_version


def replace_partitions(
    spark: SparkSession,
    root: Path,
    loads: Sequence[Load],
    *,
    staged: Sequence[StagedFile] | None = None,
    columns: Mapping[str, str] = COLUMNS,
    is_publishable: RunFilter | None = None,
) -> TableLoadResult:
    files = stage(root, loads) if staged is None else staged
    return Warehouse(str(root)).replace(
        spark,
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
from pathlib import Path
from pyspark.sql import SparkSession
from ads_pipeline.warehouse import publication, staging
from ads_pipeline.warehouse.publication import Warehouse
from ads_pipeline_tests.warehouse.builders import make_loads, replace_partitions

def kill_process(function, *, after):
    def call(*args, **kwargs):
        if after:
            function(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
    return call

module, name, after = sys.argv[2].split(".")
patched = {"staging": staging, "publication": publication}[module]
setattr(patched, name, kill_process(getattr(patched, name), after=after == "after"))
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
loads = make_loads("r2", (1,))
root = Path(sys.argv[1])
CALL
"""


def run_and_kill(moment: str, call: str, root: Path) -> None:
    """Call the warehouse in another process, which is killed before or after the function that `moment` names."""
    script = [sys.executable, "-W", "ignore", "-c", KILLED_PROCESS.replace("CALL", call), str(root), moment]
    done = subprocess.run(script, capture_output=True, check=False, timeout=600)
    assert done.returncode == -9, done.stderr.decode()[-2000:]


def table_path(root: Path) -> Path:
    return root / "google_ads" / "campaign_daily"


def read_with_duckdb(root: Path) -> dict[PartitionKey, tuple[set[str], int]]:
    """The runs and the row count of each partition, read by DuckDB's own implementation of Delta."""
    with duckdb.connect() as connection:
        extension = next(Path(duckdb_extension_delta.__file__).parent.rglob("*.duckdb_extension"))
        connection.execute(f"LOAD '{extension}'")
        rows = connection.execute(
            "SELECT customer_id, logical_date, list(DISTINCT run_id), count(*) FROM delta_scan(?) GROUP BY ALL",
            [str(table_path(root))],
        ).fetchall()
    return {
        PartitionKey(source="google_ads", customer_id=customer, query_name="campaign_daily", logical_date=day): (
            set(runs),
            count,
        )
        for customer, day, runs, count in rows
    }


def read_all_versions(root: Path) -> list[dict[PartitionKey, tuple[set[str], int]]]:
    """The same for every version of the table, read from the JSON of the log and the files it names."""
    files: dict[str, dict[str, Any]] = {}
    versions = []
    for entry in sorted((table_path(root) / "_delta_log").glob("*.json")):
        for action in map(json.loads, entry.read_text().splitlines()):
            if "remove" in action:
                del files[action["remove"]["path"]]
            if "add" in action:
                files[action["add"]["path"]] = action["add"]
        versions.append(_read_partitions(table_path(root), files))
    return versions


def _read_partitions(table: Path, files: dict[str, dict[str, Any]]) -> dict[PartitionKey, tuple[set[str], int]]:
    partitions: dict[PartitionKey, tuple[set[str], int]] = {}
    for path, add in files.items():
        rows = pq.read_table(table / path, columns=["customer_id", "run_id"], partitioning=None).to_pylist()
        assert (table / path).stat().st_size == add["size"]
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


def optimize(spark: SparkSession, root: Path) -> int | None:
    return Warehouse(str(root)).optimize(lambda: spark, source="google_ads", query_name="campaign_daily")


def vacuum(root: Path, retention: timedelta = DEFAULT_RETENTION) -> tuple[str, ...]:
    """The removed paths, after checking that they existed before and are gone now."""
    table = WarehouseTable(location=str(root), source="google_ads", query_name="campaign_daily")
    planned = maintenance.find_removable_paths(table, retention)
    assert all((table_path(root) / path).exists() for path in planned)
    removed = Warehouse(str(root)).vacuum(source="google_ads", query_name="campaign_daily", retention=retention)
    assert not any((table_path(root) / path).exists() for path in planned)
    assert removed == planned
    return removed


def publish_small_files(spark: SparkSession, root: Path) -> None:
    """Publish two days, each in three files."""
    for customers in ((5, 6), (1, 2), (3,)):
        publish(spark, root, f"r{customers[0]}", customers, days=(1, 2))


SMALL_FILE_PARTITIONS = {
    key(customer, day): ({run_id}, 3)
    for customer, run_id in {1: "r1", 2: "r1", 3: "r3", 5: "r5", 6: "r5"}.items()
    for day in (1, 2)
}


def list_data_files(root: Path) -> list[str]:
    """Every data file below the table, whether or not a version refers to it."""
    return sorted(str(path.relative_to(table_path(root))) for path in table_path(root).glob("*=*/*.parquet"))


def list_version_files(root: Path, version: int | None = None) -> set[str]:
    """The data files of one version."""
    table = DeltaTable(str(table_path(root)), version=version)
    return set(pa.table(table.get_add_actions(flatten=True))["path"].to_pylist())


def read_sorted_rows(root: Path, version: int | None = None) -> list[tuple[Any, ...]]:
    table = DeltaTable(str(table_path(root)), version=version).to_pyarrow_table()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def make_older(root: Path, days: float) -> None:
    """Move the modification time of every file in the table back by this many days."""
    for path in table_path(root).rglob("*"):
        written = path.lstat().st_mtime - days * 86400
        os.utime(path, (written, written), follow_symlinks=False)
