"""What readers may see: demotions, visible runs, publication statuses, and runs with their verdicts."""

from datetime import timedelta

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action, Effect, Outcome, Status
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import KEY, control_action_partitions, control_actions, partition_state
from ads_pipeline.ledger.sql.ledger_values import DayWindow, StateFilter, VisibleRun, VisibleRuns
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    action_request,
    key,
    keys,
    record_verdict,
    registered_runs,
    rejection,
    run,
)

K = key()


def publish(ledger: Ledger, *partitions: PartitionKey, run_id: str = "r1", version: int = 1) -> None:
    """Register, accept and publish one run per partition."""
    accepted_runs(ledger, partitions, run_id)
    ledger.loads.publish([run(each, run_id) for each in partitions], table_version=version)


def visible_run_ids(ledger: Ledger) -> dict[str, bool]:
    """Return the run_ids that readers may see, and whether each is the current one."""
    return {each.run_id: each.is_current for each in visible_runs(ledger).runs}


def visible_runs(ledger: Ledger) -> VisibleRuns:
    return ledger.publications.visible_runs(DayWindow(source="google_ads", query_name="campaign_daily"))


@pytest.mark.invariant("W4")
def test_demoting_verdict_withdraws_the_pointer_in_its_transaction(ledger: Ledger) -> None:
    """This also holds for a verdict whose demotion was never begun."""
    publish(ledger, K)
    assert record_verdict(ledger, rejection(run(K, "r1"), validation_id="again")).effect is Effect.DEMOTED
    assert not ledger.publications.pointers([K])[K].is_published
    assert visible_run_ids(ledger) == {}


@pytest.mark.invariant("W4")
def test_begun_demotion_hides_the_run_before_the_verdict_is_recorded(ledger: Ledger) -> None:
    """The state is still success, but no run is visible, readable or publishable."""
    publish(ledger, K)
    verdict = rejection(run(K, "r1"), validation_id="again")
    assert ledger.verdicts.begin_demotions([verdict]) == [verdict]
    assert ledger.states.get(K).status is Status.SUCCESS
    assert visible_run_ids(ledger) == {}
    assert ledger.loads.publish([run(K, "r1")], table_version=2).superseded == (run(K, "r1"),)
    assert ledger.loads.publishable_runs([run(K, "r1")]) == ledger.publications.readable_runs([run(K, "r1")]) == set()


def test_open_demotion_keeps_its_verdict_until_it_is_recorded(ledger: Ledger) -> None:
    """The stored verdict equals the original. Recording it closes the demotion."""
    publish(ledger, K)
    verdict = rejection(run(K, "r1"), validation_id="again")
    ledger.verdicts.begin_demotions([verdict])
    assert ledger.verdicts.begin_demotions([verdict]) == [verdict]
    (stored,) = ledger.publications.open_demotions(DayWindow(source="google_ads", query_name="campaign_daily"))
    assert stored == verdict
    record_verdict(ledger, stored)
    assert ledger.publications.open_demotions(DayWindow(source="google_ads", query_name="campaign_daily")) == []
    assert ledger.verdicts.begin_demotions([verdict]) == []


def test_only_rejections_of_readable_runs_begin_demotions(ledger: Ledger) -> None:
    """Acceptances, redeliveries, and rejections of unaccepted runs or failed partitions begin none."""
    superseded, failed, good, restored = keys(4)
    publish(ledger, superseded, good, restored)
    accepted_runs(ledger, [superseded], "r2")
    (bad,) = registered_runs(ledger, failed, "r1")
    record_verdict(ledger, rejection(bad))
    record_verdict(ledger, rejection(run(restored, "r1"), validation_id="one"))
    record_verdict(ledger, acceptance(run(restored, "r1"), validation_id="two"))
    verdicts = [
        rejection(run(superseded, "r1"), validation_id="one"),
        rejection(bad, validation_id="one"),
        acceptance(run(good, "r1"), validation_id="one"),
        rejection(run(restored, "r1"), validation_id="one"),
    ]
    (unaccepted,) = registered_runs(ledger, good, "r2")
    assert ledger.verdicts.begin_demotions([*verdicts, rejection(unaccepted)]) == verdicts[:1]
    assert not ledger.publications.pointers([superseded])[superseded].is_published
    assert ledger.publications.pointers([good])[good].is_published


