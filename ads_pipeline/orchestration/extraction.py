"""The source that fetches from Google Ads, and the job that discovers accounts.

The client of Google Ads is imported by the steps that use it, not when the code location is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final

import dagster as dg

from ads_pipeline.domain.fetching import Backfill
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.quota import Hold
from ads_pipeline.google_ads.configuration import ClientConfiguration
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.transactions import Clock
from ads_pipeline.orchestration.due_partitions import digest_of
from ads_pipeline.orchestration.partitions import (
    CUSTOMERS,
    asset_keys,
    parse_partition_names,
    raw_asset_key,
    warehouse_asset_key,
)
from ads_pipeline.orchestration.resources import RunResources, SensorResources, SourceFactory
from ads_pipeline.orchestration.sensors.run_requests import RequestedPartitions, build_sensor_result
from ads_pipeline.pipeline.extraction.account_days import AccountDays
from ads_pipeline.pipeline.extraction.due_days import DueDays, fetched_together
from ads_pipeline.pipeline.extraction.held_requests import describe_holds, limit_to_holds
from ads_pipeline.raw.source import Landed, Source

SECONDS_BETWEEN_SEARCHES: Final = 1_800  # zones differ by half hours, and each search reads a month of every account
SECONDS_BETWEEN_TICKS: Final = 30  # a tick searches at once when accounts, parkings or holds have changed
BACKFILL_TAG: Final = "dagster/backfill"
MAX_PARTITIONS_IN_PROGRESS: Final = 2_000


class FetchingSource:
    """Fetches in runs. Sensors only ask whether it fetches."""

    fetches = True

    def __init__(self, resources: SensorResources, configuration: ClientConfiguration) -> None:
        self._resources, self._configuration = resources, configuration

    def land(self, partitions: Sequence[PartitionKey], backfill: Backfill | None = None) -> Landed:
        """Fetch the partitions of a run. Raises TypeError in a sensor, which has no write access."""
        from ads_pipeline.pipeline.extraction.extraction import Extraction  # noqa: PLC0415 - takes seconds

        resources = self._resources
        if not isinstance(resources, RunResources):
            raise TypeError("only a run can fetch")
        extraction = Extraction(
            apis=resources.settings.google_apis, configuration=self._configuration, ledger=resources.ledger
        )
        return extraction.source(resources.raw, resources.sealed_runs).land(partitions, backfill)


def build_fetching_source(configuration: ClientConfiguration) -> SourceFactory:
    """The factory of the source of a deployment that fetches from Google Ads itself."""

    def build(resources: SensorResources) -> Source:
        return FetchingSource(resources, configuration)

    return build


def find_backfill(context: dg.AssetExecutionContext, *, source: str, query_name: str) -> Backfill | None:
    """The backfill of which the run is a part. None for other runs, and when the definitions changed since."""
    backfill = context.instance.get_backfill(context.run.tags.get(BACKFILL_TAG, ""))
    if backfill is None or not backfill.is_asset_backfill:
        return None
    try:
        target = backfill.get_asset_backfill_data(context.repository_def.asset_graph)
        names = target.get_target_partitions_subset(raw_asset_key(query_name)).get_partition_keys()
    except (dg.DagsterError, KeyError) as error:
        context.log.warning(
            "days are fetched one by one, because the backfill cannot be read: %s", type(error).__name__
        )
        return None
    return Backfill(
        requested_at=datetime.fromtimestamp(backfill.backfill_timestamp, UTC),
        keys=frozenset(parse_partition_names(names, source=source, query_name=query_name)),
    )


def build_due_sensor(
    partitions: dg.MultiPartitionsDefinition, query_names: list[str], *, now: Clock
) -> dg.SensorDefinition:
    """The sensor that asks for closed days without a run, and for days to read again."""

    @dg.sensor(
        target=dg.AssetSelection.assets(*asset_keys(query_names)),
        minimum_interval_seconds=SECONDS_BETWEEN_TICKS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests runs of days that are closed in the account's own zone, and of days to read again.",
    )
    def days_due(
        context: dg.SensorEvaluationContext, sensor_resources: dg.ResourceParam[SensorResources]
    ) -> dg.SensorResult:
        apis, ledger = sensor_resources.settings.google_apis, sensor_resources.ledger
        days = AccountDays.read(ledger, apis, now=now())
        holds = ledger.quota.list_holds(apis.source)
        search = _Search(at=days.now, known=_digest_known(ledger, days, holds))
        if not search.is_due_after(context.cursor):
            reason = (
                "the last search is less than half an hour old, and no account, parking or hold has changed since"
            )
            return dg.SensorResult(skip_reason=reason, cursor=context.cursor)
        found = DueDays(ledger=ledger, days=days, policy=sensor_resources.settings.retry_policy).find()
        if holds:
            context.log.warning("%s", describe_holds(holds))
        newest = sorted(found, key=lambda key: (-key.logical_date.toordinal(), key))
        reasons = limit_to_holds({key: found[key] for key in newest}, holds, now())
        requested = RequestedPartitions(
            sensor="days_due",
            source=apis.source,
            query_names=query_names,
            asset_keys=(raw_asset_key, warehouse_asset_key),
            reasons=dict(islice(reasons.items(), MAX_PARTITIONS_IN_PROGRESS)),
            why="closed days or days to read again",
            by_customer=True,
            fetched_together=fetched_together,
        )
        return build_sensor_result(context, partitions, requested, now(), cursor=search.encode())

    return days_due


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """A search for due days: when it was, and a digest of the accounts, parkings and holds that were known."""

    at: datetime
    known: str

    def encode(self) -> str:
        return f"{self.at.isoformat()} {self.known}"

    def is_due_after(self, cursor: str | None) -> bool:
        """Whether half an hour has passed since the search of the cursor, or something else is known now."""
        at, _, known = (cursor or "").partition(" ")
        try:
            age = (self.at - datetime.fromisoformat(at)).total_seconds()
        except (ValueError, TypeError):  # no search yet, or a cursor that somebody has set
            return True
        return known != self.known or not 0 <= age < SECONDS_BETWEEN_SEARCHES


def _digest_known(ledger: LedgerReader, days: AccountDays, holds: Sequence[Hold]) -> str:
    accounts = [(each.customer_id, each.time_zone, each.gone_at is None) for each in days.accounts.values()]
    parkings = [str(each) for each in ledger.retry_queue.list_parkings(days.apis.source)]
    held = [(each.customer_id or "", each.until.isoformat(), each.until <= days.now) for each in holds]
    return digest_of((sorted(map(str, accounts)), sorted(parkings), sorted(held)))


def build_discovery(configuration: ClientConfiguration) -> dg.ScheduleDefinition:
    """The daily job that discovers accounts, which become customers in Dagster."""

    @dg.op(description="Lists the accounts below the configured managers, and parks those that cannot be fetched.")
    def find_accounts(context: dg.OpExecutionContext, run_resources: dg.ResourceParam[RunResources]) -> None:
        from ads_pipeline.pipeline.extraction.extraction import Extraction  # noqa: PLC0415 - takes seconds

        apis, ledger = run_resources.settings.google_apis, run_resources.ledger
        report = Extraction(apis=apis, configuration=configuration, ledger=ledger).discover()
        present = set(context.instance.get_dynamic_partitions(CUSTOMERS))
        added = [customer for customer in report.customers if customer not in present]
        context.instance.add_dynamic_partitions(CUSTOMERS, added)
        changes = report.changes
        context.log.info(
            "found %d customers: %d new in Dagster, %d parked, %d released, %d gone; read %d conversion windows",
            len(report.customers),
            len(added),
            len(changes.parked),
            len(changes.released),
            len(changes.gone),
            report.lookbacks_read,
        )
        for account, fault in report.failed.items():
            context.log.warning("account %s could not be read: %s: %s", account, fault.error_class, fault.message)
        for account, fault in report.refused.items():
            context.log.warning("account %s is parked: %s: %s", account, fault.error_class, fault.message)
        if report.failure is not None:
            raise dg.Failure(f"no account was read: {report.failure}", allow_retries=False)

    @dg.job(description="Discovers the accounts below the configured managers of Google Ads.")
    def discover_accounts() -> None:
        find_accounts()

    return dg.ScheduleDefinition(
        job=discover_accounts, cron_schedule="0 5 * * *", default_status=dg.DefaultScheduleStatus.RUNNING
    )
