"""Takes sealed runs from raw to rows that readers see: judge, then load."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.judging import JudgingResult, Validation
from ads_pipeline.pipeline.loading import Loader, LoadResult
from ads_pipeline.progress import ProgressReporter, no_progress
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.warehouse.publication import Warehouse


class Pipeline:
    """Validation and loading with one Spark session.

    Every step may be repeated; `pipeline.reconciliation` finishes what a crash interrupted.
    """

    def __init__(
        self,
        *,
        spark: SparkSession,
        raw: RawRuns,
        ledger: Ledger,
        warehouse: Warehouse,
        report_progress: ProgressReporter = no_progress,
    ) -> None:
        self.loader = Loader(
            spark=spark,
            raw=raw,
            states=ledger.states,
            publications=ledger.publications,
            loads=ledger.loads,
            warehouse=warehouse,
            report_progress=report_progress,
        )
        self.validation = Validation(
            spark=spark,
            raw=raw,
            registrations=ledger.registrations,
            verdicts=ledger.verdicts,
            loader=self.loader,
            report_progress=report_progress,
        )

    def judge_and_load(self, runs: Sequence[Run]) -> tuple[JudgingResult, LoadResult]:
        """Judge sealed runs, then load the partitions whose status is success."""
        judged = self.validation.judge(runs)
        succeeded = [result.state.key for result in judged.recorded if result.state.status is Status.SUCCESS]
        return judged, self.loader.load(succeeded)
