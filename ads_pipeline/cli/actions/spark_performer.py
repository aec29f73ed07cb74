"""Opens Spark, the ledger and the warehouse for the actions that override a verdict. It loads Spark's client."""

from collections.abc import Iterator
from contextlib import contextmanager

from ads_pipeline.cli.output import terminal_progress
from ads_pipeline.cli.parsing import open_ledger_for_writing
from ads_pipeline.contracts.registry import read_contracts
from ads_pipeline.pipeline.demote_and_restore import override_performer
from ads_pipeline.pipeline.operator_actions import OperatorAction, Perform
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import Settings
from ads_pipeline.spark_session import spark_session
from ads_pipeline.warehouse.publication import Warehouse


@contextmanager
def open_spark_performer(settings: Settings, action: OperatorAction) -> Iterator[Perform]:
    with spark_session(settings) as spark, open_ledger_for_writing(settings) as ledger:
        pipeline = Pipeline(
            spark=spark,
            raw=RawRuns(settings.raw_root),
            ledger=ledger,
            warehouse=Warehouse(settings.warehouse_root),
            contracts=read_contracts(settings.queries_file, settings.google_apis),
            show_text=settings.sample_text,
            report_progress=terminal_progress(),
        )
        yield override_performer(action, pipeline, ledger.states)
