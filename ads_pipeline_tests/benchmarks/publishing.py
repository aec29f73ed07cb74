"""Judges, reads and publishes sealed runs, as the pipeline does; the warehouse benchmarks measure it.

Run as a program, it does so once in its own Spark session and prints its peak memory.
"""

import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import Seal
from ads_pipeline.validator.judging import SealedPayload, judge_runs, read_accepted_rows
from ads_pipeline.warehouse.publication import Warehouse
from ads_pipeline.warehouse.values import Load, TableLoadResult
from ads_pipeline_tests.benchmarks.validator import RULES, local_spark

HEAP_SIZE = "1g"


def publish(spark: SparkSession, runs: Sequence[SealedPayload], root: Path) -> TableLoadResult:
    """Judge the runs and publish them in the table below this root."""
    accepted = [judgement.verdict.outcome is Outcome.ACCEPTED for judgement in judge_runs(spark, runs, RULES)]
    assert all(accepted)
    return replace_rows(spark, read_accepted_rows(spark, runs, RULES), runs, root)


def replace_rows(spark: SparkSession, rows: DataFrame, runs: Sequence[SealedPayload], root: Path) -> TableLoadResult:
    """Publish these rows of the runs."""
    loads = [
        Load(run=run.seal.run, schema_version=RULES.schema_version, record_count=run.seal.record_count)
        for run in runs
    ]
    return Warehouse(root).replace(spark, rows, loads, is_publishable=lambda runs: runs)


def main(raw: Path, root: Path) -> None:
    seals = RawRuns(raw).find_runs(source="google_ads", since=date.min, until=date.max)
    runs = [SealedPayload(seal=s, root=str(raw)) for s in seals if isinstance(s, Seal)]
    spark = local_spark(heap=HEAP_SIZE)
    loaded = publish(spark, runs, root)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    print(len(loaded.loads), _read_peak_kib("self"), _read_peak_kib(jvm.java.lang.ProcessHandle.current().pid()))
    spark.stop()


def _read_peak_kib(process: object) -> int:
    """The peak resident memory of a process. Unlike getrusage's, it excludes the parent process."""
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
