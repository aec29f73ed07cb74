"""Builds the sensor `days_due`: it requests closed days without a run, and days to read again."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

import dagster as dg

from ads_pipeline.domain.fetching.quota import Hold
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.resources import SENSOR_RESOURCES
from ads_pipeline.orchestration.runs.due_partitions import digest_of
from ads_pipeline.orchestration.sensors.run_requests import RequestedPartitions, build_sensor_result
from ads_pipeline.pipeline.days.account_days import AccountDays
from ads_pipeline.pipeline.extraction.due_days import DueDays, fetched_together
from ads_pipeline.pipeline.extraction.held_requests import describe_holds, limit_to_holds

SECONDS_BETWEEN_SEARCHES: Final = 1_800  # zones differ by half hours, and each search reads a month of every account
SECONDS_BETWEEN_TICKS: Final = 30  # a tick searches at once when accounts, parkings or holds have changed
MAX_PARTITIONS_IN_PROGRESS: Final = 2_000


def build_due_sensor(
    names: Names, partitions: dg.MultiPartitionsDefinition, query_names: list[str], *, now: Clock
) -> dg.SensorDefinition:
    """The sensor that asks for closed days without a run, and for days to read again."""

    @dg.sensor(
        name=names.name("days_due"),
        required_resource_keys=names.require(SENSOR_RESOURCES),
        target=dg.AssetSelection.assets(*names.assets(query_names)),
        minimum_interval_seconds=SECONDS_BETWEEN_TICKS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests runs of days that are closed in the account's own zone, and of days to read again.",
    )
    def days_due(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        sensor_resources = names.find(context, SENSOR_RESOURCES)
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
            sensor=names.name("days_due"),
            names=names,
            source=apis.source,
            query_names=query_names,
            asset_keys=(names.raw, names.warehouse),
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
        """Return whether half an hour has passed since the search of the cursor, or something else is known now."""
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
