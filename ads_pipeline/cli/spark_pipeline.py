"""Opens the pipeline for the commands that need Spark. Importing it loads Spark's client."""

from collections.abc import Iterator
from contextlib import contextmanager

from ads_pipeline.cli.output import terminal_progress
from ads_pipeline.contracts.registry import read_contracts
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import Settings
from ads_pipeline.spark_session import spark_session
from ads_pipeline.warehouse.publication import Warehouse


@contextmanager
def open_pipeline(settings: Settings, ledger: Ledger) -> Iterator[Pipeline]:
    """Start Spark, and stop it at the end of the block."""
    with spark_session(settings) as spark:
        yield Pipeline(
            spark=spark,
            raw=RawRuns(settings.raw_location, is_in_use=ledger.runs.exist),
            ledger=ledger,
            warehouse=Warehouse(settings.warehouse_location),
            contracts=read_contracts(settings.queries_file, settings.google_apis),
            show_text=settings.sample_text,
            report_progress=terminal_progress(),
        )
