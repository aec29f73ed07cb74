"""This project: judges, stages and publishes, without a ledger or with one in SQLite."""

import sys
from collections.abc import Mapping
from pathlib import Path

from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline_tests.benchmarks.competitors.ours_recorded import (
    Steps,
    WithLedger,
    count_rows,
    find_runs,
    warehouse_location,
)
from ads_pipeline_tests.benchmarks.competitors.serving import Batch, serve
from ads_pipeline_tests.benchmarks.publishing import judge_and_stage, replace_partitions
from ads_pipeline_tests.benchmarks.validator import local_spark
from ads_pipeline_tests.validation.builders import SealedPayload


class WithoutLedger:
    def __init__(self) -> None:
        self._spark = local_spark()

    def load(self, batch: Batch) -> Mapping[str, float]:
        steps, location = Steps(), warehouse_location(batch.home)
        with steps.step("read the seals"):
            raw = RawRuns(batch.root)
            runs = [SealedPayload(seal=raw.read_seal(run), location=batch.root) for run in find_runs(batch)]
        with steps.step("judge and stage"):
            staged = judge_and_stage(self._spark, runs, location)
        with steps.step("publish"):
            replace_partitions(self._spark, runs, staged, location)
        return steps.seconds

    def read_totals(self, home: Path) -> tuple[int, int]:
        return count_rows(home)


if __name__ == "__main__":
    serve(WithLedger(local_spark()) if sys.argv[1] == "with-ledger" else WithoutLedger())
