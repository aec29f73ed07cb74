"""Holds: an outage stops all calls, one probe at a time goes on, an answer or an operator ends it."""

import multiprocessing
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.outages import LONGEST_HOLD, PAUSES, PROBE_LIMIT, PROBE_TURN
from ads_pipeline.domain.fetching.quota import Granted, Hold, Operation, OperationOutcome, QuotaLimits, Refused
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.fetching.retry_policy import GivenUp, Lane, RetryAt, RetryPolicy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.builders import FakeClock, action_request, key
from ads_pipeline_tests.processes import fork_server

SOURCE, LIMITS, POLICY = "google_ads", QuotaLimits(), RetryPolicy()
AWAY, BROKEN = "source_unavailable", "transient"
ACCOUNTS = ("1001", "1002", "1003", "1004")
PROCESSES = 8


def reserve(ledger: Ledger, customer: str | None = ACCOUNTS[0]) -> Granted | Refused:
    return ledger.quota.reserve(Operation(source=SOURCE, customer_id=customer), LIMITS)


def call(ledger: Ledger, outcome: str, customer: str = ACCOUNTS[0]) -> Hold | None:
    """A granted call that ended so. Returns the hold of the outage that it met."""
    granted = reserve(ledger, customer)
    assert isinstance(granted, Granted), granted
    return ledger.quota.finish(granted, OperationOutcome(outcome=outcome, error_message=f"{outcome} of {customer}"))


def discover(ledger: Ledger, customers: Sequence[str] = ACCOUNTS) -> None:
    ledger.accounts.record(SOURCE, [Account(source=SOURCE, customer_id=each, status="ENABLED") for each in customers])


def fail(ledger: Ledger, keys: Sequence[PartitionKey], error_class: str, *, times: int = 1) -> None:
    """Failed fetches of these days, as a run records them."""
    for _ in range(times):
        fetches = [FailedFetch(key=each, error_class=error_class, error_message="no answer") for each in keys]
        ledger.failed_fetches.record(fetches, POLICY)


def due(ledger: Ledger, now: datetime) -> list[PartitionKey]:
    """All that the retry sensor would request now."""
    queue, today = ledger.retry_queue, now.date()
    found = [each.key for lane in Lane for each in queue.find_due(POLICY, lane, source=SOURCE, today=today)]
    found += [each.key for lane in Lane for each in queue.find_due_requests(POLICY, lane, source=SOURCE, today=today)]
    return sorted(found)


@pytest.mark.invariant("L3")
def test_probes_follow_growing_pauses(timed_ledger: Ledger, clock: FakeClock) -> None:
    """No call is granted before a pause has ended. Then exactly one is, and its failure begins the next pause."""
    discover(timed_ledger)
    began = clock.now
    hold = call(timed_ledger, AWAY)
    for number, pause in enumerate((*PAUSES, PAUSES[-1]), start=1):
        assert hold is not None
        assert (hold.until, hold.failures, hold.since) == (clock.now + pause, number, began)
        clock.now = hold.until - timedelta(microseconds=1)
        refused = reserve(timed_ledger, ACCOUNTS[number % 2])
        assert isinstance(refused, Refused)
        assert (refused.until, refused.error_class) == (hold.until, AWAY)
        clock.now = hold.until
        probe = reserve(timed_ledger, ACCOUNTS[number % 2])
        assert isinstance(probe, Granted)
        assert probe.is_probe
        waiting = reserve(timed_ledger, ACCOUNTS[3])
        assert isinstance(waiting, Refused)
        assert waiting.until == clock.now + PROBE_LIMIT
        assert "this one waits for it" in waiting.why
        hold = timed_ledger.quota.finish(probe, OperationOutcome(outcome=AWAY))


@pytest.mark.invariant("L3")
@pytest.mark.parametrize("answer", ["ok", "permission_denied", "google_ads_error"])
def test_answered_probe_lifts_the_hold(timed_ledger: Ledger, clock: FakeClock, answer: str) -> None:
    """Also an answer that refuses this account shows that the source is there. All calls are granted at once."""
    discover(timed_ledger)
    hold = call(timed_ledger, AWAY)
    assert hold is not None
    clock.now = hold.until
    assert call(timed_ledger, answer, ACCOUNTS[1]) is None
    assert timed_ledger.quota.list_holds(SOURCE) == ()
    assert all(isinstance(reserve(timed_ledger, each), Granted) for each in ACCOUNTS)


def test_probe_that_died_is_replaced(timed_ledger: Ledger, clock: FakeClock) -> None:
    """A process that dies in its probe never records an outcome: after ten minutes another call is the probe."""
    discover(timed_ledger)
    hold = call(timed_ledger, AWAY)
    assert hold is not None
    clock.now = hold.until
    dead = reserve(timed_ledger, ACCOUNTS[1])
    assert isinstance(dead, Granted)
    clock.now += PROBE_LIMIT - timedelta(microseconds=1)
    assert isinstance(reserve(timed_ledger, ACCOUNTS[2]), Refused)
    clock.tick(timedelta(microseconds=1))
    probe = reserve(timed_ledger, ACCOUNTS[2])
    assert isinstance(probe, Granted)
    assert probe.is_probe
    assert isinstance(reserve(timed_ledger, ACCOUNTS[3]), Refused)


