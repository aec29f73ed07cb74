"""Finds the days that a source which fetches should ask for now: closed days without a run, and days to read again.

Older days without a run are requested when the customer was fetched before them: they are missing, such as after a
parking that was lifted. A customer that was never fetched needs a backfill for them.

Failed fetches are left to the retry queue. A day is requested in the account's own time.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, NamedTuple

from ads_pipeline.domain.accounts import Account
from ads_pipeline.domain.freshness import FreshnessPolicy, StaleReason
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import RetryPolicy
from ads_pipeline.domain.sequences import split_batches
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.google_ads.ranges import cut_ranges
from ads_pipeline.google_ads.windows import find_zone
from ads_pipeline.ledger.control.retries import ScheduledRetry
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.state.days import FirstDays
from ads_pipeline.ledger.values import DayWindow
from ads_pipeline.pipeline.extraction.account_days import AccountDays
from ads_pipeline.pipeline.staleness import PartitionStaleness, StalenessCalculator

GRACE_DAYS: Final = 7  # how long after its deadline a day is still requested, such as after an outage
CATCH_UP_DAYS: Final = 92  # how far back the missing days of a customer are fetched, such as those of a parking
KEYS_PER_BATCH: Final = 10_000


class _Candidate(NamedTuple):
    """A day that may be due. `is_required`: it is fetched if it never was. `is_read_again`: its reread may be due."""

    key: PartitionKey
    is_required: bool
    is_read_again: bool


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
        for candidates in split_batches(self._candidates(), KEYS_PER_BATCH):
            batch = [each.key for each in candidates]
            states = self.ledger.states.get_many(batch)
            scheduled = self.ledger.retry_queue.find_scheduled(batch)
            unjudged = {run.key for run in self.ledger.runs.unjudged(batch)}
            stale = calculator.calculate(self.ledger.statuses, batch, now=self.days.now)
            for candidate in candidates:
                key = candidate.key
                reason = _find_reason(candidate, states[key], stale[key])
                if reason and key not in unjudged and not self._is_retried(scheduled.get(key), stale[key]):
                    found[key] = reason
        return found

    def _candidates(self) -> Iterator[_Candidate]:
        """The newest closed days of each account and query, missing ones, and those whose reread may be due."""
        apis = self.days.apis
        parkings = self.ledger.retry_queue.list_parkings(apis.source)
        first_days = self.ledger.days.first_days(apis.source)
        accounts = [each for each in self.days.accounts.values() if not each.is_manager and each.gone_at is None]
        for name, query in apis.queries.items():
            fetched = [
                each for each in accounts if not any(parking.covers(each.customer_id, name) for parking in parkings)
            ]
            missing = self._find_missing(name, {each.customer_id for each in fetched}, first_days)
            for account in fetched:
                last, lookback = self._last_closed_day(account), self.days.find_lookback(account.customer_id, name)
                required = {last - timedelta(days=number) for number in range(GRACE_DAYS)}
                required |= missing[account.customer_id]
                policy = query.freshness_policy.settling_after(lookback)
                late = [last - timedelta(days=number) for number in range(GRACE_DAYS)]
                reread = {day for each in late for day in days_to_reread(each, policy)}
                for day in sorted(required | reread):
                    if day >= apis.start_date:
                        key = PartitionKey(
                            source=apis.source, customer_id=account.customer_id, query_name=name, logical_date=day
                        )
                        if self.days.find_obstacle(key) is None:
                            yield _Candidate(key, day in required, day in reread)

    def _find_missing(self, query_name: str, customers: set[str], first_days: FirstDays) -> Mapping[str, set[date]]:
        """The days that nothing is recorded of, from the first fetched day of each customer on."""
        starts = {each: day for each, day in first_days.of_query(query_name).items() if each in customers}
        missing, today = defaultdict[str, set[date]](set), self.days.now.date()
        if starts:
            window = DayWindow(
                source=self.days.apis.source,
                query_name=query_name,
                since=today - timedelta(days=CATCH_UP_DAYS),
                until=today,
                customers=starts.keys(),
            )
            for customer, day in self.ledger.days.absent(window, starts):
                missing[customer].add(day)
        return missing

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


def _find_reason(candidate: _Candidate, state: PartitionState, stale: PartitionStaleness) -> str | None:
    if state.status is Status.SUCCESS:
        found = stale.raw.stale
        if not candidate.is_read_again or found is None or StaleReason.FRESHNESS_POLICY not in found.reasons:
            return None
        return f"to be read again since {found.since:%Y-%m-%d %H:%M}Z"
    # A pending day with attempts was requeued, which the retry queue follows, or an operator has withdrawn it.
    is_new = state.status is Status.PENDING and state.attempt_count == 0 and candidate.is_required
    return "closed and not fetched" if is_new else None


def days_to_reread(last: date, policy: FreshnessPolicy) -> list[date]:
    """The days that are read again once the account's last day is closed.

    Their deadlines passed when that day ended. They wait for its close, so that one request fetches them with it.
    """
    return [last - timedelta(days=after) for after in policy.reread_after_days]


def fetched_together(keys: Iterable[PartitionKey]) -> list[tuple[PartitionKey, ...]]:
    """The partitions in groups that one request of the source fetches."""
    return [each.keys for each in cut_ranges(keys)]
