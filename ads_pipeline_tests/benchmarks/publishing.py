"""Judges, reads and publishes sealed runs, as the pipeline does; the warehouse benchmarks measure it.

Run as a program, it does so once in its own Spark session and prints its peak memory.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.warehouse.file_writer import decode_files
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.lake.warehouse.table_values import StagedFile, TableLoadResult
from ads_pipeline.pipeline.staged_runs import sink_into
from ads_pipeline.validation.spark_job import judge_and_write
from ads_pipeline_tests.benchmarks.processes import read_peak_mib
from ads_pipeline_tests.benchmarks.validator import RULES, local_spark
from ads_pipeline_tests.validation.builders import SealedPayload

HEAP_SIZE = "1g"
SOURCE, QUERY = "google_ads", "campaign_daily"


def publish(spark: SparkSession, runs: Sequence[SealedPayload], location: str) -> TableLoadResult:
    """Judge the runs and publish them in the table of the warehouse at this location."""
    return replace_partitions(spark, runs, judge_and_stage(spark, runs, location), location)


def judge_and_stage(spark: SparkSession, runs: Sequence[SealedPayload], location: str) -> list[StagedFile]:
    """Judge the runs, which must all be accepted, and write their rows out of sight."""
    table = Warehouse(location).table(SOURCE, QUERY)
    judgements, written = judge_and_write(
        spark,
        runs[0].location,
        [run.seal for run in runs],
        RULES,
        open_sink=sink_into(table, RULES.schema_version),
    )
    assert all(judgement.verdict.outcome is Outcome.ACCEPTED for judgement in judgements)
    return decode_files(written)


def replace_partitions(
    spark: SparkSession, runs: Sequence[SealedPayload], staged: Sequence[StagedFile], location: str
) -> TableLoadResult:
    return Warehouse(location).replace(
        lambda: spark,
        [run.seal for run in runs],
        staged,
        stage=lambda _missing: [],
        columns=RULES.column_types,
        is_publishable=lambda runs: runs,
    )


def main(raw: Path, location: str) -> None:
    seals = RawRuns(raw).find_runs(source=SOURCE, since=date.min, until=date.max)
    runs = [SealedPayload(seal=s, location=str(raw)) for s in seals if isinstance(s, SealedRun)]
    spark = local_spark(heap=HEAP_SIZE)
    loaded = publish(spark, runs, location)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    peaks = {
        "partitions": len(loaded.runs),
        "python_mib": read_peak_mib("self"),
        "jvm_mib": read_peak_mib(jvm.java.lang.ProcessHandle.current().pid()),
        "worker_mib": max(map(read_peak_mib, _find_workers())),
    }
    spark.stop()
    print(json.dumps(peaks))


def _find_workers() -> Iterator[int]:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "pyspark.daemon" in process.cmdline():
                yield process.pid


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
