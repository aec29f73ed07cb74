"""What the warehouse's benchmarks measure: sealed runs judged, read and published, as the pipeline does it.

Run as a program it does so once, with a Spark of its own, and prints how much memory that took at most.
"""

import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import PAYLOAD
from ads_pipeline.raw.seal import Seal
from ads_pipeline.validator.judging import SealedPayload, judge_runs, read_accepted_rows
from ads_pipeline.warehouse.publication import Warehouse
from ads_pipeline.warehouse.values import Load, TableLoadResult
from ads_pipeline_tests.benchmarks.validator import RULES, local_spark

HEAP = "1g"


def publish(spark: SparkSession, runs: Sequence[SealedPayload], root: Path) -> TableLoadResult:
    """Judge the runs and make the table below this root hold them."""
    accepted = [each.verdict.outcome is Outcome.ACCEPTED for each in judge_runs(spark, runs, RULES)]
    assert all(accepted)
    return replace_rows(spark, read_accepted_rows(spark, runs, RULES), runs, root)


def replace_rows(spark: SparkSession, rows: DataFrame, runs: Sequence[SealedPayload], root: Path) -> TableLoadResult:
    """Make the table hold these rows of the runs, which nobody else wants to load."""
    loads = [
        Load(run=each.seal.run, schema_version=RULES.schema_version, record_count=each.seal.record_count)
        for each in runs
    ]
    return Warehouse(root).replace(spark, rows, loads, is_publishable=lambda due: due)


def main(raw: Path, root: Path) -> None:
    seals = RawRuns(raw).find_runs(source="google_ads", since=date.min, until=date.max)
    runs = [SealedPayload(seal=s, payload_path=str(raw / s.run.path / PAYLOAD)) for s in seals if isinstance(s, Seal)]
    spark = local_spark(heap=HEAP)
    loaded = publish(spark, runs, root)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    print(len(loaded.loads), _peak("self"), _peak(jvm.java.lang.ProcessHandle.current().pid()))
    spark.stop()


def _peak(process: object) -> int:
    """The most memory a process has had in RAM, in KiB. Unlike getrusage's it owes nothing to who started it."""
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
