"""The facts that the ledger's events, parkings and deadlines give."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from ads_pipeline.domain.days.conditions import Condition, GapReason
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.quota import Hold
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.reason import Reason
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.domain.transitions import Action, Verdict
from ads_pipeline.ledger.events.completed_runs import RunCompletionLog
from ads_pipeline.ledger.events.event_log import PLAN_VERSION
from ads_pipeline.ledger.events.new_events import LogPosition, read_events_after, read_position
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.operations.notifications.finding import (
    EVENT_TYPES,
    HOLD_TOLD_AFTER,
    FactFinder,
    of_holds,
    of_parkings,
)
from ads_pipeline.operations.notifications.notices import Fact, Incident, Kind
from ads_pipeline.pipeline.days.day_conditions import DayRules
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    accepted_runs,
    action_request,
    key,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
    run,
    sealed_runs,
)

NOW = datetime(2026, 3, 1, 13, tzinfo=UTC)
DUE_AFTER = dict.fromkeys(("campaign_daily", "search_terms"), timedelta(hours=12))
ENDLESS = RetryPolicy(max_age=timedelta(days=100_000))  # the database's clock decides how old a day is
TEXT = "clicks must be at least 0"


@dataclass(slots=True, kw_only=True)
class Reading:
    """Reads the new facts of a ledger, each call only those since the call before."""

    ledger: Ledger
    position: LogPosition
    policy: RetryPolicy = ENDLESS

    @property
    def finder(self) -> FactFinder:
        return FactFinder(
            ledger=LedgerReader(self.ledger.engine),
            source="google_ads",
            policy=self.policy,
            read_rules=lambda now: DayRules(due_after=DUE_AFTER, now=now),
        )

    def read(self) -> list[Fact]:
        events, self.position = read_events_after(
            self.ledger.engine, self.position, EVENT_TYPES, now=datetime.now(UTC)
        )
        return list(self.finder.of_events(events, datetime.now(UTC)))

    def shown(self) -> list[tuple[Kind, PartitionKey | None, str, str]]:
        return [(fact.kind, fact.key, fact.reason, fact.operator) for fact in self.read()]


@pytest.fixture
def reading(ledger: Ledger) -> Reading:
    return Reading(ledger=ledger, position=read_position(ledger.engine, datetime.now(UTC)))


def reject(ledger: Ledger, partition: PartitionKey, *run_ids: str) -> None:
    for each in registered_runs(ledger, partition, *run_ids):
        record_verdict(ledger, rejection(each, TEXT))


def demotion(ledger: Ledger, partition: PartitionKey, run_id: str) -> Verdict:
    demoted = rejection(run(partition, run_id), validation_id="v2")
    return replace(demoted, reason=Reason.of_demotion(run_id, operator="ada", text="wrong account"))


def test_rejected_day_is_a_fact_once(ledger: Ledger, reading: Reading) -> None:
    """Rows and samples are left out of the reason, so that days share it. Retries of the day are silent."""
    reject(ledger, key(), "r1")
    assert reading.shown() == [(Condition.REJECTED, key(), TEXT, "")]
    assert reading.shown() == []
    reject(ledger, key(), "r2")
    assert reading.shown() == []
    record_verdict(ledger, acceptance(registered_runs(ledger, key(), "r3")[0]))
    assert reading.shown() == []
    reject(ledger, key(), "r4", "r5")
    assert [kind for kind, *_more in reading.shown()] == [Condition.REJECTED_RERUN]


def test_day_that_recovered_is_left_out(ledger: Ledger, reading: Reading) -> None:
    """Nobody has to act on it any more."""
    reject(ledger, key(), "r1")
    record_verdict(ledger, acceptance(registered_runs(ledger, key(), "r2")[0]))
    assert reading.shown() == []


def test_requeued_day_is_still_rejected(ledger: Ledger, reading: Reading) -> None:
    """Also when its retry was requested before the sensor looked."""
    reject(ledger, key(), "r1")
    ledger.actions.execute(Action.REQUEUE, [key()], action_request())
    assert [kind for kind, *_more in reading.shown()] == [Condition.REJECTED]


def test_rejected_rerun_behind_good_data(ledger: Ledger, reading: Reading) -> None:
    """Readers still see the accepted run, so this is no rejected day."""
    accepted_runs(ledger, [key()])
    reject(ledger, key(), "r2")
    assert reading.shown() == [(Condition.REJECTED_RERUN, key(), TEXT, "")]


def test_day_without_retries_left_is_terminal(ledger: Ledger, reading: Reading) -> None:
    """By verdicts, or by fetches that returned no run."""
    reading.policy = replace(ENDLESS, max_attempts=2)
    reject(ledger, key(day=1), "r1")
    assert [kind for kind, *_more in reading.shown()] == [Condition.REJECTED]
    reject(ledger, key(day=1), "r2")
    assert reading.shown() == [(Incident.TERMINAL, key(day=1), f"2 failures in a row; {TEXT}", "")]
    for number in (1, 2):
        failed = FailedFetch(
            key=key(day=2), failure_id=f"f{number}", error_class="server_error", error_message="it is down"
        )
        ledger.failed_fetches.record([failed], reading.policy)
    assert reading.shown() == [(Incident.TERMINAL, key(day=2), "2 failures in a row; server_error: it is down", "")]


def test_day_that_the_source_no_longer_has_is_terminal(ledger: Ledger, reading: Reading) -> None:
    """No retry follows the first failure."""
    failed = FailedFetch(key=key(), failure_id="f1", error_class="out_of_reach", error_message="37 months are over")
    ledger.failed_fetches.record([failed], ENDLESS)
    expected = "it is not fetched again; out_of_reach: 37 months are over"
    assert reading.shown() == [(Incident.TERMINAL, key(), expected, "")]


def test_failed_fetch_alone_is_silent(ledger: Ledger, reading: Reading) -> None:
    """The retry policy fetches again, and the deadline tells when that was in vain."""
    failed = FailedFetch(key=key(), failure_id="f1", error_class="server_error", error_message="it is down")
    ledger.failed_fetches.record([failed], ENDLESS)
    assert reading.shown() == []


def test_old_day_is_terminal_at_once(ledger: Ledger, reading: Reading) -> None:
    """No retry follows its first rejection."""
    reading.policy = RetryPolicy()
    partition = replace(key(), logical_date=datetime.now(UTC).date() - timedelta(days=200))
    reject(ledger, partition, "r1")
    assert reading.shown() == [(Incident.TERMINAL, partition, f"after 90 days nothing is retried; {TEXT}", "")]


def test_actions_of_operators_name_them(ledger: Ledger, reading: Reading) -> None:
    """A withdrawn day, a demoted run and a terminal mark."""
    accepted_runs(ledger, [key(day=1), key(day=2)])
    publish_runs(ledger, run(key(day=1), "r1"), run(key(day=2), "r1"))
    ledger.actions.execute(Action.WITHDRAW, [key(day=1)], action_request("a1"))
    assert reading.shown() == [(Condition.HIDDEN, key(day=1), "on request", "ada")]
    record_verdict(ledger, demotion(ledger, key(day=2), "r1"))
    assert reading.shown() == [(Condition.HIDDEN, key(day=2), "wrong account", "ada")]
    reject(ledger, key(day=3), "r1")
    ledger.actions.execute(Action.MARK_TERMINAL, [key(day=3)], action_request("a3"))
    assert reading.shown() == [(Incident.TERMINAL, key(day=3), "on request", "ada")]


def test_restored_day_is_left_out(ledger: Ledger, reading: Reading) -> None:
    """Readers see its rows again."""
    accepted_runs(ledger, [key()])
    ledger.actions.execute(Action.WITHDRAW, [key()], action_request())
    record_verdict(ledger, acceptance(run(key(), "r1"), validation_id="restored"))
    assert reading.shown() == []


def test_parked_account_and_query(ledger: Ledger, reading: Reading) -> None:
    """By an operator, or by a fetch whose error no retry can cure. Each parking has its own identity."""
    failed = FailedFetch(
        key=key(), failure_id="f1", error_class="customer_not_enabled", error_message="the account is closed"
    )
    ledger.failed_fetches.record([failed], ENDLESS)
    parking = Parking(source="google_ads", scope="query", name="search_terms", error_class="operator", why="too big")
    ledger.actions.park(parking, action_request("a1"))
    facts = list(of_parkings(reading.finder.list_parkings().values()))
    assert [(fact.kind, fact.subject, fact.reason) for fact in facts] == [
        (Condition.PARKED, f"account {key().customer_id}", "customer_not_enabled: the account is closed"),
        (Condition.PARKED, "query search_terms", "operator: too big"),
    ]
    before = set(reading.finder.list_parkings())
    ledger.actions.release(parking, action_request("a2"))
    ledger.actions.park(parking, action_request("a3"))
    assert len(set(reading.finder.list_parkings()) - before) == 1


@pytest.mark.invariant("L9", "L11")
def test_hold_that_lasts_an_hour(ledger: Ledger, reading: Reading) -> None:
    """It is told once, with the command that lifts it. A released hold is not told."""
    began = datetime.now(UTC)
    ledger.quota.hold(Hold(source="google_ads", until=began + timedelta(days=365), why="retry in a year"))
    assert reading.finder.list_holds(began + HOLD_TOLD_AFTER - timedelta(minutes=1)) == {}
    later = began + timedelta(hours=2)
    told = reading.finder.list_holds(later)
    assert told.keys() == reading.finder.list_holds(later + timedelta(hours=2)).keys()
    (fact,) = of_holds(told.values())
    assert (fact.kind, fact.subject) == (Incident.ON_HOLD, "source google_ads")
    assert fact.reason.endswith("ads-pipeline state release --source google_ads --reason TEXT")
    ledger.actions.release(Parking(source="google_ads", scope="source", name="google_ads"), action_request("a9"))
    assert reading.finder.list_holds(later) == {}


def test_run_that_cannot_be_loaded_is_a_fact_once(ledger: Ledger, reading: Reading) -> None:
    """Until a newer run is accepted, or its files are back. Each hour that `reconcile` tries again is silent."""
    accepted_runs(ledger, [key(day=1), key(day=2)])
    for _hour in range(2):
        ledger.loads.record_failed({run(key(day=1), "r1"): "its payload is gone"})
    assert reading.shown() == [(Condition.BLOCKED, key(day=1), GapReason.UNLOADABLE, "")]
    ledger.loads.record_failed({run(key(day=each), "r1"): "its payload is gone" for each in (1, 2)})
    accepted_runs(ledger, [key(day=2)], "r2")
    assert reading.shown() == []


@pytest.mark.parametrize(("status", "kinds"), [(RunStatus.FAILED, [Incident.RUN_DIED]), (RunStatus.CANCELLED, [])])
def test_dead_run_is_a_fact_once(url: str, reading: Reading, status: RunStatus, kinds: Sequence[Kind]) -> None:
    """With the number of sealed runs that it left without a verdict. A run that somebody cancelled is none."""
    origin = EventOrigin(engine_run_id="run-1", plan_version=PLAN_VERSION, engine_run_ref={"job": "j"})
    with Ledger.opened(url, origin=origin) as ledger:
        ledger.registrations.register(sealed_runs(run(key(), "r1")))
        ledger.events.append(origin.make_event("StepStarted", at=NOW, step_id=str(key())))
        log = RunCompletionLog(ledger.engine)
        for _ in range(2):
            log.complete_run(origin, status, reason="the run did not renew its lease")
    facts = reading.read()
    assert [fact.kind for fact in facts] == kinds
    assert [(fact.subject, fact.reason) for fact in facts] == [
        ("run-1", "the run did not renew its lease; 1 sealed runs have no verdict") for _kind in kinds
    ]
    assert reading.read() == []


def test_failed_command_is_no_dead_run(url: str, reading: Reading) -> None:
    """Its operator has seen the failure on the terminal."""

    def command() -> None:
        with Ledger.opened(url) as ledger:
            accepted_runs(ledger, [key()])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command()
    assert reading.read() == []


def test_day_is_overdue_once_when_its_deadline_passes(ledger: Ledger, reading: Reading) -> None:
    """Customers are expected from their first sealed day of the query on. An unjudged run is not overdue."""
    fetched_search_terms = key("3", query_name="search_terms", day=26)
    accepted_runs(
        ledger, [key("1", day=26), key("2", day=26), key("2", day=28), key("3", day=26), fetched_search_terms]
    )
    registered_runs(ledger, key("3", day=28), "r1")
    deadline = datetime(2026, 3, 1, 12, tzinfo=UTC)
    search_terms = key("3", query_name="search_terms", day=28)
    assert list(reading.finder.of_deadlines(deadline - timedelta(hours=2), deadline - timedelta(seconds=1))) == []
    facts = list(reading.finder.of_deadlines(deadline - timedelta(seconds=1), deadline))
    assert {(fact.kind, fact.key, fact.reason) for fact in facts} == {
        (Condition.LATE, key("1", day=28), "no run arrived"),
        (Condition.LATE, search_terms, "no run arrived"),
    }
    assert list(reading.finder.of_deadlines(deadline, deadline + timedelta(hours=2))) == []
    parking = Parking(source="google_ads", scope="query", name="search_terms", error_class="operator", why="too big")
    ledger.actions.park(parking, action_request())
    again = list(reading.finder.of_deadlines(deadline - timedelta(days=1, seconds=1), deadline))
    assert search_terms not in {fact.key for fact in again}
    assert {fact.identity for fact in facts if fact.key == key("1", day=28)} < {fact.identity for fact in again}
    assert key("1", day=27) in {fact.key for fact in again}


@pytest.mark.invariant("L9")
def test_run_without_a_contract_is_blocked_and_told_at_its_deadline(ledger: Ledger, reading: Reading) -> None:
    """The alarm of the deadline says the same, and in one message it is the same fact."""
    partition = key("1", day=28)
    ledger.registrations.register(sealed_runs(run(partition, "r1"), schema_version="9"))
    finder = replace(
        reading.finder,
        read_rules=lambda now: DayRules(
            due_after=DUE_AFTER, now=now, has_contract=lambda _query, version: version == "1"
        ),
    )
    reason = "no contract judges its run: schema_version 9"
    found = finder.list_blocked(NOW)
    assert {cause: [(fact.kind, fact.key, fact.reason) for fact in facts] for cause, facts in found.items()} == {
        f"campaign_daily: {reason}": [(Condition.BLOCKED, partition, reason)]
    }
    deadline = datetime(2026, 3, 1, 12, tzinfo=UTC)
    told = {fact.key: fact for fact in finder.of_deadlines(deadline - timedelta(seconds=1), deadline)}
    assert [told[partition]] == found[f"campaign_daily: {reason}"]
    assert reading.finder.list_blocked(NOW) == {}


def test_other_sources_are_left_out(ledger: Ledger, reading: Reading) -> None:
    """A ledger may hold partitions of several sources, each with its own deployment."""
    reject(ledger, replace(key(), source="other_ads"), "r1")
    assert reading.read() == []
