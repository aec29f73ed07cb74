"""From which day on the days of a customer and query are expected, as the ledger's runs and failed fetches say."""

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta

import pytest

from ads_pipeline.domain.days.expected_days import ExpectedDays
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.builders import sealed_run
from ads_pipeline_tests.ledger.builders import ROWS, key, run

START, LAST_YEAR, NOW = date(2026, 2, 1), date(2025, 1, 5), datetime(2026, 2, 20, tzinfo=UTC)
QUERY, OTHER = "campaign_daily", "ad_group_daily"


def on(day: date, customer: str = "1", query_name: str = QUERY) -> PartitionKey:
    return replace(key(customer, query_name=query_name), logical_date=day)


def register(ledger: Ledger, *partitions: PartitionKey, at: datetime | None = None) -> None:
    """Register a run of each, extracted at this time, or on the morning after its day."""
    ledger.registrations.register(
        [
            sealed_run(
                run(each, "r1"),
                ROWS,
                extracted_at=at or datetime.combine(each.logical_date + timedelta(days=1), time(5), UTC),
            )
            for each in partitions
        ]
    )


def expected(ledger: Ledger, query_name: str = QUERY, customer: str = "1") -> ExpectedDays:
    """The same for all customers and for this one."""
    found = ledger.days.first_days("google_ads").of_query(query_name).get(customer, ExpectedDays())
    assert (
        ledger.days.first_days("google_ads", [customer]).of_query(query_name).get(customer, ExpectedDays()) == found
    )
    return found


def fail_fetch(ledger: Ledger, partition: PartitionKey, at: datetime) -> None:
    failure = FailedFetch(key=partition, failure_id="f1", error_class="timeout", error_message="slow", failed_at=at)
    ledger.failed_fetches.record([failure], RetryPolicy())


def test_late_run_of_last_year_begins_nothing(ledger: Ledger) -> None:
    """Whatever the order of registration. Other queries and customers keep their own days."""
    register(ledger, on(LAST_YEAR), on(LAST_YEAR, query_name=OTHER), at=NOW)
    assert expected(ledger) == ExpectedDays(first=LAST_YEAR)
    register(ledger, on(START), on(START + timedelta(days=9)), on(START, customer="2"))
    assert expected(ledger) == ExpectedDays(first=START, single=(LAST_YEAR,))
    assert expected(ledger, customer="2") == ExpectedDays(first=START)
    assert expected(ledger, OTHER) == ExpectedDays(first=LAST_YEAR)
    found = ledger.days.first_days("google_ads")
    assert found.customers == ["1", "2"]
    assert found.earliest == LAST_YEAR
    assert [line.split(":")[0] for line in found.describe_single([QUERY, OTHER], date.min)] == [f"1 {QUERY}"]
    assert found.describe_single([QUERY], START) == []


def test_outage_of_a_year_stays_expected(ledger: Ledger) -> None:
    """The day before it was fetched in time, and first."""
    register(ledger, on(LAST_YEAR), on(START))
    assert expected(ledger) == ExpectedDays(first=LAST_YEAR)


def test_failed_fetch_counts_as_a_fetch(ledger: Ledger) -> None:
    """One in time begins the expected days; a late one of last year does not."""
    fail_fetch(ledger, on(START), datetime(2026, 2, 2, 5, tzinfo=UTC))
    assert expected(ledger) == ExpectedDays(first=START)
    fail_fetch(ledger, on(LAST_YEAR), NOW)
    assert expected(ledger) == ExpectedDays(first=START, single=(LAST_YEAR,))


def test_run_without_a_readable_seal_counts_from_its_registration(ledger: Ledger) -> None:
    """It has no time of extraction. The ledger's clock is long after the day."""
    ledger.registrations.register([run(on(LAST_YEAR), "r1")])
    register(ledger, on(START))
    assert expected(ledger) == ExpectedDays(first=START, single=(LAST_YEAR,))


@pytest.mark.parametrize("number", [1, 250])
def test_many_customers_are_read_in_parts(ledger: Ledger, number: int) -> None:
    """Each has a late run of last year."""
    customers = [str(1000 + each) for each in range(number)]
    register(ledger, *(on(START, each) for each in customers))
    register(ledger, *(on(LAST_YEAR, each) for each in customers), at=NOW)
    found = ledger.days.first_days("google_ads").of_query(QUERY)
    assert found == dict.fromkeys(customers, ExpectedDays(first=START, single=(LAST_YEAR,)))