def test_probe_without_evidence_is_repeated_at_once(timed_ledger: Ledger, clock: FakeClock) -> None:
    """A full disk during the probe says nothing about the source; the next call is the probe."""
    discover(timed_ledger)
    hold = call(timed_ledger, AWAY)
    assert hold is not None
    clock.now = hold.until
    assert call(timed_ledger, "interrupted", ACCOUNTS[1]) is None
    probe = reserve(timed_ledger, ACCOUNTS[2])
    assert isinstance(probe, Granted)
    assert probe.is_probe


@pytest.mark.invariant("L4")
def test_another_account_probes_before_the_one_that_failed(timed_ledger: Ledger, clock: FakeClock) -> None:
    """The fault may be the account's own, so the others try first for a minute. A single account tries then."""
    discover(timed_ledger)
    hold = call(timed_ledger, AWAY, ACCOUNTS[0])
    assert hold is not None
    clock.now = hold.until
    refused = reserve(timed_ledger, ACCOUNTS[0])
    assert isinstance(refused, Refused)
    assert refused.until == hold.until + PROBE_TURN
    clock.now = refused.until
    assert isinstance(reserve(timed_ledger, ACCOUNTS[0]), Granted)


@pytest.mark.invariant("L4")
def test_account_that_alone_fails_does_not_stop_others(timed_ledger: Ledger, clock: FakeClock) -> None:
    """While other accounts are answered, the third unanswered call of an account is its own fault: no hold."""
    discover(timed_ledger)
    for _ in range(2):
        hold = call(timed_ledger, AWAY)
        assert hold is not None
        clock.now = hold.until
        call(timed_ledger, "ok", ACCOUNTS[1])
    for _ in range(5):
        assert call(timed_ledger, AWAY) is None
        assert call(timed_ledger, "ok", ACCOUNTS[2]) is None


@pytest.mark.invariant("L3")
def test_three_accounts_that_fail_alike_are_an_outage(timed_ledger: Ledger, clock: FakeClock) -> None:
    """An internal error of two accounts is theirs; with the third, all calls pause until one is answered."""
    discover(timed_ledger)
    assert [call(timed_ledger, BROKEN, each) for each in ACCOUNTS[:2]] == [None, None]
    hold = call(timed_ledger, BROKEN, ACCOUNTS[2])
    assert hold is not None
    assert hold.until == clock.now + PAUSES[0]
    assert "transient of 1003" in hold.why
    clock.now = hold.until
    call(timed_ledger, "ok", ACCOUNTS[3])
    assert call(timed_ledger, BROKEN, ACCOUNTS[0]) is None


