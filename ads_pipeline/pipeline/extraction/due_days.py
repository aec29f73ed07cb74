"""Finds the days that a source which fetches should ask for now: closed days without a run, and days to read again.

Failed fetches are left to the retry queue. A day is asked for in the account's own time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from ads_pipeline.domain.accounts import Account
from ads_pipeline.domain.freshness import FreshnessPolicy, StaleReason
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import RetryPolicy
from ads_pipeline.domain.sequences import split_batches
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.google_ads.windows import find_zone
from ads_pipeline.ledger.control.retries import ScheduledRetry
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.pipeline.extraction.account_days import AccountDays
from ads_pipeline.pipeline.staleness import PartitionStaleness, StalenessCalculator

GRACE_DAYS: Final = 7  # how long after its deadline a day is still asked for, such as after an outage; then backfill
KEYS_PER_BATCH: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DueDays:
    """The search for due days, as of the time of `days`."""

    ledger: LedgerReader
    days: AccountDays
    policy: RetryPolicy

    def find(self) -> dict[PartitionKey, str]:
        """The partitions to fetch now, each with its reason. A new reason allows another run."""
        calculator = StalenessCalculator.of_ledger(self.ledger, self.days.apis, now=self.days.now)
        found: dict[PartitionKey, str] = {}
        for batch in split_batches(self._candidates(), KEYS_PER_BATCH):
            states = self.ledger.states.get_many(batch)
            scheduled = self.ledger.retry_queue.find_scheduled(batch)
            unjudged = {run.key for run in self.ledger.runs.unjudged(batch)}
            stale = calculator.calculate(self.ledger.statuses, batch, now=self.days.now)
            for key in batch:
                reason = _find_reason(states[key], stale[key], oldest=self._oldest_new_day(key.customer_id))
                if reason and key not in unjudged and not self._is_retried(scheduled.get(key), stale[key]):
                    found[key] = reason
        return found

    def _candidates(self) -> Iterator[PartitionKey]:
        """The newest closed days of each account and query, and those whose reread may be due."""
        apis = self.days.apis
        parkings = self.ledger.retry_queue.list_parkings(apis.source)
        for account in self.days.accounts.values():
            if account.is_manager or account.gone_at is not None:
                continue
            last = self._last_closed_day(account)
            for name, query in apis.queries.items():
                if any(parking.covers(account.customer_id, name) for parking in parkings):
                    continue
                lookback = self.days.find_lookback(account.customer_id, name)
                for day in sorted(_days_to_look_at(last, query.freshness_policy.settling_after(lookback))):
                    if day >= apis.start_date:
                        key = PartitionKey(
                            source=apis.source, customer_id=account.customer_id, query_name=name, logical_date=day
                        )
                        if self.days.find_obstacle(key) is None:
                            yield key

    def _oldest_new_day(self, customer_id: str) -> date:
        """The oldest day that is asked for when it was never fetched."""
        return self._last_closed_day(self.days.accounts[customer_id]) - timedelta(days=GRACE_DAYS - 1)

    def _last_closed_day(self, account: Account) -> date:
        local = self.days.now.astimezone(find_zone(account.time_zone)) - self.days.limits.close_lag
        return local.date() - timedelta(days=1)

    def _is_retried(self, scheduled: ScheduledRetry | None, stale: PartitionStaleness) -> bool:
        """Whether the retry queue decides about the day: its last fetch failed after the data that readers have."""
        if scheduled is None:
            return False
        status = stale.raw.status
        if status is not None and status.last_materialization_at is not None:
            if scheduled.failed_at < status.last_materialization_at:
                return False
            # A failed reread leaves a success, which the retry queue does not repeat: wait here as it would.
            waits = scheduled.due_at is None or scheduled.due_at > self.days.now
            return waits or scheduled.failures >= self.policy.max_attempts
        return True


def _find_reason(state: PartitionState, stale: PartitionStaleness, *, oldest: date) -> str | None:
    if state.status is Status.SUCCESS:
        found = stale.raw.stale
        if found is None or StaleReason.FRESHNESS_POLICY not in found.reasons:
            return None
        return f"to be read again since {found.since:%Y-%m-%d %H:%M}Z"
    # A pending day with attempts was requeued, which the retry queue follows, or an operator has withdrawn it.
    is_new = state.status is Status.PENDING and state.attempt_count == 0 and state.key.logical_date >= oldest
    return "closed and not fetched" if is_new else None


def _days_to_look_at(last: date, policy: FreshnessPolicy) -> set[date]:
    """The newest days, and for each reread the days whose deadline passed within the grace."""
    back = [*range(GRACE_DAYS)]
    back += [after + grace for after in policy.reread_after_days for grace in range(-1, GRACE_DAYS)]
    return {last - timedelta(days=number) for number in back}
