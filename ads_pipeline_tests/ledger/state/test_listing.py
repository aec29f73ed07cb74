"""Listing: filters, pages in key order, tallies."""

from collections import Counter
from dataclasses import replace
from datetime import date
from itertools import product

import pytest

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline_tests.ledger.builders import accepted_runs, key, registered_runs, rejection

QUERIES = ("ad_group_daily", "campaign_daily", "keyword_daily")


@pytest.fixture
def listed(ledger: Ledger) -> Ledger:
    """36 partitions: 4 customers, 3 queries, 3 days; customer 9 succeeded, customer 10 failed, the others wait."""
    everything = [
        key(customer, query_name=query, day=day)
        for customer in ("9", "10", "100", "02")
        for query in QUERIES
        for day in (1, 2, 3)
    ]
    ledger.insert_pending(everything)
    accepted_runs(ledger, [each for each in everything if each.customer_id == "9"])
    for each in everything:
        if each.customer_id == "10":
            (bad,) = registered_runs(ledger, each, "r1")
            ledger.record_verdict(rejection(bad))
    return ledger


@pytest.mark.parametrize("limit", [1, 5, 35, 36, 1000])
def test_pages_of_any_size_give_the_same_list(listed: Ledger, limit: int) -> None:
    """Paging from key to key gives each partition once, in key order, the same on both databases."""
    found = [state.key for state in listed.iter_states(StateFilter(), limit=limit)]
    assert found == sorted(found)
    assert len(found) == len(set(found)) == 36
    assert found[0].customer_id == "02"  # text order, not numeric


@pytest.mark.parametrize(
    ("wanted", "count"),
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
def test_filters_narrow_together(listed: Ledger, wanted: StateFilter, count: int) -> None:
    """Each filter narrows, both ends of a window are in it, and the tally agrees with the list."""
    found = list(listed.iter_states(wanted, limit=7))
    assert len(found) == count
    assert sum(listed.count_by_status(wanted).values()) == count


def test_a_tally_names_every_status(listed: Ledger) -> None:
    """A status that no partition has is counted as zero, not left out."""
    assert listed.count_by_status(StateFilter()) == {Status.PENDING: 18, Status.SUCCESS: 9, Status.FAILED: 9}
    assert listed.count_by_status(StateFilter(customer_ids=frozenset({"9"}))) == {
        Status.PENDING: 0,
        Status.SUCCESS: 9,
        Status.FAILED: 0,
    }


def test_a_page_after_a_key_that_is_not_there_goes_on_behind_it(listed: Ledger) -> None:
    """The place to go on from need not exist."""
    gone = PartitionKey(source="google_ads", customer_id="5", query_name="x", logical_date=date(2026, 2, 1))
    assert {state.key.customer_id for state in listed.list_states(StateFilter(), after=gone)} == {"9"}


@pytest.mark.parametrize("limit", [1, 10, 35, 36])
def test_a_tally_after_a_page_counts_what_is_left(listed: Ledger, limit: int) -> None:
    """What a page showed and what the tally counts after its last key is everything, filtered alike."""
    for wanted in (StateFilter(), StateFilter(statuses=frozenset({Status.PENDING}))):
        page = listed.list_states(wanted, limit=limit)
        left = listed.count_by_status(wanted, after=page[-1].key)
        assert len(page) + sum(left.values()) == sum(listed.count_by_status(wanted).values())


CUSTOMERS = [None, frozenset({"9"}), frozenset({"9", "02", "100"})]
ASKED = [None, frozenset({"campaign_daily"}), frozenset({"campaign_daily", "keyword_daily"})]
CONDITIONS = [
    None,
    frozenset({Status.FAILED}),
    frozenset({Status.PENDING}),
    frozenset({Status.PENDING, Status.FAILED}),
]
SINCE = [None, date(2026, 2, 2)]
SOURCES = [None, "google_ads", "bing_ads"]


def test_what_follows_a_key_is_the_same_however_it_is_asked(listed: Ledger) -> None:
    """For every filter and every place to go on from, page and tally are what a look at each partition gives."""
    everything = list(listed.iter_states(StateFilter()))
    places = [everything[number].key for number in (0, 13, 35)]
    places += [replace(places[1], source="a"), replace(places[1], source="z"), replace(places[1], customer_id="5")]
    for source, customers, asked, statuses, since in product(SOURCES, CUSTOMERS, ASKED, CONDITIONS, SINCE):
        wanted = StateFilter(source=source, customer_ids=customers, query_names=asked, statuses=statuses, since=since)
        for place in (None, *places):
            left = [state for state in everything if _passes(wanted, state) and (place is None or state.key > place)]
            assert [state.key for state in listed.list_states(wanted, after=place, limit=9)] == [
                s.key for s in left[:9]
            ]
            counts = Counter(state.status for state in left)
            assert listed.count_by_status(wanted, after=place, max_count=4) == {s: min(counts[s], 5) for s in Status}


def _passes(wanted: StateFilter, state: PartitionState) -> bool:
    key = state.key
    return (
        wanted.source in (None, key.source)
        and (wanted.customer_ids is None or key.customer_id in wanted.customer_ids)
        and (wanted.query_names is None or key.query_name in wanted.query_names)
        and (wanted.statuses is None or state.status in wanted.statuses)
        and (wanted.since is None or key.logical_date >= wanted.since)
    )


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_a_page_has_bounds(listed: Ledger, limit: int) -> None:
    """A page of no rows, or of too many, is refused with the bounds."""
    with pytest.raises(ValueError, match="limit must be 1 to 10000"):
        listed.list_states(StateFilter(), limit=limit)


def test_asking_for_nothing_gives_nothing(ledger: Ledger) -> None:
    """Every verb that takes many takes none."""
    assert ledger.states([]) == {}
    assert ledger.pointers([]) == {}
    assert ledger.record_verdicts([]) == []
    assert ledger.register([]) == []
    assert ledger.insert_pending([]) == 0
    assert ledger.begin_demotions([]) == []
    assert ledger.readable_runs([]) == ledger.publishable_runs([]) == set()
    assert ledger.publish([]).published == ()
