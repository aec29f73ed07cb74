"""Opens the pipeline for the commands that may need Spark. Importing it loads Spark's client."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any

from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.operations.cli.command_line.output import terminal_progress
from ads_pipeline.pipeline.completeness.completeness_tables import CompletenessTables
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline.settings.environment import Settings
from ads_pipeline.spark.quiet_start import quiet_start
from ads_pipeline.spark.session import spark_session
from ads_pipeline.validation.contract_registry import read_contracts


@contextmanager
def open_pipeline(settings: Settings, ledger: Ledger) -> Iterator[Pipeline]:
    """Start Spark when it is first needed, and stop it at the end of the block.

    What Spark prints is shown when it does not start, and with ADS_PIPELINE_LOG.
    """
    with ExitStack() as stack:

        @cache
        def start_spark() -> Any:
            with nullcontext() if settings.log_format else quiet_start():
                return stack.enter_context(spark_session(settings))

        yield Pipeline(
            start_spark=start_spark,
            raw=RawRuns(settings.raw_location, is_in_use=ledger.runs.exist),
            ledger=ledger,
            warehouse=Warehouse(settings.warehouse_location),
            contracts=read_contracts(settings.queries_file, settings.google_apis),
            tables=CompletenessTables(ledger=ledger, settings=settings),
            show_text=settings.sample_text,
            report_progress=terminal_progress(),
        )
