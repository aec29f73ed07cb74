"""Finds the days that a source which fetches should ask for now: closed days without a run, and days to read again.

Older days without a run are requested when the customer was fetched before them: they are missing, such as after a
parking that was lifted. A customer that was never fetched needs a backfill for them.

Failed fetches are left to the retry queue. A reread that fails is repeated by the delays of the retry policy, and
then once a day, until the day has settled figures or is older than the days that are caught up. A day is requested in
the account's own time.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Final, NamedTuple

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.days.materialization_status import FreshnessPolicy, StaleReason
from ads_pipeline.domain.days.settlement import ReportState, find_report_state, find_zone, settles_at
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.retry_forecast import ScheduledRetry
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey, days_between
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.google_ads.requests.ranges import cut_ranges
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.ledger.state.first_days import FirstDays
from ads_pipeline.pipeline.days.account_days import AccountDays
from ads_pipeline.pipeline.days.staleness import PartitionStaleness, StalenessCalculator

GRACE_DAYS: Final = 7  # how long after its deadline a day is still requested, such as after an outage
CATCH_UP_DAYS: Final = 92  # how far back the missing days of a customer are fetched, such as those of a parking
REREAD_PAUSE: Final = timedelta(days=1)  # between rereads that fail, after the tries of the retry policy
FIRST_ZONE: Final = timezone(timedelta(hours=14))  # the first zone in which a day ends
KEYS_PER_BATCH: Final = 10_000


_UnsettledDays = dict[date, datetime | None]  # each with the time since when its figures should be settled


class _Candidate(NamedTuple):
    """A day that may be due. `is_required`: it is fetched if it never was. `is_read_again`: its reread may be due.

    `settled_at` is since when its figures should be settled, if they were extracted before.
    """

    key: PartitionKey
    is_required: bool
    is_read_again: bool
    settled_at: datetime | None = None


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
                reason = _find_reason(candidate, states[key], stale[key], scheduled.get(key))
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
            unsettled = self._find_unsettled(name, fetched)
            for account in fetched:
                last, lookback = self._last_closed_day(account), self.days.find_lookback(account.customer_id, name)
                required = {last - timedelta(days=number) for number in range(GRACE_DAYS)}
                required |= missing[account.customer_id]
                policy = query.freshness_policy.settling_after(lookback)
                late = [last - timedelta(days=number) for number in range(GRACE_DAYS)]
                missed = _select_missed(unsettled[account.customer_id], last, policy)
                reread = {day for each in late for day in days_to_reread(each, policy)} | missed.keys()
                for day in sorted(required | reread):
                    if day >= apis.start_date:
                        key = PartitionKey(
                            source=apis.source, customer_id=account.customer_id, query_name=name, logical_date=day
                        )
                        if self.days.find_obstacle(key) is None:
                            yield _Candidate(key, day in required, day in reread, missed.get(day))

    def _find_missing(self, query_name: str, customers: set[str], first_days: FirstDays) -> Mapping[str, set[date]]:
        """The days that nothing is recorded of, from the first fetched day of each customer on."""
        starts = {each: days for each, days in first_days.of_query(query_name).items() if each in customers}
        missing, today = defaultdict[str, set[date]](set), self.days.now.date()
        if starts:
            window = DayWindow(
                source=self.days.apis.source,
                query_name=query_name,
                since=today - timedelta(days=CATCH_UP_DAYS),
                until=today,
                customers=starts.keys(),
            )
            for customer, first, last in self.ledger.days.absent(window, starts):
                missing[customer].update(days_between(first, last))
        return missing

    def _find_unsettled(self, query_name: str, accounts: Sequence[Account]) -> Mapping[str, _UnsettledDays]:
        """The days whose figures should be settled by now and were extracted before, and those whose reread failed.

        The former with the time since when they should be: their last reread is missing.
        """
        source, now, lookbacks = self.days.apis.source, self.days.now, defaultdict[int, set[str]](set)
        for account in accounts:
            lookbacks[self.days.find_lookback(account.customer_id, query_name)].add(account.customer_id)
        found = defaultdict[str, _UnsettledDays](dict)
        for lookback, customers in lookbacks.items():
            last = now.date() - timedelta(days=lookback)
            times = {
                day: settles_at(day, FIRST_ZONE, lookback)
                for day in (last - timedelta(days=number) for number in range(CATCH_UP_DAYS))
            }
            for customer, day, extracted_at in self.ledger.days.extracted_before(source, query_name, times):
                key = PartitionKey(source=source, customer_id=customer, query_name=query_name, logical_date=day)
                settled_from = self.days.settles_at(key)
                is_provisional = find_report_state(extracted_at, settled_from) is ReportState.PROVISIONAL
                if customer in customers and is_provisional and settled_from <= now:
                    found[customer][day] = settled_from
        oldest = now.date() - timedelta(days=max(lookbacks, default=0) + CATCH_UP_DAYS)
        for key in self.ledger.retry_queue.list_failed_rereads(source, query_name, oldest):
            found[key.customer_id].setdefault(key.logical_date, None)
        return found

    def _last_closed_day(self, account: Account) -> date:
        local = self.days.now.astimezone(find_zone(account.time_zone)) - self.days.limits.close_lag
        return local.date() - timedelta(days=1)

    def _is_retried(self, scheduled: ScheduledRetry | None, stale: PartitionStaleness) -> bool:
        """Return whether the retry queue decides about the day: its last fetch failed after the readable data."""
        if scheduled is None:
            return False
        status = stale.raw.status
        if status is not None and status.last_materialization_at is not None:
            if scheduled.failed_at < status.last_materialization_at:
                return False
            # A failed reread leaves a success, which the retry queue does not repeat: wait here as it would.
            if scheduled.failures >= self.policy.max_attempts:
                return self.days.now < scheduled.failed_at + REREAD_PAUSE
            return scheduled.due_at is None or scheduled.due_at > self.days.now
        return True


def _find_reason(
    candidate: _Candidate, state: PartitionState, stale: PartitionStaleness, scheduled: ScheduledRetry | None
) -> str | None:
    if state.status is Status.SUCCESS:
        found, settled_at = stale.raw.stale, candidate.settled_at
        is_stale = found is not None and StaleReason.FRESHNESS_POLICY in found.reasons
        since = found.since if found is not None and is_stale else settled_at
        if not candidate.is_read_again or since is None:
            return None
        failed = f", its fetch failed at {scheduled.failed_at}" if scheduled is not None else ""
        return f"to be read again since {since:%Y-%m-%d %H:%M}Z{failed}"
    # A pending day with attempts was requeued, which the retry queue follows, or an operator has withdrawn it.
    is_new = state.status is Status.PENDING and state.attempt_count == 0 and candidate.is_required
    return "closed and not fetched" if is_new else None


def _select_missed(unsettled: _UnsettledDays, last: date, policy: FreshnessPolicy) -> _UnsettledDays:
    """The days whose last reread is missing. One that still waits for the close of a day is not missing yet."""
    settled = last - timedelta(days=max(policy.reread_after_days, default=0))
    return {day: since for day, since in unsettled.items() if since is None or day <= settled}


def days_to_reread(last: date, policy: FreshnessPolicy) -> list[date]:
    """The days that are read again once the account's last day is closed.

    Their deadlines passed when that day ended. They wait for its close, so that one request fetches them with it.
    """
    return [last - timedelta(days=after) for after in policy.reread_after_days]


def fetched_together(keys: Iterable[PartitionKey]) -> list[tuple[PartitionKey, ...]]:
    """The partitions in groups that one request of the source fetches."""
    return [each.keys for each in cut_ranges(keys)]
