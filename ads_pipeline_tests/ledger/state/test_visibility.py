"""What readers may see: demotions in their steps, and the runs that are shown meanwhile."""

from datetime import timedelta

import pytest

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action, Effect, Outcome, Status
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import Publication, StateFilter, VisibleRun, VisibleRuns
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    action_request,
    key,
    keys,
    registered_runs,
    rejection,
    run,
)

K = key()


def published(ledger: Ledger, *partitions: PartitionKey, run_id: str = "r1", version: int = 1) -> None:
    """A success whose rows the warehouse holds."""
    accepted_runs(ledger, partitions, run_id)
    ledger.publish([Publication(run=run(each, run_id), table_version=version) for each in partitions])


def shown(ledger: Ledger) -> dict[str, bool]:
    """The run_ids that readers may see, and whether each is the current one."""
    return {each.run_id: each.current for each in showing(ledger).runs}


def showing(ledger: Ledger) -> VisibleRuns:
    return ledger.visible_runs(source="google_ads", query_name="campaign_daily")


@pytest.mark.invariant("W4")
def test_a_demotion_hides_what_it_fails_in_the_same_transaction(ledger: Ledger) -> None:
    """Even when nobody began the demotion, no reader finds a failed partition whose pointer still shows rows."""
    published(ledger, K)
    assert ledger.record_verdict(rejection(run(K, "r1"), validation_id="again")).effect is Effect.DEMOTED
    assert not ledger.pointers([K])[K].available
    assert shown(ledger) == {}


@pytest.mark.invariant("W4")
def test_a_demotion_that_has_begun_hides_before_it_fails(ledger: Ledger) -> None:
    """From its first step on nothing is shown or published, while the failure itself is not recorded yet."""
    published(ledger, K)
    verdict = rejection(run(K, "r1"), validation_id="again")
    assert ledger.begin_demotions([verdict]) == [verdict]
    assert ledger.state(K).status is Status.SUCCESS
    assert shown(ledger) == {}
    assert ledger.publish([Publication(run=run(K, "r1"), table_version=2)]).outdated == (run(K, "r1"),)
    assert ledger.publishable_runs([run(K, "r1")]) == ledger.readable_runs([run(K, "r1")]) == set()


def test_what_a_demotion_means_to_record_is_kept_until_it_is_recorded(ledger: Ledger) -> None:
    """Whoever finishes an interrupted demotion finds its verdict word for word, and not afterwards."""
    published(ledger, K)
    verdict = rejection(run(K, "r1"), validation_id="again")
    ledger.begin_demotions([verdict])
    assert ledger.begin_demotions([verdict]) == [verdict]
    (kept,) = ledger.open_demotions(source="google_ads", query_name="campaign_daily")
    assert kept == verdict
    ledger.record_verdict(kept)
    assert ledger.open_demotions(source="google_ads", query_name="campaign_daily") == []
    assert ledger.begin_demotions([verdict]) == []


def test_only_what_readers_get_is_demoted(ledger: Ledger) -> None:
    """Rejections of other runs, of failed partitions, acceptances and redelivered verdicts begin no demotion."""
    overtaken, failed, good, forgiven = keys(4)
    published(ledger, overtaken, good, forgiven)
    accepted_runs(ledger, [overtaken], "r2")
    (bad,) = registered_runs(ledger, failed, "r1")
    ledger.record_verdict(rejection(bad))
    ledger.record_verdict(rejection(run(forgiven, "r1"), validation_id="one"))
    ledger.record_verdict(acceptance(run(forgiven, "r1"), validation_id="two"))
    verdicts = [
        rejection(run(overtaken, "r1"), validation_id="one"),
        rejection(bad, validation_id="one"),
        acceptance(run(good, "r1"), validation_id="one"),
        rejection(run(forgiven, "r1"), validation_id="one"),
    ]
    assert ledger.begin_demotions(verdicts) == []
    assert ledger.pointers([good])[good].available


@pytest.mark.invariant("W3")
def test_an_accepted_run_stays_shown_until_its_successor_is_loaded(ledger: Ledger) -> None:
    """Between the newer verdict and its load there is no hole: the older run shows, and is told from the current."""
    published(ledger, K)
    accepted_runs(ledger, [K], "r2")
    assert shown(ledger) == {"r1": False, "r2": True}
    ledger.publish([Publication(run=run(K, "r2"), table_version=2)])
    assert shown(ledger) == {"r2": True}
    assert showing(ledger).table_version == 2


@pytest.mark.invariant("W3")
def test_a_rejected_run_is_not_shown_while_another_is_loaded(ledger: Ledger) -> None:
    """Between r1, which is loaded, and r3, which is not yet, stands a rejected r2: it is shown at no time."""
    published(ledger, K)
    (second, _third) = registered_runs(ledger, K, "r2", "r3")
    ledger.record_verdict(rejection(second))
    accepted_runs(ledger, [K], "r3")
    assert shown(ledger) == {"r1": False, "r3": True}


@pytest.mark.invariant("W5")
def test_a_demoted_run_never_comes_back_by_its_successor(ledger: Ledger) -> None:
    """r1 is demoted, r2 accepted and not loaded yet: the table may still hold r1, and nobody is shown it."""
    published(ledger, K)
    ledger.record_verdict(rejection(run(K, "r1"), validation_id="again"))
    accepted_runs(ledger, [K], "r2")
    assert shown(ledger) == {}
    assert ledger.readable_runs([run(K, "r1"), run(K, "r2")]) == {run(K, "r2")}


