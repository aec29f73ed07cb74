"""Opens the rooms for one execution, from settings; Spark comes from `dagster-pyspark` where it is needed."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import Origin
from ads_pipeline.ledger.control.leases import Lease
from ads_pipeline.ledger.events.run_completion import RunCompletionLog
from ads_pipeline.ledger.events.snapshots import following
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.values import ClaimResult
from ads_pipeline.pipeline.arrivals import SealedRuns, Source
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline.pipeline.readers import Readers
from ads_pipeline.pipeline.reconciliation import Reconciliation
from ads_pipeline.pipeline.staleness import StalenessCalculator, versions_of
from ads_pipeline.progress import telling
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import Settings
from ads_pipeline.warehouse.publication import Warehouse

Extractor = Callable[[RawRuns, LedgerReader], Source]


def outside(raw: RawRuns, ledger: LedgerReader) -> Source:
    """Extractors of others, which seal runs by themselves."""
    return SealedRuns(raw=raw, ledger=ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorResources:
    """One deployment's places, for those who may look and tell how runs end, as sensors do."""

    settings: Settings
    ledger: LedgerReader
    events: RunCompletionLog
    extractor: Extractor

    @property
    def source_name(self) -> str:
        return self.settings.google_apis.source

    @property
    def raw(self) -> RawRuns:
        return RawRuns(self.settings.raw_root)

    @property
    def sealed(self) -> SealedRuns:
        return SealedRuns(raw=self.raw, ledger=self.ledger)

    @property
    def source(self) -> Source:
        """Where raw runs come from."""
        return self.extractor(self.raw, self.ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResources(SensorResources):
    """The same places, for those who may write."""

    ledger: Ledger
    book: StatusTable
    lease: Lease

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(self.settings.warehouse_root)

    @property
    def readers(self) -> Readers:
        return Readers(ledger=self.ledger, warehouse_root=self.settings.warehouse_root, source=self.source_name)

    @property
    def currencies(self) -> StalenessCalculator:
        return StalenessCalculator(self.settings.policies, self.ledger.code_versions(self.source_name))

    def begin(self, keys: Sequence[PartitionKey]) -> ClaimResult:
        """Claim partitions, and tell that this run is for those that no other is at work on.

        A step that is tried again is granted what it was, and tells nothing new.
        """
        claimed, now = self.lease.claim(keys), datetime.now(UTC)
        begun = [self.ledger.origin.event("StepStarted", at=now, step_id=str(key)) for key in claimed.granted]
        self.events.append_many(begun)
        return claimed

    def pipeline(self, spark: SparkSession) -> Pipeline:
        return Pipeline(
            spark=spark, raw=self.raw, ledger=self.ledger, warehouse=self.warehouse, tell=telling(sys.stderr)
        )

    def reconciliation(self, spark: SparkSession) -> Reconciliation:
        return Reconciliation(
            ledger=self.ledger,
            warehouse=self.warehouse,
            pipeline=self.pipeline(spark),
            claim=lambda keys: self.lease.claim(keys).granted,
        )


@contextmanager
def watching(settings: Settings, extractor: Extractor = outside) -> Iterator[SensorResources]:
    settings.home.mkdir(parents=True, exist_ok=True)
    url, space = settings.database_url, settings.space
    with RunCompletionLog.watching(url, space=space) as events, LedgerReader.opened(url, space=space) as ledger:
        yield SensorResources(settings=settings, ledger=ledger, events=events, extractor=extractor)


@contextmanager
def opened(settings: Settings, origin: Origin, extractor: Extractor = outside) -> Iterator[RunResources]:
    """The rooms for one run of the engine, which holds a lease and whose events are projected while it lasts."""
    url, space = settings.database_url, settings.space
    with (
        Lease.opened(url, origin.run_id, lasts=settings.lease) as lease,
        Ledger.opened(url, origin=origin, space=space, lease=lease) as ledger,
        RunCompletionLog.watching(url, space=space) as events,
        StatusTable.opened(url, space=space) as book,
        following(events),
    ):
        events.append(origin.event("RunStarted", at=datetime.now(UTC)))
        apis = settings.google_apis
        versions = {name: query.schema_version for name, query in apis.queries.items()}
        book.see_code(apis.source, versions_of(versions))
        yield RunResources(
            settings=settings, ledger=ledger, events=events, book=book, lease=lease, extractor=extractor
        )
