"""Listing states: filters, pages in key order, and counts."""

from collections import Counter
from dataclasses import replace
from datetime import date
from itertools import product

import pytest

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import StateFilter
from ads_pipeline_tests.ledger.builders import accepted_runs, key, record_verdict, registered_runs, rejection

QUERIES = ("ad_group_daily", "campaign_daily", "keyword_daily")


@pytest.fixture
def listing_ledger(ledger: Ledger) -> Ledger:
    """36 partitions of 4 customers, 3 queries and 3 days.

    Customer 9 has successes, customer 10 failures, and the others are pending.
    """
    partitions = [
        key(customer, query_name=query, day=day)
        for customer in ("9", "10", "100", "02")
        for query in QUERIES
        for day in (1, 2, 3)
    ]
    ledger.registrations.insert_pending(partitions)
    accepted_runs(ledger, [each for each in partitions if each.customer_id == "9"])
    for each in partitions:
        if each.customer_id == "10":
            (bad,) = registered_runs(ledger, each, "r1")
            record_verdict(ledger, rejection(bad))
    return ledger


@pytest.mark.parametrize("limit", [1, 5, 35, 36, 1000])
def test_pages_of_any_size_give_the_same_list(listing_ledger: Ledger, limit: int) -> None:
    """All pages together hold each partition once, in key order."""
    found = [state.key for state in listing_ledger.states.iterate(StateFilter(), limit=limit)]
    assert found == sorted(found)
    assert len(found) == len(set(found)) == 36
    assert found[0].customer_id == "02"  # text order, not numeric


@pytest.mark.parametrize(
    ("state_filter", "count"),
    [
        (StateFilter(source="google_ads"), 36),
        (StateFilter(source="bing_ads"), 0),
        (StateFilter(customer_ids=frozenset({"9", "02"})), 18),
        (StateFilter(customer_ids=frozenset()), 0),
        (StateFilter(query_names=frozenset({"keyword_daily"})), 12),
        (StateFilter(statuses=frozenset({Status.FAILED})), 9),
        (StateFilter(statuses=frozenset({Status.FAILED, Status.SUCCESS})), 18),
        (StateFilter(since=date(2026, 2, 2)), 24),
        (StateFilter(until=date(2026, 2, 1)), 12),
        (StateFilter(since=date(2026, 2, 2), until=date(2026, 2, 2), statuses=frozenset({Status.PENDING})), 6),
        (StateFilter(since=date(2026, 2, 3), until=date(2026, 2, 2)), 0),
    ],
)
def test_filters_combine(listing_ledger: Ledger, state_filter: StateFilter, count: int) -> None:
    """All conditions of a filter apply, windows include both ends, and the counts match the list."""
    found = list(listing_ledger.states.iterate(state_filter, limit=7))
    assert len(found) == count
    assert sum(listing_ledger.states.count_by_status(state_filter).values()) == count


def test_counts_include_every_status(listing_ledger: Ledger) -> None:
    """A status without partitions is counted as zero."""
    assert listing_ledger.states.count_by_status(StateFilter()) == {
        Status.PENDING: 18,
        Status.SUCCESS: 9,
        Status.FAILED: 9,
    }
    assert listing_ledger.states.count_by_status(StateFilter(customer_ids=frozenset({"9"}))) == {
        Status.PENDING: 0,
        Status.SUCCESS: 9,
        Status.FAILED: 0,
    }


def test_page_may_start_after_an_absent_key(listing_ledger: Ledger) -> None:
    """The page holds the partitions with greater keys."""
    absent = PartitionKey(source="google_ads", customer_id="5", query_name="x", logical_date=date(2026, 2, 1))
    assert {state.key.customer_id for state in listing_ledger.states.page(StateFilter(), after=absent)} == {"9"}


@pytest.mark.parametrize("limit", [1, 10, 35, 36])
def test_count_after_a_page_covers_the_rest(listing_ledger: Ledger, limit: int) -> None:
    """A page and the count after its last key add up to all partitions that match the filter."""
    for state_filter in (StateFilter(), StateFilter(statuses=frozenset({Status.PENDING}))):
        page = listing_ledger.states.page(state_filter, limit=limit)
        rest = listing_ledger.states.count_by_status(state_filter, after=page[-1].key)
        assert len(page) + sum(rest.values()) == sum(listing_ledger.states.count_by_status(state_filter).values())


CUSTOMERS = [None, frozenset({"9"}), frozenset({"9", "02", "100"})]
QUERY_NAMES = [None, frozenset({"campaign_daily"}), frozenset({"campaign_daily", "keyword_daily"})]
STATUSES = [
    None,
    frozenset({Status.FAILED}),
    frozenset({Status.PENDING}),
    frozenset({Status.PENDING, Status.FAILED}),
]
SINCE = [None, date(2026, 2, 2)]
SOURCES = [None, "google_ads", "bing_ads"]


def test_page_and_count_after_a_key_match_a_full_scan(listing_ledger: Ledger) -> None:
    """This holds for every combination of filter conditions and start key."""
    partitions = list(listing_ledger.states.iterate(StateFilter()))
    starts = [partitions[number].key for number in (0, 13, 35)]
    starts += [replace(starts[1], source="a"), replace(starts[1], source="z"), replace(starts[1], customer_id="5")]
    for source, customers, query_names, statuses, since in product(SOURCES, CUSTOMERS, QUERY_NAMES, STATUSES, SINCE):
        state_filter = StateFilter(
            source=source, customer_ids=customers, query_names=query_names, statuses=statuses, since=since
        )
        for start in (None, *starts):
            expected = [
                state
                for state in partitions
                if _matches(state_filter, state) and (start is None or state.key > start)
            ]
            assert [state.key for state in listing_ledger.states.page(state_filter, after=start, limit=9)] == [
                s.key for s in expected[:9]
            ]
            counts = Counter(state.status for state in expected)
            assert listing_ledger.states.count_by_status(state_filter, after=start, max_count=4) == {
                s: min(counts[s], 5) for s in Status
            }


def _matches(state_filter: StateFilter, state: PartitionState) -> bool:
    key = state.key
    return (
        state_filter.source in (None, key.source)
        and (state_filter.customer_ids is None or key.customer_id in state_filter.customer_ids)
        and (state_filter.query_names is None or key.query_name in state_filter.query_names)
        and (state_filter.statuses is None or state.status in state_filter.statuses)
        and (state_filter.since is None or key.logical_date >= state_filter.since)
    )


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_page_size_is_bounded(listing_ledger: Ledger, limit: int) -> None:
    """A limit below 1 or above 10,000 is refused."""
    with pytest.raises(ValueError, match="limit must be 1 to 10000"):
        listing_ledger.states.page(StateFilter(), limit=limit)


def test_empty_arguments_give_empty_results(ledger: Ledger) -> None:
    """Methods that take many items accept none."""
    assert ledger.states.get_many([]) == {}
    assert ledger.publications.pointers([]) == {}
    assert ledger.verdicts.record([]) == []
    assert ledger.registrations.register([]) == []
    assert ledger.registrations.insert_pending([]) == 0
    assert ledger.verdicts.begin_demotions([]) == []
    assert ledger.publications.readable_runs([]) == ledger.loads.publishable_runs([]) == set()
    assert ledger.loads.publish([], table_version=1).published == ()