def test_a_withdrawn_run_never_comes_back_by_its_successor(ledger: Ledger) -> None:
    """What an operator withdrew stays hidden when a newer run is accepted and not loaded yet."""
    published(ledger, K)
    ledger.execute(Action.WITHDRAW, [K], action_request())
    accepted_runs(ledger, [K], "r2")
    assert shown(ledger) == {}


@pytest.mark.invariant("W3")
def test_nothing_is_shown_before_it_is_loaded(ledger: Ledger) -> None:
    """A success without a pointer, a failure and a pending partition show nothing."""
    loaded, unloaded, failed, pending = keys(4)
    published(ledger, loaded)
    accepted_runs(ledger, [unloaded])
    (bad,) = registered_runs(ledger, failed, "r1")
    ledger.record_verdict(rejection(bad))
    ledger.insert_pending([pending])
    assert showing(ledger).runs == (VisibleRun(loaded.customer_id, loaded.logical_date, "r1", True),)


def test_standings_tell_what_keeps_a_partition_from_its_readers(ledger: Ledger) -> None:
    """Each recorded partition with its pointer, a begun demotion, and whether a run awaits its verdict."""
    loaded, unloaded, waiting, bare, demoting = keys(5)
    published(ledger, loaded, demoting)
    accepted_runs(ledger, [unloaded])
    registered_runs(ledger, waiting, "r1")
    ledger.insert_pending([bare])
    ledger.begin_demotions([rejection(run(demoting, "r1"), validation_id="again")])
    found = ledger.publication_statuses_of_query(source="google_ads", query_name="campaign_daily")
    assert [each.state.key for each in found] == [loaded, unloaded, waiting, bare, demoting]
    assert [each.publishable for each in found] == [True, True, False, False, False]
    assert [each.unjudged for each in found] == [False, False, True, False, False]
    pointers = [each.pointer and each.pointer.available for each in found]
    assert pointers == [True, None, None, None, False]
    assert found[0].pointer == ledger.pointers([loaded])[loaded]


def test_a_window_of_days_narrows_what_is_shown(ledger: Ledger) -> None:
    """Both ends are included, in what is shown and in the standings."""
    days = [key(day=day) for day in (1, 2, 3)]
    published(ledger, *days)
    window = {"since": days[1].logical_date, "until": days[1].logical_date}
    one = ledger.visible_runs(source="google_ads", query_name="campaign_daily", **window)
    assert [each.logical_date for each in one.runs] == [days[1].logical_date]
    standing = ledger.publication_statuses_of_query(source="google_ads", query_name="campaign_daily", **window)
    assert [each.state.key for each in standing] == [days[1]]
    assert ledger.visible_runs(source="google_ads", query_name="other").runs == ()


def test_customers_are_listed_once(ledger: Ledger) -> None:
    """Each customer with a recorded partition, in any query, in order."""
    ledger.insert_pending([key("20"), key("10"), key("10", day=2), key("30", query_name="ad_group_daily")])
    assert ledger.customers("google_ads") == ["10", "20", "30"]


def test_one_partition_stands_as_it_does_among_all(ledger: Ledger) -> None:
    """Asked for alone, a partition is told as in its query's list; one without a row is none."""
    published(ledger, K, key("2"))
    registered_runs(ledger, key("3"), "r1")
    ledger.begin_demotions([rejection(run(key("2"), "r1"), validation_id="again")])
    listed = {
        each.state.key: each
        for each in ledger.publication_statuses_of_query(source="google_ads", query_name="campaign_daily")
    }
    assert len(listed) == 3
    assert {partition: ledger.publication_status(partition) for partition in listed} == listed
    assert ledger.publication_status(key("4")) is None


def test_each_run_has_its_last_verdict(ledger: Ledger) -> None:
    """None before the first one; the last of several; and whether the partition is a success of that very run."""
    first, second, _third = registered_runs(ledger, K, "r1", "r2", "r3")
    ledger.record_verdicts([acceptance(first), acceptance(second), rejection(first, validation_id="again")])
    (withdrawn,) = registered_runs(ledger, key("2"), "r1")
    ledger.record_verdict(acceptance(withdrawn))
    ledger.execute(Action.WITHDRAW, [withdrawn.key], action_request())
    registered_runs(ledger, key("2", query_name="ad_group_daily"), "r1")
    found = ledger.last_verdicts(StateFilter(source="google_ads", query_names=frozenset({"campaign_daily"})))
    assert {f"{each.key.customer_id} {each.run_id}": told for each, told in found.items()} == {
        "1234567890 r1": (Outcome.REJECTED, False),
        "1234567890 r2": (Outcome.ACCEPTED, True),
        "1234567890 r3": (None, False),
        "2 r1": (Outcome.ACCEPTED, False),
    }
    assert ledger.last_verdicts(StateFilter(customer_ids=frozenset())) == {}


def test_runs_are_told_with_when_they_were_registered(timed_ledger: Ledger, clock: FakeClock) -> None:
    """By the ledger's clock, oldest first; registered again, a run keeps its time."""
    registered_runs(timed_ledger, K, "r1")
    clock.tick()
    registered_runs(timed_ledger, K, "r1", "r2")
    told, before = timed_ledger.registrations(K), clock.now - timedelta(seconds=1)
    assert [(each.run.run_id, at) for each, at in told] == [("r1", before), ("r2", clock.now)]
    assert [each for each, _at in told] == timed_ledger.runs(K)
