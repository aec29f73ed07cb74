"""The days that a source which fetches asks for: closed ones without a run, and those to read again."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ads_pipeline.domain.days.settlement import ReportState
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.days.account_days import AccountDays
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days
from ads_pipeline.pipeline.days.staleness import StalenessCalculator
from ads_pipeline.pipeline.extraction.due_days import CATCH_UP_DAYS, REREAD_PAUSE, DueDays
from ads_pipeline.settings.extraction_section import DEFAULT_LOOKBACK_DAYS
from ads_pipeline.settings.query_file import GoogleApis
from ads_pipeline_tests.builders import sealed_run
from ads_pipeline_tests.ledger.builders import FakeClock, acceptance, accepted_runs, action_request, publish_runs
from ads_pipeline_tests.ledger.builders import key as ledger_key

LOS_ANGELES, KIRITIMATI, UNKNOWN = "1000000001", "1000000002", "1000000003"
ZONES = {LOS_ANGELES: "America/Los_Angeles", KIRITIMATI: "Pacific/Kiritimati", UNKNOWN: None}
POLICY = RetryPolicy()


def google_apis(**changes: Any) -> GoogleApis:
    document: Mapping[str, Any] = {
        "source": "google_ads",
        "api_version": "v26",
        "start_date": "2026-02-03",
        "queries": {
            "campaign_daily": {
                "schema_version": "2",
                "gaql": "SELECT segments.date, customer.id FROM campaign",
                "reread_after_days": [7],
            }
        },
    }
    return GoogleApis.model_validate({**document, **changes})


def key(customer: str, day: int) -> PartitionKey:
    return ledger_key(customer, day=day)


def discover(ledger: Ledger, *customers: str, status: str = "ENABLED") -> None:
    found = [
        Account(source="google_ads", customer_id=each, status=status, time_zone=ZONES[each]) for each in customers
    ]
    ledger.accounts.record("google_ads", found)


def due(ledger: Ledger, now: datetime, apis: GoogleApis | None = None) -> dict[PartitionKey, str]:
    apis = apis or google_apis()
    days = AccountDays(apis=apis, accounts=ledger.accounts.by_id(apis.source), now=now)
    return DueDays(ledger=ledger, days=days, policy=POLICY).find()


@pytest.mark.parametrize(
    ("customer", "closes_at"),
    [
        (LOS_ANGELES, datetime(2026, 2, 11, 11, tzinfo=UTC)),  # 8 hours behind, and 3 hours of lag
        (KIRITIMATI, datetime(2026, 2, 10, 13, tzinfo=UTC)),  # 14 hours ahead
        (UNKNOWN, datetime(2026, 2, 11, 15, tzinfo=UTC)),  # the last zone in which a day ends
    ],
)
def test_day_is_due_when_it_closes_in_the_accounts_zone(
    timed_ledger: Ledger, customer: str, closes_at: datetime
) -> None:
    """One second before, the day before it is the newest; from then on it is due with the week that it ends."""
    discover(timed_ledger, customer)
    before = due(timed_ledger, closes_at - timedelta(seconds=1))
    assert max(before) == key(customer, 9)
    assert due(timed_ledger, closes_at) == {key(customer, day): "closed and not fetched" for day in range(4, 11)}


def test_parked_gone_and_manager_accounts_are_not_due(timed_ledger: Ledger) -> None:
    """A parked query or source stops all of them."""
    now = datetime(2026, 2, 12, tzinfo=UTC)
    discover(timed_ledger, LOS_ANGELES, KIRITIMATI)
    assert {each.customer_id for each in due(timed_ledger, now)} == {LOS_ANGELES, KIRITIMATI}
    discover(timed_ledger, LOS_ANGELES)
    assert {each.customer_id for each in due(timed_ledger, now)} == {LOS_ANGELES}
    failed = FailedFetch(key=key(LOS_ANGELES, 4), error_class="credentials_refused", error_message="no")
    timed_ledger.failed_fetches.record([failed], POLICY)
    assert due(timed_ledger, now) == {}


def test_days_of_a_lifted_parking_are_due(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Also those older than a week, after the customer's first fetched day. A new customer needs a backfill."""
    clock.now = datetime(2026, 2, 6, tzinfo=UTC)
    discover(timed_ledger, KIRITIMATI, LOS_ANGELES)
    accepted_runs(timed_ledger, [key(KIRITIMATI, 4)])
    refused = FailedFetch(key=key(KIRITIMATI, 5), error_class="customer_not_enabled", error_message="no")
    timed_ledger.failed_fetches.record([refused], POLICY)
    clock.now = datetime(2026, 2, 28, tzinfo=UTC)
    assert {each.customer_id for each in due(timed_ledger, clock.now)} == {LOS_ANGELES}
    (parking,) = timed_ledger.retry_queue.list_parkings("google_ads")
    timed_ledger.actions.release(parking, action_request("release"))
    found = due(timed_ledger, clock.now)
    days = {name: {each.logical_date.day for each in found if each.customer_id == name} for name in ZONES}
    assert days[KIRITIMATI] == set(range(6, 28))  # the retry queue has the 5th
    assert days[LOS_ANGELES] == set(range(20, 27))