@pytest.mark.invariant("W3")
def test_accepted_run_stays_visible_until_the_newer_one_is_loaded(ledger: Ledger) -> None:
    """Between the newer verdict and its load, both runs are visible, and only the newer one is current."""
    publish(ledger, K)
    accepted_runs(ledger, [K], "r2")
    assert visible_run_ids(ledger) == {"r1": False, "r2": True}
    ledger.loads.publish([run(K, "r2")], table_version=2)
    assert visible_run_ids(ledger) == {"r2": True}
    assert visible_runs(ledger).table_version == 2


@pytest.mark.invariant("W3")
def test_rejected_run_is_not_visible_while_another_is_loaded(ledger: Ledger) -> None:
    """r1 is loaded, r2 is rejected and r3 is accepted but not loaded. Readers never see r2."""
    publish(ledger, K)
    (second, _third) = registered_runs(ledger, K, "r2", "r3")
    record_verdict(ledger, rejection(second))
    accepted_runs(ledger, [K], "r3")
    assert visible_run_ids(ledger) == {"r1": False, "r3": True}


@pytest.mark.invariant("W5")
def test_demoted_run_stays_hidden_when_a_newer_one_is_accepted(ledger: Ledger) -> None:
    """r1 is demoted, r2 is accepted but not loaded. The table may still hold r1, but readers see no run."""
    publish(ledger, K)
    record_verdict(ledger, rejection(run(K, "r1"), validation_id="again"))
    accepted_runs(ledger, [K], "r2")
    assert visible_run_ids(ledger) == {}
    assert ledger.publications.readable_runs([run(K, "r1"), run(K, "r2")]) == {run(K, "r2")}


def test_withdrawn_run_stays_hidden_when_a_newer_one_is_accepted(ledger: Ledger) -> None:
    """Until the newer run is loaded, readers see no run."""
    publish(ledger, K)
    ledger.actions.execute(Action.WITHDRAW, [K], action_request())
    accepted_runs(ledger, [K], "r2")
    assert visible_run_ids(ledger) == {}


@pytest.mark.invariant("W3")
def test_only_loaded_runs_are_visible(ledger: Ledger) -> None:
    """A success without a pointer, a failed and a pending partition have no visible run."""
    loaded, unloaded, failed, pending = keys(4)
    publish(ledger, loaded)
    accepted_runs(ledger, [unloaded])
    (bad,) = registered_runs(ledger, failed, "r1")
    record_verdict(ledger, rejection(bad))
    ledger.registrations.insert_pending([pending])
    assert visible_runs(ledger).runs == (VisibleRun(loaded.customer_id, loaded.logical_date, "r1", True),)


def test_publication_statuses_hold_pointer_demotion_and_unjudged_runs(ledger: Ledger) -> None:
    """There is one status per recorded partition of the query."""
    loaded, unloaded, unjudged, without_run, demoting = keys(5)
    publish(ledger, loaded, demoting)
    accepted_runs(ledger, [unloaded])
    registered_runs(ledger, unjudged, "r1")
    ledger.registrations.insert_pending([without_run])
    ledger.verdicts.begin_demotions([rejection(run(demoting, "r1"), validation_id="again")])
    statuses = ledger.publications.in_window(DayWindow(source="google_ads", query_name="campaign_daily"))
    assert [each.state.key for each in statuses] == [loaded, unloaded, unjudged, without_run, demoting]
    assert [each.is_publishable for each in statuses] == [True, True, False, False, False]
    assert [each.has_unjudged_run for each in statuses] == [False, False, True, False, False]
    pointers = [each.pointer and each.pointer.is_published for each in statuses]
    assert pointers == [True, None, None, None, False]
    assert statuses[0].pointer == ledger.publications.pointers([loaded])[loaded]


def test_day_window_filters_visible_runs_and_publication_statuses(ledger: Ledger) -> None:
    """Both ends of the window are included."""
    days = [key(day=day) for day in (1, 2, 3)]
    publish(ledger, *days)
    day = days[1].logical_date
    window = DayWindow(source="google_ads", query_name="campaign_daily", since=day, until=day)
    visible = ledger.publications.visible_runs(window)
    assert [each.logical_date for each in visible.runs] == [days[1].logical_date]
    statuses = ledger.publications.in_window(window)
    assert [each.state.key for each in statuses] == [days[1]]
    assert ledger.publications.visible_runs(DayWindow(source="google_ads", query_name="other")).runs == ()


