"""Small loads, loaders that die, and independent ways to look at what a table holds."""

import json
import subprocess
import sys
from collections.abc import Collection, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.warehouse.publication import Warehouse
from ads_pipeline.warehouse.values import Load

SCHEMA = (
    "customer_id string, logical_date date, run_id string, schema_version string, campaign_id bigint, cost double"
)


def key(customer: int = 1, day: int = 1) -> PartitionKey:
    return PartitionKey(
        source="google_ads", customer_id=str(customer), query_name="campaign_daily", logical_date=date(2026, 1, day)
    )


def load(run_id: str, partition: PartitionKey, rows: int = 3) -> Load:
    return Load(run=Run(key=partition, run_id=run_id), schema_version="1", record_count=rows)


def loads(run_id: str, customers: Sequence[int], days: Sequence[int] = (1,), rows: int = 3) -> list[Load]:
    return [load(run_id, key(customer, day), rows) for customer in customers for day in days]


def rows_of(spark: SparkSession, wanted: Sequence[Load], schema: str = SCHEMA, **extra: Any) -> DataFrame:
    """So many rows for each load as it says, with values that tell the run."""
    rows = [
        (
            each.run.key.customer_id,
            each.run.key.logical_date,
            each.run.run_id,
            each.schema_version,
            number,
            float(len(each.run.run_id)),
            *extra.values(),
        )
        for each in wanted
        for number in range(each.record_count)
    ]
    return spark.createDataFrame(rows, schema)


def publish(
    spark: SparkSession, root: Path, run_id: str, customers: Sequence[int], days: Sequence[int] = (1,)
) -> int:
    """Load a run of these partitions, and say by which version."""
    wanted = loads(run_id, customers, days)
    return Warehouse(root).replace(spark, rows_of(spark, wanted), wanted, still=everyone).table_version


def everyone(runs: Sequence[Run]) -> Collection[Run]:
    """A ledger that has changed its mind about nobody."""
    return runs


DYING = """
import os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from ads_pipeline.warehouse import commits, publication, staging
from ads_pipeline.warehouse.publication import Warehouse
from ads_pipeline_tests.warehouse.builders import everyone, loads, rows_of

def dying(function, *, after):
    def call(*args, **kwargs):
        if after:
            function(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
    return call

module, name, after = sys.argv[2].split(".")
room = {"staging": staging, "publication": publication}[module]
setattr(room, name, dying(getattr(room, name), after=after == "after"))
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
wanted = loads("r2", (1,))
Warehouse(Path(sys.argv[1])).ACT
"""


def die_at(moment: str, act: str, root: Path) -> None:
    """Do this to the warehouse in another process, which is killed before or after it calls a function."""
    script = [sys.executable, "-W", "ignore", "-c", DYING.replace("ACT", act), str(root), moment]
    done = subprocess.run(script, capture_output=True, check=False, timeout=120)
    assert done.returncode == -9, done.stderr.decode()[-2000:]


def table_path(root: Path) -> Path:
    return root / "google_ads" / "campaign_daily"


def by_duckdb(root: Path) -> dict[PartitionKey, tuple[set[str], int]]:
    """Runs and rows of each partition, read by DuckDB's own implementation of Delta."""
    with duckdb.connect() as connection:
        extension = next(Path(duckdb_extension_delta.__file__).parent.rglob("*.duckdb_extension"))
        connection.execute(f"LOAD '{extension}'")
        found = connection.execute(
            "SELECT customer_id, logical_date, list(DISTINCT run_id), count(*) FROM delta_scan(?) GROUP BY ALL",
            [str(table_path(root))],
        ).fetchall()
    return {
        PartitionKey(source="google_ads", customer_id=customer, query_name="campaign_daily", logical_date=day): (
            set(runs),
            rows,
        )
        for customer, day, runs, rows in found
    }


def versions(root: Path) -> list[dict[PartitionKey, tuple[set[str], int]]]:
    """The same for every version of the table, by reading the log's own JSON and the files it names."""
    files: dict[str, dict[str, Any]] = {}
    walked = []
    for entry in sorted((table_path(root) / "_delta_log").glob("*.json")):
        for action in map(json.loads, entry.read_text().splitlines()):
            if "remove" in action:
                del files[action["remove"]["path"]]
            if "add" in action:
                files[action["add"]["path"]] = action["add"]
        walked.append(_held(table_path(root), files))
    return walked


def _held(table: Path, files: dict[str, dict[str, Any]]) -> dict[PartitionKey, tuple[set[str], int]]:
    held: dict[PartitionKey, tuple[set[str], int]] = {}
    for path, add in files.items():
        found = pq.read_table(table / path, columns=["customer_id", "run_id"], partitioning=None).to_pylist()
        assert (table / path).stat().st_size == add["size"]
        assert json.loads(add["stats"])["numRecords"] == len(found)
        day = date.fromisoformat(add["partitionValues"]["logical_date"])
        assert path.startswith(f"logical_date={day}/")
        for row in found:
            partition = PartitionKey(
                source="google_ads", customer_id=row["customer_id"], query_name="campaign_daily", logical_date=day
            )
            runs, rows = held.get(partition, (set(), 0))
            held[partition] = (runs | {row["run_id"]}, rows + 1)
    return held