def test_call_that_began_before_the_hold_changes_nothing(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Calls in flight fail together: they make no pause longer, and none of them lifts the hold."""
    discover(timed_ledger)
    in_flight = [reserve(timed_ledger, each) for each in ACCOUNTS]
    hold = call(timed_ledger, AWAY)
    outcomes = [AWAY, BROKEN, "ok", "ok"]
    for granted, outcome in zip(in_flight, outcomes, strict=True):
        assert isinstance(granted, Granted)
        timed_ledger.quota.finish(granted, OperationOutcome(outcome=outcome))
    (now_held,) = timed_ledger.quota.list_holds(SOURCE)
    assert (now_held, now_held.failures) == (hold, 1)


@pytest.mark.invariant("L3")
def test_recovery_makes_what_the_outage_hit_due(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Also a day that had used up its tries before. Its count begins anew; that of a refused answer does not."""
    discover(timed_ledger)
    used_up, odd = key(ACCOUNTS[0]), key(ACCOUNTS[1])
    for _ in range(POLICY.max_attempts):
        fail(timed_ledger, [used_up], BROKEN)
        fail(timed_ledger, [odd], "rows_refused")
        clock.tick(timedelta(hours=3))
    assert due(timed_ledger, clock.now) == []
    forecast = timed_ledger.retry_queue.forecast(list(timed_ledger.states.get_many([used_up]).values()), POLICY)
    assert isinstance(forecast[used_up].decision, GivenUp)
    hold = call(timed_ledger, AWAY)
    assert hold is not None
    clock.now = hold.until
    call(timed_ledger, "ok", ACCOUNTS[2])
    assert due(timed_ledger, clock.now) == [used_up]
    states = list(timed_ledger.states.get_many([used_up, odd]).values())
    forecasts = timed_ledger.retry_queue.forecast(states, POLICY)
    assert (forecasts[used_up].is_due, forecasts[odd].is_due) == (True, False)
    clock.tick()
    fail(timed_ledger, [used_up], BROKEN)
    assert timed_ledger.retry_queue.find_failures([used_up])[used_up].failures == 1


@pytest.mark.invariant("L11")
@pytest.mark.parametrize("customer", [None, ACCOUNTS[0]])
def test_hold_of_a_year_is_bounded_and_then_tried_by_one_call(
    timed_ledger: Ledger, clock: FakeClock, customer: str | None
) -> None:
    """Whatever the source names, after 25 hours one call tries it, and its answer grants the others."""
    year = clock.now + timedelta(days=365)
    timed_ledger.quota.hold(Hold(source=SOURCE, until=year, why="retry in a year", customer_id=customer))
    refused = reserve(timed_ledger)
    assert isinstance(refused, Refused)
    assert (refused.until, refused.error_class) == (clock.now + LONGEST_HOLD, "quota_exhausted")
    clock.now = refused.until
    probe = reserve(timed_ledger)
    assert isinstance(probe, Granted)
    assert isinstance(reserve(timed_ledger), Refused)
    timed_ledger.quota.finish(probe, OperationOutcome(outcome="ok"))
    assert isinstance(reserve(timed_ledger), Granted)
    assert timed_ledger.quota.list_holds(SOURCE) == ()


@pytest.mark.invariant("L11")
@pytest.mark.parametrize(("scope", "customer"), [("source", None), ("customer", ACCOUNTS[0])])
def test_release_lifts_a_hold_and_is_logged(
    timed_ledger: Ledger, clock: FakeClock, scope: str, customer: str | None
) -> None:
    """The next call is granted at once, days that waited are due, and the log names operator and reason."""
    waiting = key(ACCOUNTS[0])
    timed_ledger.quota.hold(
        Hold(source=SOURCE, until=clock.now + timedelta(hours=20), why="retry later", customer_id=customer)
    )
    fetch = FailedFetch(
        key=waiting,
        error_class="quota_exhausted",
        error_message="on hold",
        wait_until=clock.now + timedelta(hours=20),
    )
    timed_ledger.failed_fetches.record([fetch], POLICY)
    clock.tick()
    assert due(timed_ledger, clock.now) == []
    (hold,) = timed_ledger.quota.list_holds(SOURCE)
    assert hold.release_command == f"ads-pipeline state release --{scope} {hold.name} --reason TEXT"
    released = Parking(source=SOURCE, scope=scope, name=hold.name)
    assert timed_ledger.actions.release(released, action_request("lift"))
    assert not timed_ledger.actions.release(released, action_request("again"))
    assert isinstance(reserve(timed_ledger), Granted)
    assert due(timed_ledger, clock.now) == [waiting]
    assert [part.action for part in timed_ledger.audit.parts("lift")] == ["release"]


@pytest.mark.parametrize("scope", ["source", "customer", "query"])
def test_release_makes_used_up_days_of_its_scope_due(timed_ledger: Ledger, clock: FakeClock, scope: str) -> None:
    """Whatever their failures were. Days of other accounts or queries stay as they are, and so do rejections."""
    hit = key(ACCOUNTS[0])
    names = {"source": SOURCE, "customer": hit.customer_id, "query": hit.query_name}
    other = key(ACCOUNTS[1], query_name="ad_group_daily")
    for _ in range(POLICY.max_attempts):
        fail(timed_ledger, [hit, other], "rows_refused")
        clock.tick()
    timed_ledger.actions.release(Parking(source=SOURCE, scope=scope, name=names[scope]), action_request("release"))
    assert due(timed_ledger, clock.now) == ([hit, other] if scope == "source" else [hit])
    forecasts = timed_ledger.retry_queue.forecast(list(timed_ledger.states.get_many([hit]).values()), POLICY)
    assert isinstance(forecasts[hit].decision, RetryAt)


def probe_in_turn(url: str, results: "multiprocessing.Queue[list[int]]") -> None:
    """Ask for a call again and again for a while, and report the numbers of the granted ones."""
    numbers = list[int]()
    with Ledger.opened(url) as ledger:
        for number in range(20):
            answer = reserve(ledger, f"{2000 + number}")
            if isinstance(answer, Granted):
                numbers.append(answer.number)
    results.put(numbers)


@pytest.mark.invariant("L3")
def test_eight_processes_make_one_probe(url: str) -> None:
    """When a pause has ended, 160 requests of eight processes are granted exactly one call."""
    past = datetime.now(UTC) - timedelta(minutes=5)
    with Ledger.opened(url, clock=lambda: past) as ledger:
        discover(ledger)
        call(ledger, AWAY)
    context = fork_server()
    results = context.Queue()
    processes = [context.Process(target=probe_in_turn, args=(url, results)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    granted = [number for _ in processes for number in results.get(timeout=300)]
    for process in processes:
        process.join()
    assert len(granted) == 1
