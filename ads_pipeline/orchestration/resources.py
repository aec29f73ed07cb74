"""Opens the resources of runs and of sensors from the settings. Spark comes from `dagster-pyspark`.

Only `PartitionStateIOManager` and the jobs get `RunResources`, which can write. Runs import the parts that work on
data when they first use them. Definitions and sensors start without.
"""

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from ads_pipeline.domain.errors import LeaseLost
from ads_pipeline.domain.fetching.fetch_results import Backfill, SkippedFetch
from ads_pipeline.domain.fetching.retry_forecast import LeaseHolder
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.partition import PartitionKey, Run, parse_key
from ads_pipeline.domain.quoting import printable
from ads_pipeline.domain.run_events import Event, EventOrigin
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.run_source import Landed, Source
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.events.completed_runs import RunCompletionLog
from ads_pipeline.ledger.events.snapshots import fold_run
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_values import ClaimResult
from ads_pipeline.ledger.write_steps.leases import Lease
from ads_pipeline.orchestration.naming.names import Names, ResourceName
from ads_pipeline.orchestration.runs.due_partitions import RESOURCE
from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.pipeline.days.staleness import asset_code_versions
from ads_pipeline.pipeline.progress import progress_on
from ads_pipeline.pipeline.registered_seals import SealRegister
from ads_pipeline.settings.environment import Settings
from ads_pipeline.validation.contract_registry import DeclaredVersions, read_contracts

if TYPE_CHECKING:  # they load Spark, Arrow and Delta, which neither the definitions nor the sensors need
    from pyspark.sql import SparkSession

    from ads_pipeline.lake.warehouse.replacement import Warehouse
    from ads_pipeline.lake.warehouse.staging import StartSpark
    from ads_pipeline.orchestration.runs.ended_runs import CompletedRun
    from ads_pipeline.orchestration.step_values import LoadablePartitions
    from ads_pipeline.pipeline.completeness.completeness_tables import CompletenessTables
    from ads_pipeline.pipeline.loading import LoadResult
    from ads_pipeline.pipeline.pipeline import Pipeline
    from ads_pipeline.pipeline.repeated_reconciliation import RepeatedReconciliation
    from ads_pipeline.pipeline.validation import JudgingResult

_LOG: Final = logging.getLogger(__name__)

# A code server has few threads, and Dagster gives a tick 60 s. A tick must end before the next one starts.
TICK_ANSWER_SECONDS: Final = 40.0


def build_external_source(resources: "SensorResources") -> Source:
    """Create the source of a deployment whose extractors run outside Dagster."""
    return resources.sealed_runs


SourceFactory = Callable[["SensorResources"], Source]
RunCloser = Callable[[RunCompletionLog, str], "CompletedRun | None"]


def _never_close(_events: RunCompletionLog, _engine_run_id: str) -> None:
    """Without an instance of Dagster, nobody can say whether a run has ended."""


class SparkResource(Protocol):
    """The Spark session of a run, which starts when it is first read: `LazyPySparkResource` of `dagster-pyspark`."""

    @property
    def spark_session(self) -> "SparkSession": ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResources:
    """Read access to one deployment."""

    settings: Settings
    names: Names
    ledger: LedgerReader

    @property
    def source_name(self) -> str:
        return self.settings.google_apis.source

    @property
    def raw(self) -> RawRuns:
        return RawRuns(self.settings.raw_location, is_in_use=self.ledger.runs.exist)

    @property
    def sealed_runs(self) -> SealedRuns:
        declared = DeclaredVersions(self.settings.queries_file, self.settings.google_apis)
        return SealedRuns(raw=self.raw, runs=self.ledger.runs, has_contract=cache(declared.has_contract))


