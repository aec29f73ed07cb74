"""Measures publishing against dlt that merges into DuckDB, and against Spark that writes files without a table.

Also measured: the time per partition as the number of partitions grows, and the driver's memory.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ |= {"RUNTIME__DLTHUB_TELEMETRY": "false", "RUNTIME__LOG_LEVEL": "ERROR"}  # dlt reads them on import

import dlt
import pyarrow as pa
from pyarrow import json as arrow_json
from pyspark.sql import DataFrame, SparkSession

from ads_pipeline.validator.judging import SealedPayload
from ads_pipeline_tests.benchmarks import publishing
from ads_pipeline_tests.benchmarks.publishing import HEAP_SIZE, publish
from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio, compare, measure_time
from ads_pipeline_tests.benchmarks.runs import land_runs, with_new_run_ids, write_runs
from ads_pipeline_tests.benchmarks.validator import SCHEMA, local_spark

Runs = list[SealedPayload]
ROUNDS = 5
WARM_UP_ROUNDS = 8


def measure() -> Iterator[Ratio | Figure]:
    spark = local_spark()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        small = land_runs(home / "raw_small", customers=100, days=10, rows=100)
        publish(spark, small, str(home / "warm"))
        for number in range(WARM_UP_ROUNDS):  # until the JVM has compiled the hot code; dlt needs no warm-up
            publish(spark, small, str(home / f"warm-{number}"))
        yield from _compare_with_dlt(spark, small, home)
        yield _compare_with_directories(spark, small, home)
        large = land_runs(home / "raw_large", customers=20, days=1, rows=50_000)
        yield _compare_with_files(spark, large, home)
        yield _measure_one_partition(spark, small, str(home / "warm"))
        few = write_runs(home / "raw_few", customers=10, days=10, rows=100)
        many = write_runs(home / "raw_many", customers=1_000, days=10, rows=100)
        yield _compare_sizes(spark, few, small, home, required=None)
        yield _compare_sizes(spark, few, many, home, required=1 / 1.2)
        spark.stop()
        yield _measure_memory(home / "raw_many", home / "measured", len(many))


def _compare_with_dlt(spark: SparkSession, runs: Runs, home: Path) -> Iterator[Ratio]:
    """dlt reads files in three ways into a new dataset. Arrow tables are also merged into a full one, as new runs."""
    for source, read, required in (
        ("a list per file", _read_lists, 1.0),
        ("an Arrow table per file", read_tables, 1.0),
        ("one Arrow table of all files", _read_one_table, None),
    ):
        directory = home / read.__name__
        yield _compare_merge(
            spark, runs, directory, "1,000 partitions", f"dlt merging {source} into DuckDB", read, required
        )
    later, directory = with_new_run_ids(runs, "later"), home / read_tables.__name__
    yield _compare_merge(
        spark, later, directory, "1,000 partitions again", "dlt merging an Arrow table per file again", read_tables
    )


def _compare_merge(
    spark: SparkSession,
    runs: Runs,
    home: Path,
    shape: str,
    baseline_name: str,
    read: Callable[[Runs], Iterator[Any]],
    required: float | None = None,
) -> Ratio:
    return compare(
        f"judging and publishing {shape}",
        lambda number: publish(spark, runs, str(home / f"ours-{number}")),
        lambda number: merge_with_dlt(read(runs), home / f"dlt-{number}"),
        baseline_name=baseline_name,
        rounds=ROUNDS,
        required=required,
    )


def _read_lists(runs: Runs) -> Iterator[Any]:
    for run in runs:
        yield [json.loads(line) for line in Path(run.payload_path).read_bytes().splitlines()]


def read_tables(runs: Runs) -> Iterator[Any]:
    for run in runs:
        yield arrow_json.read_json(run.payload_path)


def _read_one_table(runs: Runs) -> Iterator[Any]:
    yield pa.concat_tables(list(read_tables(runs)))


def merge_with_dlt(rows: Iterator[Any], home: Path) -> None:
    pipeline = dlt.pipeline(
        "benchmark",
        pipelines_dir=str(home),
        destination=dlt.destinations.duckdb(str(home / "merged.duckdb")),
        dataset_name="ads",
    )
    resource = dlt.resource(
        rows,
        name="campaign_daily",
        primary_key=("customer_id", "date", "campaign_id"),
        write_disposition="merge",
    )
    # Without this option dlt inserts lists as text, which takes three times as long.
    pipeline.run(resource, loader_file_format="parquet").raise_on_failed_jobs()


def _compare_with_directories(spark: SparkSession, runs: Runs, home: Path) -> Ratio:
    """Ours also judges. Spark reads the same files."""
    writer = _read_rows(spark, runs).write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer = writer.partitionBy("date", "customer_id")
    return compare(
        "judging and publishing 1,000 partitions of 100 rows",
        lambda number: publish(spark, runs, str(home / f"published-{number}")),
        lambda number: writer.parquet(str(home / f"directories-{number}")),
        baseline_name="Spark overwriting one directory per partition",
        rounds=ROUNDS,
        required=3.0,
    )


def _compare_with_files(spark: SparkSession, runs: Runs, home: Path) -> Ratio:
    """Ours also judges. Spark reads the same files."""
    writer = _read_rows(spark, runs).write
    publish(spark, runs, str(home / "published-large"))
    return compare(
        "judging and publishing 20 partitions of 50,000 rows",
        lambda number: publish(spark, runs, str(home / f"published-large-{number}")),
        lambda number: writer.parquet(str(home / f"plain-{number}")),
        baseline_name="Spark reading the same files and writing unsorted ones",
        rounds=ROUNDS,
        required=0.5,
    )


def _read_rows(spark: SparkSession, runs: Runs) -> DataFrame:
    return spark.read.schema(SCHEMA).json([run.payload_path for run in runs])


def _measure_one_partition(spark: SparkSession, runs: Runs, location: str) -> Figure:
    return measure_time(
        "judging one run and replacing its partition in a table of 1,000 partitions",
        lambda number: publish(spark, with_new_run_ids(runs[500:501], f"later-{number}"), location),
        rounds=ROUNDS,
        limit=2.0,
    )


def _compare_sizes(spark: SparkSession, few: Runs, many: Runs, home: Path, *, required: float | None) -> Ratio:
    """The time per partition when many are published, compared with few."""
    ratio = compare(
        f"publishing {len(many):,} partitions",
        lambda number: publish(spark, many, str(home / f"of-{len(many)}-{number}")),
        lambda number: publish(spark, few, str(home / f"of-{len(few)}-beside-{len(many)}-{number}")),
        baseline_name=f"publishing {len(few)} partitions {len(many) // len(few)} times",
        rounds=3,
        required=required,
    )
    return ratio.with_repeated_baseline(len(many) // len(few))


def _measure_memory(raw: Path, root: Path, partitions: int) -> Figure:
    """The sum of the peaks of the Python and JVM processes, which need not coincide. The JVM also runs the tasks."""
    command = [sys.executable, "-m", publishing.__name__, str(raw), str(root)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    loaded, python, jvm = map(int, output.split())
    assert loaded == partitions
    return Figure(
        name=f"driver memory for {loaded:,} partitions, Python {python >> 10} MiB and JVM {jvm >> 10} MiB "
        f"(heap {HEAP_SIZE})",
        value=(python + jvm) / (1 << 20),
        unit="GiB",
        limit=2.0,
    )
