"""The conditions of days as the ledger's accounts, holds and actions decide them. No run is needed for it."""

from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta

import pytest

from ads_pipeline.domain.days.conditions import NEEDS_OPERATOR, Condition, GapReason
from ads_pipeline.domain.days.day_ranges import expand
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.outages import SOURCE_UNAVAILABLE
from ads_pipeline.domain.fetching.quota import Hold
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.operations.notifications.finding import FactFinder
from ads_pipeline.pipeline.days.account_days import AccountDays
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days, find_days, find_gaps
from ads_pipeline_tests.ledger.builders import FakeClock, accepted_runs, action_request, key, publish_runs, run
from ads_pipeline_tests.pipeline.extraction.test_due_days import google_apis

QUERY = key().query_name
ZONES = {"1": "Pacific/Honolulu", "2": "UTC", "3": "Pacific/Kiritimati", "4": None}
FIRST, LAST = key(day=9).logical_date, key(day=12).logical_date
NOON = datetime(2026, 2, 12, 12, tzinfo=UTC)
POLICY = RetryPolicy(max_age=timedelta(days=100_000))


def rules(ledger: Ledger, now: datetime) -> DayRules:
    apis = google_apis()
    return DayRules(
        due_after={QUERY: timedelta(hours=12)},
        now=now,
        accounts=AccountDays.read(ledger, apis, now=now),
        holds=ledger.quota.list_holds(apis.source),
    )


def find(
    ledger: Ledger, now: datetime, conditions: Collection[Condition] = NEEDS_OPERATOR
) -> dict[PartitionKey, DayCondition]:
    window = DayWindow(source="google_ads", query_name=QUERY, since=FIRST, until=LAST)
    starts = ledger.days.first_days("google_ads").of_query(QUERY)
    found = find_days(ledger, window, conditions, first_days=starts, rules=rules(ledger, now))
    assert describe_days(ledger, found, rules(ledger, now)) == found
    return found


@pytest.fixture
def accounts(timed_ledger: Ledger, clock: FakeClock) -> Ledger:
    """An account in each of three zones and one without, each with a readable day and no later one."""
    clock.now = datetime(2026, 2, 10, tzinfo=UTC)
    found = [
        Account(source="google_ads", customer_id=each, status="ENABLED", time_zone=zone)
        for each, zone in ZONES.items()
    ]
    timed_ledger.accounts.record("google_ads", found)
    days = [key(each, day=9) for each in ZONES]
    accepted_runs(timed_ledger, days)
    publish_runs(timed_ledger, *(run(each, "r1") for each in days))
    return timed_ledger


@pytest.mark.parametrize(
    ("now", "last_late"),
    [
        (NOON, {"1": 10, "2": 11, "3": 11, "4": 10}),
        (NOON - timedelta(microseconds=1), {"1": 10, "2": 10, "3": 11, "4": 10}),
        (datetime(2026, 2, 12, 21, 59, tzinfo=UTC), {"1": 10, "2": 11, "3": 11, "4": 10}),
        (datetime(2026, 2, 12, 22, tzinfo=UTC), {"1": 11, "2": 11, "3": 12, "4": 10}),
    ],
)
def test_lateness_follows_the_accounts_own_day(accounts: Ledger, now: datetime, last_late: dict[str, int]) -> None:
    """At noon UTC the day before is late for an account in UTC, and not for one in Honolulu."""
    late = find(accounts, now)
    newest = {each: max(found.logical_date.day for found in late if found.customer_id == each) for each in ZONES}
    assert newest == last_late
    window = DayWindow(source="google_ads", query_name=QUERY, since=FIRST, until=LAST)
    first_days = accounts.days.first_days("google_ads")
    gaps = find_gaps(accounts, window, first_days=first_days, rules=rules(accounts, now))
    assert gaps.expected == sum(day - FIRST.day + 1 for day in last_late.values())
    assert dict(expand(gaps.ranges)) == late


@pytest.mark.invariant("L7", "L8")
def test_late_day_has_ended_for_commands_and_report(accounts: Ledger) -> None:
    """Commands accept each late day and the report reaches it, also before the day has ended in UTC."""
    evening = rules(accounts, datetime(2026, 2, 12, 22, tzinfo=UTC))
    late = find(accounts, evening.now)
    assert {each for each in late if each.logical_date > evening.last_ended_day(each)} == set()
    assert evening.newest_due_day() == max(each.logical_date for each in late) == evening.now.date()


