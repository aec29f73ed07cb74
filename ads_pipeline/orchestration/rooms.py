"""Opens the rooms for one execution, from settings; Spark comes from `dagster-pyspark` where it is needed."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from ads_pipeline.arrivals import SealedRuns, Source
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.writer import Ledger
from ads_pipeline.pipeline import Pipeline
from ads_pipeline.progress import telling
from ads_pipeline.raw import RawRuns
from ads_pipeline.reading import Readers
from ads_pipeline.reconciliation import Reconciliation
from ads_pipeline.settings import Settings
from ads_pipeline.warehouse.publication import Warehouse

SPARK_SETTINGS = {
    "spark.app.name": "ads_pipeline",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One deployment's places, for those who may only look, as sensors do."""

    settings: Settings
    ledger: LedgerReader

    @property
    def source_name(self) -> str:
        return self.settings.google_apis.source

    @property
    def raw(self) -> RawRuns:
        return RawRuns(self.settings.raw_root)

    @property
    def sealed(self) -> SealedRuns:
        return SealedRuns(raw=self.raw, ledger=self.ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms(Watch):
    """The same places, for those who may write."""

    ledger: Ledger

    @property
    def source(self) -> Source:
        """Where raw runs come from. An extractor of our own will stand here."""
        return self.sealed

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(self.settings.warehouse_root)

    @property
    def readers(self) -> Readers:
        return Readers(ledger=self.ledger, warehouse_root=self.settings.warehouse_root, source=self.source_name)

    def pipeline(self, spark: SparkSession) -> Pipeline:
        return Pipeline(
            spark=spark, raw=self.raw, ledger=self.ledger, warehouse=self.warehouse, tell=telling(sys.stderr)
        )

    def reconciliation(self, spark: SparkSession) -> Reconciliation:
        return Reconciliation(ledger=self.ledger, warehouse=self.warehouse, pipeline=self.pipeline(spark))


@contextmanager
def watching(settings: Settings) -> Iterator[Watch]:
    settings.home.mkdir(parents=True, exist_ok=True)
    with Ledger.opened(settings.database_url):  # the first look at a new home makes its ledger
        pass
    with LedgerReader.opened(settings.database_url) as ledger:
        yield Watch(settings=settings, ledger=ledger)


@contextmanager
def opened(settings: Settings) -> Iterator[Rooms]:
    with Ledger.opened(settings.database_url) as ledger:
        yield Rooms(settings=settings, ledger=ledger)


def spark_config(settings: Settings) -> dict[str, str]:
    """What the session is built with; whatever else Spark should know stands in its own configuration folder."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    place = "spark.remote" if settings.spark.startswith("sc://") else "spark.master"
    return SPARK_SETTINGS | {place: settings.spark}