def test_missing_days_are_caught_up_within_three_months(timed_ledger: Ledger) -> None:
    """Older ones need a backfill."""
    now = datetime(2026, 9, 1, tzinfo=UTC)
    discover(timed_ledger, KIRITIMATI)
    accepted_runs(timed_ledger, [key(KIRITIMATI, 4)])
    found = {each.logical_date for each in due(timed_ledger, now)}
    assert min(found) == now.date() - timedelta(days=CATCH_UP_DAYS)
    assert len(found) == CATCH_UP_DAYS


def test_accepted_day_is_due_again_at_its_deadlines(timed_ledger: Ledger, clock: FakeClock) -> None:
    """After the 7 days of the policy, and a day after the conversion window, counted from the account's day end.

    It waits until the day that ends at the deadline is closed: then one request fetches both.
    """
    discover(timed_ledger, KIRITIMATI)
    timed_ledger.accounts.record_lookbacks("google_ads", {KIRITIMATI: 20})
    partition, day_end = key(KIRITIMATI, 3), datetime(2026, 2, 3, 10, tzinfo=UTC)
    for number, deadline in enumerate([day_end + timedelta(days=7), day_end + timedelta(days=21)]):
        clock.now = day_end + timedelta(hours=3 + number * 24 * 7)
        accepted_runs(timed_ledger, [partition], f"r{number}")
        closes = deadline + timedelta(hours=3)
        assert partition not in due(timed_ledger, closes - timedelta(seconds=1))
        found = due(timed_ledger, closes)
        assert found[partition] == f"to be read again since {deadline:%Y-%m-%d %H:%M}Z"
    clock.now = day_end + timedelta(days=21, hours=1)
    accepted_runs(timed_ledger, [partition], "r9")
    assert partition not in due(timed_ledger, clock.now + timedelta(days=5))


