"""Measures publishing against Spark that writes files without a table, and the memory of driver and workers.

Other tools are in `comparisons`, growing tables in `table_growth`.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from ads_pipeline_tests.benchmarks import publishing
from ads_pipeline_tests.benchmarks.publishing import HEAP_SIZE, publish
from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio, compare
from ads_pipeline_tests.benchmarks.runs import write_runs
from ads_pipeline_tests.benchmarks.validator import SCHEMA, local_spark
from ads_pipeline_tests.validation.builders import SealedPayload

Runs = list[SealedPayload]
ROUNDS: Final = 3


def measure() -> Iterator[Ratio | Figure]:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        spark = local_spark()
        yield _compare_with_files(spark, write_runs(home / "raw_large", customers=20, days=1, rows=50_000), home)
        spark.stop()
        many = write_runs(home / "raw_many", customers=1_000, days=10, rows=100)
        yield _measure_driver(home / "raw_many", home / "many", len(many))
        write_runs(home / "raw_one", customers=1, days=1, rows=1_000_000)
        yield _measure_worker(home / "raw_one", home / "one")


def _compare_with_files(spark: SparkSession, runs: Runs, home: Path) -> Ratio:
    """Ours also judges. Spark reads the same files."""
    writer = spark.read.schema(SCHEMA).json([run.payload_path for run in runs]).write
    publish(spark, runs, str(home / "published-large"))
    return compare(
        "judging and publishing 20 partitions of 50,000 rows",
        lambda number: publish(spark, runs, str(home / f"published-large-{number}")),
        lambda number: writer.parquet(str(home / f"plain-{number}")),
        baseline_name="Spark reading the same files and writing unsorted ones",
        rounds=ROUNDS,
        required=0.5,
        cpu=True,
    )


def _measure_driver(raw: Path, root: Path, partitions: int) -> Figure:
    """The sum of the peaks of the Python and JVM processes, which need not coincide. The JVM also runs the tasks."""
    peaks = _publish_alone(raw, root)
    assert peaks["partitions"] == partitions
    python, jvm = peaks["python_mib"], peaks["jvm_mib"]
    return Figure(
        name=f"driver memory for {partitions:,} partitions, Python {python} MiB and JVM {jvm} MiB (heap {HEAP_SIZE})",
        value=(python + jvm) / (1 << 10),
        unit="GiB",
        limit=2.0,
    )


def _measure_worker(raw: Path, root: Path) -> Figure:
    return Figure(
        name="peak memory of a Python worker that judges and writes one partition of 1,000,000 rows",
        value=_publish_alone(raw, root)["worker_mib"],
        unit="MiB",
        limit=512,
    )


def _publish_alone(raw: Path, root: Path) -> dict[str, int]:
    command = [sys.executable, "-m", publishing.__name__, str(raw), str(root)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    peaks: dict[str, int] = json.loads(output.splitlines()[-1])
    return peaks
