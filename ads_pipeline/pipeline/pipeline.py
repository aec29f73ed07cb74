"""The parts that take a sealed run to rows that readers see, over one Spark session that starts when it is needed."""

from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.lake.warehouse.staging import StartSpark
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.completeness.completeness_tables import CompletenessTables
from ads_pipeline.pipeline.hidden_rows import HiddenRows
from ads_pipeline.pipeline.loading import Loader
from ads_pipeline.pipeline.progress import ProgressReporter, no_progress
from ads_pipeline.pipeline.registered_seals import SealRegister
from ads_pipeline.pipeline.staged_runs import StagedRuns
from ads_pipeline.pipeline.validation import Validation
from ads_pipeline.pipeline.withdrawing import Withdrawing
from ads_pipeline.validation.contract_registry import Contracts


class Pipeline:
    """Validation, loading and withdrawing. The first two take the seals that `seals` knows, and read the others.

    Loading publishes what validation has staged, and stages the rest itself.

    With `show_text`, reasons of rejections quote texts of payloads. Every step may be repeated;
    `pipeline.reconciliation` finishes what a crash interrupted.
    """

    def __init__(
        self,
        *,
        start_spark: StartSpark,
        raw: RawRuns,
        ledger: Ledger,
        warehouse: Warehouse,
        contracts: Contracts,
        tables: CompletenessTables,
        seals: SealRegister | None = None,
        show_text: bool = False,
        report_progress: ProgressReporter = no_progress,
    ) -> None:
        seals = seals or SealRegister(raw=raw, registrations=ledger.registrations)
        staged = StagedRuns()
        self.tables = tables
        self.hidden_rows = hidden_rows = HiddenRows(
            start_spark=start_spark, publications=ledger.publications, warehouse=warehouse, tables=tables
        )
        self.loader = Loader(
            start_spark=start_spark,
            raw=raw,
            seals=seals,
            states=ledger.states,
            loads=ledger.loads,
            history=ledger.runs,
            warehouse=warehouse,
            hidden_rows=hidden_rows,
            contracts=contracts,
            staged=staged,
            tables=tables,
            report_progress=report_progress,
        )
        self.validation = Validation(
            start_spark=start_spark,
            raw=raw,
            seals=seals,
            verdicts=ledger.verdicts,
            contracts=contracts,
            hidden_rows=hidden_rows,
            warehouse=warehouse,
            staged=staged,
            show_text=show_text,
            report_progress=report_progress,
        )
        self.withdrawing = Withdrawing(withdrawals=ledger.withdrawals, hidden_rows=hidden_rows)