def select_due(keys: Iterable[PartitionKey], due: Collection[PartitionKey] | None) -> list[PartitionKey]:
    """Return those of the keys that a run for these partitions is for; None: its whole range."""
    return [key for key in keys if due is None or key in due]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResources(ReadResources):
    """The resources of assets and checks: read access, and the functions of the run that they may call."""

    due: Collection[PartitionKey] | None = None  # the partitions that the run is for; None: its whole range
    claim: Callable[[Sequence[PartitionKey]], ClaimResult]
    fetches: bool
    land: Callable[[Sequence[PartitionKey], Backfill | None], Landed]
    judge: Callable[["SparkSession", Sequence[Run]], "JudgingResult"]
    commit: Callable[[SparkResource, "LoadablePartitions"], "LoadResult"]

    def select_due(self, keys: Iterable[PartitionKey]) -> list[PartitionKey]:
        """Return those of the keys that this run is for. It leaves the others as they are."""
        return select_due(keys, self.due)


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorResources(ReadResources):
    """The resources of sensors: read access, and the log in which they close finished runs."""

    events: RunCompletionLog
    source_factory: SourceFactory

    @property
    def source(self) -> Source:
        """The source of the raw assets. One that fetches can do so only in a run; a sensor asks it `fetches`."""
        return self.source_factory(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResources(SensorResources):
    """The resources of the IO manager and of the jobs: write access under the lease of the run."""

    ledger: Ledger
    lease: Lease
    seals: SealRegister
    due: Collection[PartitionKey] | None = None  # as in `StepResources`
    claimed: dict[PartitionKey, int] = field(default_factory=dict)
    close_if_ended: RunCloser = _never_close

    @property
    def reader(self) -> LedgerReader:
        """The ledger without write access."""
        return LedgerReader(self.ledger.engine, tenancy=self.settings.tenancy)

    @property
    def warehouse(self) -> "Warehouse":
        from ads_pipeline.lake.warehouse.replacement import Warehouse  # noqa: PLC0415

        return Warehouse(self.settings.warehouse_location)

    def claim(self, keys: Sequence[PartitionKey]) -> ClaimResult:
        """Claim partitions that no other run holds, and emit StepStarted for each.

        A later step in the same process takes the claims of the earlier ones. Raises LeaseLost when the run has lost
        its lease, and with it all claims.
        """
        unclaimed = [key for key in keys if key not in self.claimed]
        if not unclaimed and not self.lease.renew():
            raise LeaseLost(self.lease.engine_run_id, "its lease has ended or expired")
        held = self._claim(unclaimed) if unclaimed else {}
        return ClaimResult(granted={key: self.claimed[key] for key in keys if key in self.claimed}, held=held)

    def _claim(self, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, LeaseHolder]:
        """Claim partitions, and return the holders of those that other runs hold."""
        claim, now = self._claim_free(keys), datetime.now(UTC)
        started = [self.ledger.origin.make_event("StepStarted", at=now, step_id=str(key)) for key in claim.granted]
        self._append(started)
        self.claimed.update(claim.granted)
        return claim.held

    def _claim_free(self, keys: Collection[PartitionKey]) -> ClaimResult:
        """Claim partitions. A holder that Dagster has ended is closed first, as the sensor would do later."""
        claim = self.lease.claim(keys)
        holders = sorted({holder.engine_run_id for holder in claim.held.values()})
        closed = [closed for each in holders if (closed := self.close_if_ended(self.events, each)) is not None]
        for run in closed:
            if run.problem is not None:
                _LOG.error("%s", run.problem)
        return self.lease.claim(keys) if closed else claim

    def find_not_fetched(self) -> set[PartitionKey]:
        """The partitions that the source has failed to fetch or skipped in this run, in any of its processes."""
        return set(map(parse_key, self.events.list_steps(self.lease.engine_run_id, {"FetchFailed", "StepSkipped"})))

    def record_skipped(self, skipped: Sequence[SkippedFetch]) -> None:
        """Emit StepSkipped for partitions that were claimed and not fetched."""
        now = datetime.now(UTC)
        make_event = self.ledger.origin.make_event
        self._append(
            [make_event("StepSkipped", at=now, step_id=str(each.key), event_data=_describe(each)) for each in skipped]
        )

    def _append(self, events: Sequence[Event]) -> None:
        """Append events of the run, and fold them into its snapshot, as the ledger does after its own events."""
        self.events.append_many(events)
        fold_run(self.events, self.lease.engine_run_id)

    def pipeline(self, start_spark: "StartSpark") -> "Pipeline":
        from ads_pipeline.pipeline.pipeline import Pipeline  # noqa: PLC0415

        return Pipeline(
            start_spark=start_spark,
            raw=self.raw,
            ledger=self.ledger,
            warehouse=self.warehouse,
            seals=self.seals,
            tables=self.tables,
            contracts=read_contracts(self.settings.queries_file, self.settings.google_apis),
            show_text=self.settings.sample_text,
            report_progress=progress_on(sys.stderr),
        )

    @property
    def tables(self) -> "CompletenessTables":
        from ads_pipeline.pipeline.completeness import completeness_tables  # noqa: PLC0415 - it loads Arrow and Delta

        return completeness_tables.CompletenessTables(ledger=self.ledger, settings=self.settings)

    def reconciliation(self, start_spark: "StartSpark") -> "RepeatedReconciliation":
        from ads_pipeline.pipeline.reconciliation import Reconciliation  # noqa: PLC0415
        from ads_pipeline.pipeline.repeated_reconciliation import LastPasses, RepeatedReconciliation  # noqa: PLC0415

        reconciliation = Reconciliation(
            publications=self.ledger.publications,
            warehouse=self.warehouse,
            open_pipeline=lambda: self.pipeline(start_spark),
            claim=lambda keys: self._claim_free(keys).granted,
        )
        return RepeatedReconciliation(reconciliation, LastPasses(self.settings.home / "reconciled"))


def _describe(skipped: SkippedFetch) -> dict[str, str]:
    until = {} if skipped.until is None else {"until": skipped.until.isoformat()}
    return {"why": printable(skipped.reason)} | until


LEDGER_ENGINE: Final = ResourceName[database.Engine]("ledger_engine")
RUN_RESOURCES: Final = ResourceName[RunResources](RESOURCE)
STEP_RESOURCES: Final = ResourceName[StepResources]("step_resources")
SENSOR_RESOURCES: Final = ResourceName[SensorResources]("sensor_resources")
CONTROL_ACTIONS: Final = ResourceName[ControlActions]("control_actions")
SPARK: Final = ResourceName[SparkResource]("pyspark")


@contextmanager
def open_ledger_engine(settings: Settings, *, answer_seconds: float | None = None) -> Iterator[database.Engine]:
    """Open the one engine that all resources of a run or of a sensor share."""
    with database.open_checked_engine(settings.database_url, answer_seconds=answer_seconds) as engine:
        yield engine


def build_sensor_resources(
    settings: Settings, names: Names, engine: database.Engine, source_factory: SourceFactory = build_external_source
) -> SensorResources:
    return SensorResources(
        settings=settings,
        names=names,
        ledger=LedgerReader(engine, tenancy=settings.tenancy),
        events=RunCompletionLog(engine, tenancy=settings.tenancy),
        source_factory=source_factory,
    )


@contextmanager
def open_run_resources(
    settings: Settings,
    names: Names,
    engine: database.Engine,
    origin: EventOrigin,
    source_factory: SourceFactory = build_external_source,
    *,
    due: Collection[PartitionKey] | None = None,
    on_loss: Callable[[], None] | None = None,
    find_wait: Callable[[], timedelta | None] | None = None,
    close_if_ended: RunCloser = _never_close,
) -> Iterator[RunResources]:
    """Open the resources of one Dagster run, or of one process of it: take its lease and emit RunStarted.

    `on_loss` is called when the run has lost its lease. `find_wait` says how long the lease stays open for other
    processes of the run, as in `Lease.held`.
    """
    events = RunCompletionLog(engine, tenancy=settings.tenancy)
    with Lease.held(
        engine, origin.engine_run_id, duration=settings.lease, on_loss=on_loss, find_wait=find_wait
    ) as lease:
        ledger = Ledger(engine, origin=origin, tenancy=settings.tenancy, lease=lease)
        log_event(_LOG, LogEvent.RUN_OPENED, run=origin.engine_run_id, lease_seconds=settings.lease.total_seconds())
        events.append(origin.make_event("RunStarted", at=datetime.now(UTC)))
        fold_run(events, origin.engine_run_id)
        apis = settings.google_apis
        versions = {name: query.schema_version for name, query in apis.queries.items()}
        ledger.statuses.record_code_versions(apis.source, asset_code_versions(versions))
        yield RunResources(
            settings=settings,
            names=names,
            ledger=ledger,
            events=events,
            lease=lease,
            seals=SealRegister(raw=RawRuns(settings.raw_location), registrations=ledger.registrations),
            source_factory=source_factory,
            due=due,
            close_if_ended=close_if_ended,
        )


def claim_and_warn(
    claim: Callable[[Sequence[PartitionKey]], ClaimResult], keys: Sequence[PartitionKey], log: Any
) -> ClaimResult:
    """Claim partitions, and log a warning for those that the step has to leave out."""
    result = claim(keys)
    if result.held:
        key, holder = next(iter(result.held.items()))
        message = "skipped %d of %d partitions because other runs hold them. First: %s, %s"
        log.warning(message, len(result.held), len(keys), key, holder)
    return result