def test_customers_are_listed_once(ledger: Ledger) -> None:
    """Customers with a recorded partition in any query are listed in order."""
    ledger.registrations.insert_pending(
        [key("20"), key("10"), key("10", day=2), key("30", query_name="ad_group_daily")]
    )
    assert ledger.states.customers("google_ads") == ["10", "20", "30"]


def test_publication_status_of_one_partition_equals_that_in_the_list(ledger: Ledger) -> None:
    """A partition without a row has no status."""
    publish(ledger, K, key("2"))
    registered_runs(ledger, key("3"), "r1")
    ledger.verdicts.begin_demotions([rejection(run(key("2"), "r1"), validation_id="again")])
    listed = {
        each.state.key: each
        for each in ledger.publications.in_window(DayWindow(source="google_ads", query_name="campaign_daily"))
    }
    assert len(listed) == 3
    assert {partition: ledger.publications.get(partition) for partition in listed} == listed
    assert ledger.publications.get(key("4")) is None


def test_last_verdicts_hold_outcome_and_current_flag(ledger: Ledger) -> None:
    """A run without a verdict has no outcome. Only the current run of a success is current."""
    first, second, _third = registered_runs(ledger, K, "r1", "r2", "r3")
    ledger.verdicts.record([acceptance(first), acceptance(second), rejection(first, validation_id="again")])
    (withdrawn,) = registered_runs(ledger, key("2"), "r1")
    record_verdict(ledger, acceptance(withdrawn))
    ledger.actions.execute(Action.WITHDRAW, [withdrawn.key], action_request())
    registered_runs(ledger, key("2", query_name="ad_group_daily"), "r1")
    verdicts = ledger.runs.last_verdicts(StateFilter(source="google_ads", query_names=frozenset({"campaign_daily"})))
    assert {f"{each.key.customer_id} {each.run_id}": verdict for each, verdict in verdicts.items()} == {
        "1234567890 r1": (Outcome.REJECTED, False),
        "1234567890 r2": (Outcome.ACCEPTED, True),
        "1234567890 r3": (None, False),
        "2 r1": (Outcome.ACCEPTED, False),
    }
    assert ledger.runs.last_verdicts(StateFilter(customer_ids=frozenset())) == {}


def test_registrations_hold_the_time_of_the_first_registration(timed_ledger: Ledger, clock: FakeClock) -> None:
    """They are listed oldest first, with the time of the ledger's clock."""
    registered_runs(timed_ledger, K, "r1")
    clock.tick()
    registered_runs(timed_ledger, K, "r1", "r2")
    registrations, before = timed_ledger.runs.registrations(K), clock.now - timedelta(seconds=1)
    assert [(each.run.run_id, at) for each, at in registrations] == [("r1", before), ("r2", clock.now)]
    assert [each for each, _at in registrations] == timed_ledger.runs.registered(K)


@pytest.mark.invariant("W3")
def test_published_pointer_of_pending_partition_shows_nothing(ledger: Ledger, backdoor: sa.Engine) -> None:
    """Readers need a success as well. A program that withdraws a partition and forgets its pointer shows no rows."""
    publish(ledger, K)
    at = ledger.publications.pointers([K])[K].changed_at + timedelta(days=1)
    action = {"action_id": "a", "action": "withdraw", "operator": "ada", "command": "psql", "filters": ""}
    partition = {name: getattr(K, name) for name in KEY}
    with database.open_transaction(backdoor) as connection:
        logged = action | {"reason": "by hand", "partitions_changed": 1, "performed_at": at}
        connection.execute(sa.insert(control_actions).values(logged))
        changed = partition | {"action_id": "a", "status_before": "success", "attempt_no": 1}
        connection.execute(sa.insert(control_action_partitions).values(changed))
        connection.execute(sa.update(partition_state).values(status="pending", updated_at=at))
    assert ledger.publications.pointers([K])[K].is_published
    assert visible_run_ids(ledger) == {}
    assert ledger.publications.readable_runs([run(K, "r1")]) == set()
