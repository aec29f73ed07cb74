"""Publishing beside dlt merging the same files into DuckDB, and beside Spark writing the same rows without a table.

What must not grow is held against itself: the time for a partition, and the driver's memory.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ |= {"RUNTIME__DLTHUB_TELEMETRY": "false", "RUNTIME__LOG_LEVEL": "ERROR"}  # before dlt reads them

import dlt
import pyarrow as pa
from pyarrow import json as arrow_json
from pyspark.sql import SparkSession

from ads_pipeline.validator.judging import SealedPayload, rows_of
from ads_pipeline_tests.benchmarks import publishing
from ads_pipeline_tests.benchmarks.publishing import HEAP, publish, replace_rows
from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio, compare, timed
from ads_pipeline_tests.benchmarks.runs import land, put, renamed
from ads_pipeline_tests.benchmarks.validator import RULES, local_spark

Runs = list[SealedPayload]
ROUNDS = 5
WARMING = 8


def measure() -> Iterator[Ratio | Figure]:
    spark = local_spark()
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        small = land(home / "raw_small", customers=100, days=10, rows=100)
        publish(spark, small, home / "warm")
        for number in range(WARMING):  # Java compiles for as long; dlt is Python and has nothing to gain
            publish(spark, small, home / f"warm-{number}")
        yield from _against_dlt(spark, small, home)
        yield _against_partitions(spark, small, home)
        large = land(home / "raw_large", customers=20, days=1, rows=50_000)
        yield _against_plain(spark, large, home)
        yield _one_of_a_thousand(spark, small, home / "warm")
        few = put(home / "raw_few", customers=10, days=10, rows=100)
        many = put(home / "raw_many", customers=1_000, days=10, rows=100)
        yield _growth(spark, few, small, home, least=None)
        yield _growth(spark, few, many, home, least=1 / 1.2)
        spark.stop()
        yield _memory(home / "raw_many", home / "measured", len(many))


def _against_dlt(spark: SparkSession, runs: Runs, home: Path) -> Iterator[Ratio]:
    """Each way into a fresh table and dataset; the second also into full ones: for us, new runs of what is held."""
    for way, read, least in (
        ("a list a file", _lists, 1.0),
        ("an Arrow table a file", _tables, 1.0),
        ("one Arrow table joined from all files", _joined, None),
    ):
        place = home / read.__name__
        yield _beside_dlt(spark, runs, place, f"1,000 partitions, against dlt merging {way} into DuckDB", read, least)
    later, place = renamed(runs, "later"), home / _tables.__name__
    yield _beside_dlt(
        spark, later, place, "all of them anew, against dlt merging an Arrow table a file anew", _tables
    )


def _beside_dlt(
    spark: SparkSession,
    runs: Runs,
    home: Path,
    name: str,
    read: Callable[[Runs], Iterator[Any]],
    least: float | None = None,
) -> Ratio:
    return compare(
        f"judging and publishing {name}",
        lambda number: publish(spark, runs, home / f"ours-{number}"),
        lambda number: _merge(read(runs), home / f"dlt-{number}"),
        rounds=ROUNDS,
        least=least,
    )


def _lists(runs: Runs) -> Iterator[Any]:
    for run in runs:
        yield [json.loads(line) for line in Path(run.payload).read_bytes().splitlines()]


def _tables(runs: Runs) -> Iterator[Any]:
    for run in runs:
        yield arrow_json.read_json(run.payload)


def _joined(runs: Runs) -> Iterator[Any]:
    yield pa.concat_tables(list(_tables(runs)))


def _merge(rows: Iterator[Any], home: Path) -> None:
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
    # Without Parquet dlt would insert lists as text, which takes three times as long.
    pipeline.run(resource, loader_file_format="parquet").raise_on_failed_jobs()


def _against_partitions(spark: SparkSession, runs: Runs, home: Path) -> Ratio:
    """Both read the runs: a cached frame would be neither's work, and only we would gain by it."""
    rows = rows_of(spark, runs, RULES)
    by_partition = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    by_partition = by_partition.partitionBy("logical_date", "customer_id")
    return compare(
        "publishing 1,000 partitions of 100 rows, against Spark overwriting a directory for each",
        lambda number: replace_rows(spark, rows, runs, home / f"published-{number}"),
        lambda number: by_partition.parquet(str(home / f"directories-{number}")),
        rounds=ROUNDS,
        least=3.0,
    )


def _against_plain(spark: SparkSession, runs: Runs, home: Path) -> Ratio:
    """Both read the runs, as publishing always must."""
    rows = rows_of(spark, runs, RULES)
    replace_rows(spark, rows, runs, home / "published-large")
    return compare(
        "publishing 20 partitions of 50,000 rows, against Spark writing them as they come (at most 2x its time)",
        lambda number: replace_rows(spark, rows, runs, home / f"published-large-{number}"),
        lambda number: rows.write.parquet(str(home / f"plain-{number}")),
        rounds=ROUNDS,
        least=0.5,
    )


def _one_of_a_thousand(spark: SparkSession, runs: Runs, table: Path) -> Figure:
    return timed(
        "judging one run and replacing its partition in a table of 1,000",
        lambda number: publish(spark, renamed(runs[500:501], f"later-{number}"), table),
        rounds=ROUNDS,
        most=2.0,
    )


def _growth(spark: SparkSession, few: Runs, many: Runs, home: Path, *, least: float | None) -> Ratio:
    """The time for one partition among many, against the time for one among few."""
    ratio = compare(
        f"one partition of {len(many):,}, against one of {len(few):,}",
        lambda number: publish(spark, many, home / f"of-{len(many)}-{number}"),
        lambda number: publish(spark, few, home / f"of-{len(few)}-beside-{len(many)}-{number}"),
        rounds=3,
        least=least,
    )
    return ratio.counted(len(many) // len(few))


def _memory(raw: Path, root: Path, partitions: int) -> Figure:
    """Both processes' own peaks added up, whenever they were; what Spark computes in is the driver's JVM here."""
    command = [sys.executable, "-m", publishing.__name__, str(raw), str(root)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    loaded, python, jvm = map(int, printed.split())
    assert loaded == partitions
    return Figure(
        name=f"the driver's memory for {loaded:,} partitions, Python {python >> 10} MiB and JVM {jvm >> 10} MiB "
        f"(heap {HEAP})",
        value=(python + jvm) / (1 << 20),
        unit="GiB",
        most=2.0,
    )