def test_account_without_conversion_actions_settles_by_the_settings(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Its manager may track its conversions: the day is provisional for `lookback_days`, not for a day."""
    discover(timed_ledger, KIRITIMATI)
    timed_ledger.accounts.record_lookbacks("google_ads", {KIRITIMATI: None})
    days = AccountDays.read(timed_ledger, google_apis(), now=clock.now)
    partition, day_end = key(KIRITIMATI, 3), datetime(2026, 2, 3, 10, tzinfo=UTC)
    assert days.settles_at(partition) == day_end + timedelta(days=DEFAULT_LOOKBACK_DAYS + 1)


def test_without_known_account_days_end_at_midnight_utc(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Runs of outside extractors are stale as before: by the policy alone."""
    clock.now = datetime(2026, 2, 4, 1, tzinfo=UTC)
    partition = key(LOS_ANGELES, 3)
    accepted_runs(timed_ledger, [partition])
    for hours, is_stale in ((0, False), (1, True), (24 * 60, True)):
        now = datetime(2026, 2, 11, tzinfo=UTC) + timedelta(hours=hours)
        calculator = StalenessCalculator.of_ledger(timed_ledger, google_apis(), now=now)
        stale = calculator.calculate(timed_ledger.statuses, [partition], now=now)[partition].raw.stale
        assert (stale is not None) is is_stale
    assert due(timed_ledger, datetime(2026, 2, 12, tzinfo=UTC)) == {}


def test_failed_fetches_are_left_to_the_retry_queue(timed_ledger: Ledger, clock: FakeClock) -> None:
    """A day that waits is not asked for; a failed reread waits until its retry is due."""
    clock.now = datetime(2026, 2, 4, 13, tzinfo=UTC)
    discover(timed_ledger, KIRITIMATI)
    waiting, reread = key(KIRITIMATI, 12), key(KIRITIMATI, 3)
    accepted_runs(timed_ledger, [reread])
    clock.now = datetime(2026, 2, 13, tzinfo=UTC)
    assert {waiting, reread} <= due(timed_ledger, clock.now).keys()
    until = clock.now + timedelta(hours=5)
    failures = [
        FailedFetch(key=each, error_class="quota_exhausted", error_message="no operations left", wait_until=until)
        for each in (waiting, reread)
    ]
    timed_ledger.failed_fetches.record(failures, POLICY)
    assert not {waiting, reread} & due(timed_ledger, until - timedelta(seconds=1)).keys()
    assert {waiting, reread} & due(timed_ledger, until).keys() == {reread}


def test_withdrawn_day_is_not_asked_for(timed_ledger: Ledger, clock: FakeClock) -> None:
    """An operator has hidden it; a new run would show it again."""
    clock.now = datetime(2026, 2, 12, tzinfo=UTC)
    discover(timed_ledger, KIRITIMATI)
    accepted_runs(timed_ledger, [key(KIRITIMATI, 10)])
    timed_ledger.actions.execute(Action.WITHDRAW, [key(KIRITIMATI, 10)], action_request())
    assert key(KIRITIMATI, 10) not in due(timed_ledger, clock.now)


def test_days_out_of_reach_are_never_due(timed_ledger: Ledger) -> None:
    """The source would answer without rows, which would empty a good day."""
    discover(timed_ledger, KIRITIMATI)
    apis = google_apis(google_ads={"reach_days": 1})
    found = due(timed_ledger, datetime(2026, 2, 12, tzinfo=UTC), apis)
    assert {each.logical_date.day for each in found} == {11}


def accept(ledger: Ledger, partition: PartitionKey, run_id: str, extracted_at: datetime) -> None:
    """A published run with the time of its extraction, as the seal has it."""
    sealed = Run(key=partition, run_id=run_id)
    registration = sealed_run(sealed, 3, schema_version="2", extracted_at=extracted_at)
    ledger.registrations.register([registration])
    ledger.verdicts.record([acceptance(sealed)])
    publish_runs(ledger, sealed)


def report_of(ledger: Ledger, partition: PartitionKey, now: datetime) -> ReportState | None:
    apis = google_apis()
    rules = DayRules(due_after=apis.due_after, now=now, accounts=AccountDays.read(ledger, apis, now=now))
    return describe_days(ledger, [partition], rules)[partition].report


@pytest.mark.invariant("L1", "L3")
def test_reread_that_used_up_its_tries_is_repeated_each_day(timed_ledger: Ledger, clock: FakeClock) -> None:
    """It is never dropped: after the tries of the policy it is due once a day, also months later, until it succeeds.

    Meanwhile the day is provisional, although its conversion window has passed.
    """
    discover(timed_ledger, KIRITIMATI)
    timed_ledger.accounts.record_lookbacks("google_ads", {KIRITIMATI: 20})
    partition = key(KIRITIMATI, 3)
    clock.now = datetime(2026, 2, 4, 12, tzinfo=UTC)
    accept(timed_ledger, partition, "r1", clock.now)
    clock.now = datetime(2026, 2, 24, 13, tzinfo=UTC)  # settled from 11:00 on
    for _ in range(POLICY.max_attempts):
        assert partition in due(timed_ledger, clock.now)
        failed = FailedFetch(key=partition, error_class="rows_refused", error_message="a row of another day")
        timed_ledger.failed_fetches.record([failed], POLICY)
        assert partition not in due(timed_ledger, clock.now)
        clock.now += timedelta(hours=3)
    last_failure = clock.now - timedelta(hours=3)
    assert partition not in due(timed_ledger, last_failure + REREAD_PAUSE - timedelta(seconds=1))
    for later in (REREAD_PAUSE, timedelta(days=60)):
        found = due(timed_ledger, last_failure + later)
        assert f"its fetch failed at {last_failure}" in found[partition]
        assert report_of(timed_ledger, partition, last_failure + later) is ReportState.PROVISIONAL
    clock.now = last_failure + timedelta(days=60)
    accept(timed_ledger, partition, "r2", clock.now)
    assert partition not in due(timed_ledger, clock.now + timedelta(days=2))
    assert report_of(timed_ledger, partition, clock.now) is ReportState.SETTLED


@pytest.mark.invariant("L1")
def test_last_reread_is_made_up_after_a_pause_of_the_deployment(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Nothing ran for a month. The days whose conversion window passed meanwhile are read a last time, once."""
    discover(timed_ledger, KIRITIMATI)
    timed_ledger.accounts.record_lookbacks("google_ads", {KIRITIMATI: 20})
    provisional, settled = key(KIRITIMATI, 4), key(KIRITIMATI, 3)
    clock.now = datetime(2026, 2, 5, 12, tzinfo=UTC)
    accept(timed_ledger, provisional, "r1", clock.now)
    accept(timed_ledger, settled, "r1", datetime(2026, 2, 24, 11, tzinfo=UTC))
    clock.now = datetime(2026, 3, 25, tzinfo=UTC)
    found = due(timed_ledger, clock.now)
    assert provisional in found
    assert settled not in found
    assert report_of(timed_ledger, provisional, clock.now) is ReportState.PROVISIONAL
    accept(timed_ledger, provisional, "r2", clock.now)
    assert provisional not in due(timed_ledger, clock.now)


def test_verdict_after_the_conversion_window_settles_nothing(timed_ledger: Ledger, clock: FakeClock) -> None:
    """The time of the extraction decides, not that of the verdict: an old run that is judged late is read again."""
    discover(timed_ledger, KIRITIMATI)
    timed_ledger.accounts.record_lookbacks("google_ads", {KIRITIMATI: 20})
    partition = key(KIRITIMATI, 3)
    clock.now = datetime(2026, 2, 28, tzinfo=UTC)
    accept(timed_ledger, partition, "r1", datetime(2026, 2, 4, 12, tzinfo=UTC))
    assert partition in due(timed_ledger, clock.now)
