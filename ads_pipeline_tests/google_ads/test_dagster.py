"""Extraction through Dagster: discovery makes customers, and materializing their days fetches them in ranges."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import Behaviour, Scenario
from ads_pipeline.ledger.events.new_events import read_events_after, read_position
from ads_pipeline.operations.notifications.finding import EVENT_TYPES, FactFinder
from ads_pipeline.operations.notifications.notices import Incident
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import CUSTOMERS
from ads_pipeline.pipeline.days.day_conditions import DayRules
from ads_pipeline.settings.query_file import narrow_query_file
from ads_pipeline_tests.builders import key
from ads_pipeline_tests.google_ads.agency import CANCELED, DENIED, DISABLED, GOOD, REFUSED, agency
from ads_pipeline_tests.google_ads.builders import LOGIN, failing
from ads_pipeline_tests.orchestration.builders import Location, open_location
from ads_pipeline_tests.orchestration.sensors import ticks
from ads_pipeline_tests.pipeline.builders import visible_runs

DAYS = 30
QUERIES = ("campaign_daily",)


@pytest.fixture
def location(server: LoopbackServer, tmp_path: Path, spark: SparkSession) -> Iterator[Location]:
    with open_location(
        tmp_path / "home", spark, start_date=first_day(), google_ads=str(server.configuration)
    ) as opened:
        yield opened


def first_day() -> date:
    return datetime.now(UTC).date() - timedelta(days=DAYS + 3)


def days_of(customers: tuple[str, ...], query: str, days: int = DAYS) -> list[PartitionKey]:
    return [
        key(customer, query_name=query, day=first_day() + timedelta(days=n))
        for customer in customers
        for n in range(days)
    ]


def discover(location: Location) -> dg.ExecuteInProcessResult:
    job = location.defs.resolve_job_def("discover_accounts")
    return job.execute_in_process(instance=location.instance, raise_on_error=False)


def fetch(location: Location, keys: list[PartitionKey]) -> dg.ExecuteInProcessResult:
    query = keys[0].query_name
    return location.run(keys, [Names().raw(query), Names().warehouse(query)])


@pytest.mark.timeout(1200)
def test_agency_is_fetched_within_its_operations(server: LoopbackServer, location: Location) -> None:
    """Thirty days of an account are one operation; refused accounts cost one in all, the cancelled one none.

    `test_agency_backfill` has all accounts and both queries.
    """
    good = GOOD[:2]
    server.answer(agency(good))
    assert discover(location).success
    customers = set(location.instance.get_dynamic_partitions(CUSTOMERS))
    assert customers == {*good, *REFUSED}
    discovered = Counter(server.operations())
    windows = dict.fromkeys((*good, DISABLED, DENIED), 1)
    assert discovered == {"list_accessible_customers": 1, LOGIN: 1, **windows}

    wanted = [each for query in QUERIES for each in days_of(good, query)]
    for query in QUERIES:
        assert fetch(location, days_of(tuple(sorted(customers)), query)).success
    assert Counter(server.operations()) - discovered == {**dict.fromkeys(good, len(QUERIES)), DISABLED: 1, DENIED: 1}

    ledger = location.deployment.ledger
    assert {each.status for each in ledger.states.get_many(wanted).values()} == {Status.SUCCESS}
    assert visible_runs(location.deployment).keys() == set(days_of(good, "campaign_daily"))
    parked = {each.name: each.error_class for each in ledger.retry_queue.list_parkings("google_ads")}
    assert parked == {
        CANCELED: "account_canceled",
        DISABLED: "customer_not_enabled",
        DENIED: "permission_denied",
    }


@pytest.mark.timeout(1200)
def test_second_fetch_follows_a_restatement(server: LoopbackServer, location: Location) -> None:
    """Materializing fetched days again fetches them again; the warehouse follows, and the attempts count.

    A fetch that fails, and one that is skipped because the account is parked, materialize nothing and keep the rows.
    """
    customers, ledger = GOOD[:2], location.deployment.ledger
    wanted = days_of(customers, "campaign_daily", 3)
    server.answer(agency())
    location.add_customers(*map(int, customers))
    assert fetch(location, wanted[:3]).success
    before = visible_runs(location.deployment)
    server.answer(agency(revision=2))
    again = fetch(location, wanted[:3])
    assert again.success
    shown = again.asset_materializations_for_node("raw__campaign_daily")[0].metadata
    assert shown["range"].value == [wanted[0].logical_date.isoformat(), wanted[2].logical_date.isoformat()]
    assert str(shown["request_id"].value).startswith("request-")
    settled = (False, "103")  # 33 days old, with a lookback of 30 days
    assert (shown["provisional"].value, shown["query_resource_consumption"].value) == settled
    after = visible_runs(location.deployment)
    assert before.keys() == after.keys() == set(wanted[:3])
    assert all(before[each] != after[each] for each in after)
    assert {state.attempt_count for state in ledger.states.get_many(wanted[:3]).values()} == {2}
    assert server.operations() == {customers[0]: 2}
    refused = failing("authorization_error", "USER_PERMISSION_DENIED", code="PERMISSION_DENIED")
    server.answer(Scenario(customers={customers[0]: Behaviour(failure=refused)}))
    failed, skipped = fetch(location, wanted[:3]), fetch(location, wanted[:3])
    for run in (failed, skipped):
        assert run.asset_materializations_for_node("raw__campaign_daily") == []
        assert run.asset_materializations_for_node("warehouse__campaign_daily") == []
    assert visible_runs(location.deployment) == after
    assert server.operations() == {customers[0]: 3}


def test_day_that_is_not_closed_is_skipped_and_green(
    server: LoopbackServer, tmp_path: Path, spark: SparkSession
) -> None:
    """A run of a day that is not closed succeeds, fetches nothing, and emits StepSkipped with the reason."""
    home = tmp_path / "home"
    home.mkdir()
    late = "google_ads:\n  close_lag_hours: 48\n"  # so that yesterday is open at every hour
    (home / "google_apis.yaml").write_text(late + narrow_query_file(first_day(), ["campaign_daily"]))
    server.answer(agency())
    with open_location(home, spark, google_ads=str(server.configuration)) as location:
        location.add_customers(int(GOOD[0]))
        yesterday = key(GOOD[0], day=datetime.now(UTC).date() - timedelta(days=1))
        result = location.run([yesterday], [Names().raw("campaign_daily")])
        assert result.success
        assert server.operations() == {}
        events = location.deployment.ledger.events.fetch(result.run_id)
    skipped = [each.event for each in events if each.event.event_type == "StepSkipped"]
    assert [each.step_id for each in skipped] == [str(yesterday)]
    assert "the day is not closed" in str(skipped[0].event_data)


def test_failed_discovery_loses_no_account(server: LoopbackServer, location: Location) -> None:
    """When no login can be asked, because the token is refused, the run fails and an operator is told. No account is
    gone, and none is parked for it."""
    good = GOOD[:2]
    server.answer(agency(good))
    assert discover(location).success
    before = location.deployment.ledger.accounts.by_id("google_ads")
    server.answer(replace(agency(good), refuse_token=True))
    position = read_position(location.deployment.ledger.engine, datetime.now(UTC))
    failed = discover(location)
    assert not failed.success
    (step,) = (event for event in failed.all_events if event.event_type_value == "STEP_FAILURE")
    assert "no account was read: no answer from the credentials: credentials_refused" in str(step.event_specific_data)
    finder = FactFinder(
        ledger=location.deployment.ledger,
        source="google_ads",
        policy=location.settings.retry_policy,
        read_rules=lambda now: DayRules(due_after={}, now=now),
    )
    now = datetime.now(UTC)
    events, _position = read_events_after(location.deployment.ledger.engine, position, EVENT_TYPES, now=now)
    assert [(each.kind, each.subject) for each in finder.of_events(events, now)] == [
        (Incident.DISCOVERY_FAILED, "google_ads")
    ]
    after = location.deployment.ledger.accounts.by_id("google_ads")
    assert {customer: account.gone_at for customer, account in after.items()} == dict.fromkeys(before)
    parked = {each.name for each in location.deployment.ledger.retry_queue.list_parkings("google_ads")}
    assert parked == {CANCELED}


def test_closed_days_are_requested_for_every_account(server: LoopbackServer, location: Location) -> None:
    """The sensor asks for the newest closed week of each account that is not parked, in few runs."""
    server.answer(agency())
    assert discover(location).success
    result = ticks.tick(location, "days_due")
    requests = result.run_requests or []
    due = {partition for each in requests for partition in ticks.due_partitions(each)}
    assert {each.query_name for each in due} == set(location.settings.google_apis.queries)
    assert CANCELED not in {each.customer_id for each in due}
    assert len(requests) == 1, "fresh days and older ones are one request of each account and query"
    assert server.operations().keys() & set(GOOD) == set(GOOD)  # conversion windows alone


def test_new_accounts_are_requested_by_the_next_ticks(server: LoopbackServer, location: Location) -> None:
    """A tick before discovery, and one that adds customers to Dagster, do not delay the first fetch."""
    tick, ledger = ticks.tick, location.deployment.ledger
    interval = location.defs.resolve_sensor_def("days_due").minimum_interval_seconds
    assert interval is not None
    assert interval <= 60
    before = tick(location, "days_due")
    assert before.run_requests == []
    assert tick(location, "days_due", cursor=before.cursor).skip_reason != before.skip_reason
    account = Account(source="google_ads", customer_id=GOOD[0], status="ENABLED", time_zone="Etc/UTC")
    ledger.accounts.record("google_ads", [account])  # as the command line does, which does not know Dagster
    added = tick(location, "days_due", cursor=before.cursor)
    assert added.dynamic_partitions_requests
    requested = tick(location, "days_due", cursor=added.cursor)
    assert requested.run_requests
    again = tick(location, "days_due", cursor=requested.cursor)
    assert (again.run_requests, again.cursor) == ([], requested.cursor)