@pytest.mark.invariant("L9")
def test_overdue_day_is_notified_at_the_deadline_of_its_account(accounts: Ledger) -> None:
    """Each day once, in the tick after its own deadline."""
    finder = FactFinder(
        ledger=accounts, source="google_ads", policy=POLICY, read_rules=lambda now: rules(accounts, now)
    )

    def told(since: datetime, until: datetime) -> set[tuple[str, date]]:
        facts = finder.of_deadlines(since, until)
        return {(fact.key.customer_id, fact.key.logical_date) for fact in facts if fact.key is not None}

    day = {each: key(day=each).logical_date for each in (10, 11, 12)}
    before, evening = NOON - timedelta(seconds=1), datetime(2026, 2, 12, 22, tzinfo=UTC)
    assert told(before, NOON) == {("2", day[11])}
    assert told(NOON, evening - timedelta(seconds=1)) == set()
    assert told(NOON, evening) == {("1", day[11]), ("3", day[12])}
    assert told(evening, datetime(2026, 2, 13, tzinfo=UTC)) == {("4", day[11])}


@pytest.mark.invariant("L2", "L9")
def test_wait_for_a_quota_needs_nobody(accounts: Ledger, clock: FakeClock) -> None:
    """Neither a day whose fetch met the quota nor one that was not tried meanwhile. Each says until when."""
    clock.now, until = NOON, NOON + timedelta(hours=3)
    met, untried, other = key("2", day=10), key("2", day=11), key("3", day=10)
    assert {met, untried, other} <= find(accounts, NOON).keys()
    failed = FailedFetch(key=met, error_class="quota_exhausted", error_message="no more today", wait_until=until)
    accounts.failed_fetches.record([failed], POLICY)
    accounts.quota.hold(Hold(source="google_ads", customer_id="2", until=until, why="the quota is used up"))
    assert {met, untried}.isdisjoint(find(accounts, NOON))
    assert other in find(accounts, NOON)
    waiting = find(accounts, NOON, [Condition.IN_PROGRESS])
    assert {each: day.gap for each, day in waiting.items()} == {met: GapReason.QUOTA, untried: GapReason.QUOTA}
    assert {day.reason for day in waiting.values()} == {
        "its fetch waits for the quota: it is tried again from 2026-02-12 15:00 UTC on"
    }
    over = until + timedelta(hours=6)
    assert {met, untried} <= find(accounts, over).keys()
    finder = FactFinder(
        ledger=accounts, source="google_ads", policy=POLICY, read_rules=lambda now: rules(accounts, now)
    )
    second = timedelta(seconds=1)
    assert {fact.key for fact in finder.of_deadlines(NOON - second, NOON)}.isdisjoint({met, untried})
    assert list(finder.of_ended_waits(NOON, over - second)) == []
    assert [(fact.kind, fact.key) for fact in finder.of_ended_waits(over - second, over)] == [(Condition.LATE, met)]


def test_outage_without_a_known_end_needs_somebody(accounts: Ledger, clock: FakeClock) -> None:
    """Nobody knows when the source answers again, so the days that it delays are late."""
    clock.now = NOON
    away = Hold(source="google_ads", until=NOON + timedelta(hours=1), why="away", error_class=SOURCE_UNAVAILABLE)
    accounts.quota.hold(away)
    assert key("2", day=11) in find(accounts, NOON)


@pytest.mark.invariant("L2", "L9")
def test_acknowledged_days_are_neither_listed_nor_notified(accounts: Ledger, clock: FakeClock) -> None:
    """They stay gaps. A day that becomes late afterwards is not acknowledged with them."""
    clock.now = NOON
    known = find(accounts, NOON)
    accounts.actions.execute(Action.ACKNOWLEDGE, known, action_request(reason="the source is away"))
    assert find(accounts, NOON) == {}
    gaps = find(accounts, NOON, [Condition.ACKNOWLEDGED])
    assert gaps.keys() == known.keys()
    assert {day.gap for day in gaps.values()} == {GapReason.NOTHING_SEALED}
    finder = FactFinder(
        ledger=accounts, source="google_ads", policy=POLICY, read_rules=lambda now: rules(accounts, now)
    )
    assert list(finder.of_deadlines(NOON - timedelta(days=9), NOON)) == []
    assert find(accounts, NOON + timedelta(hours=10)).keys() == {key("1", day=11), key("3", day=12)}
