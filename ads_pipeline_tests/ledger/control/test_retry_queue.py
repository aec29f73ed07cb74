"""Tests the retry queue: scheduled retries, due partitions, open requests and parkings."""

import itertools
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.errors import ActionIdReused, MarkedTerminal
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.retry_forecast import UNLIMITED_AGE, Parking
from ads_pipeline.domain.fetching.retry_policy import (
    PENDING_CLASSES,
    AttemptEnd,
    Lane,
    RetryAt,
    RetryPolicy,
    decide_retry,
    lane_for,
    last_failure,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    action_request,
    key,
    record_verdict,
    registered_runs,
    rejection,
    run,
    sealed_runs,
)

POLICY = RetryPolicy()
TODAY = date(2026, 3, 1)
SOURCE = "google_ads"
FRESH = PartitionKey(source=SOURCE, customer_id="1", query_name="campaign_daily", logical_date=date(2026, 2, 28))
OLD = key("2", day=1)
GONE = replace(FRESH, customer_id="3", logical_date=date(2025, 11, 1))


def record_success(ledger: Ledger, partition: PartitionKey, run_id: str) -> None:
    (good,) = registered_runs(ledger, partition, run_id)
    record_verdict(ledger, acceptance(good))


def record_failure(
    ledger: Ledger, partition: PartitionKey, run_id: str = "r1", error_class: str = "contract"
) -> None:
    (bad,) = registered_runs(ledger, partition, run_id)
    record_verdict(ledger, rejection(bad, error_class=error_class))


def find_due(ledger: Ledger, *, today: date = TODAY, policy: RetryPolicy = POLICY) -> list[PartitionKey]:
    """All that is due, the same before and after new failures are scheduled."""

    def find() -> list[PartitionKey]:
        queue = ledger.retry_queue
        return [each.key for lane in Lane for each in queue.find_due(policy, lane, source=SOURCE, today=today)]

    unscheduled = find()
    ledger.retry_queue.schedule_failures(policy, today=today)
    assert find() == unscheduled
    return unscheduled


def find_due_requests(ledger: Ledger, *, today: date = TODAY, policy: RetryPolicy = POLICY) -> list[PartitionKey]:
    return [
        each.key
        for lane in Lane
        for each in ledger.retry_queue.find_due_requests(policy, lane, source=SOURCE, today=today)
    ]


def test_failure_is_due_after_its_delay(timed_ledger: Ledger, clock: FakeClock) -> None:
    """The delay grows with each failure in a row; a success is never due."""
    accepted_runs(timed_ledger, [key("9")])
    record_failure(timed_ledger, OLD)
    assert find_due(timed_ledger) == []
    clock.tick(timedelta(minutes=6))
    assert find_due(timed_ledger) == [OLD]
    record_failure(timed_ledger, OLD, "r2")
    assert find_due(timed_ledger) == []
    clock.tick(timedelta(minutes=29))
    assert find_due(timed_ledger) == []
    clock.tick(timedelta(minutes=8))
    assert find_due(timed_ledger) == [OLD]
    assert timed_ledger.retry_queue.find_scheduled([OLD])[OLD].why == "rows violate the contract; attempt 3 of 6"
    record_success(timed_ledger, OLD, "r3")
    assert find_due(timed_ledger) == []
    assert timed_ledger.retry_queue.find_scheduled([OLD]) == {}


def test_failures_are_counted_since_the_last_acceptance(timed_ledger: Ledger, clock: FakeClock) -> None:
    """A month of restatements does not use up the attempts of the first failure after it."""
    for number in range(1, 31):
        accepted_runs(timed_ledger, [OLD], f"r{number}")
    record_failure(timed_ledger, OLD, "r31")  # set aside: the success stands, and nothing is due
    clock.tick(timedelta(days=1))
    assert find_due(timed_ledger) == []
    record_verdict(timed_ledger, rejection(run(OLD, "r30"), validation_id="again"))
    clock.tick(timedelta(days=1))
    assert find_due(timed_ledger) == [OLD]
    assert (
        timed_ledger.states.get(OLD).attempt_count,
        timed_ledger.retry_queue.find_scheduled([OLD])[OLD].failures,
    ) == (
        32,
        2,
    )


@pytest.mark.invariant("S17")
def test_terminal_partitions_are_not_due(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Too many failures, an old date and a mark end retries; a policy that allows more resumes them."""
    for number in range(POLICY.max_attempts):
        record_failure(timed_ledger, OLD, f"r{number}")
    record_failure(timed_ledger, GONE)
    record_failure(timed_ledger, FRESH)
    timed_ledger.actions.execute(Action.MARK_TERMINAL, [FRESH], action_request("mark"))
    clock.tick(timedelta(days=1))
    assert find_due(timed_ledger) == []
    patient = RetryPolicy(max_attempts=7, max_age=timedelta(days=900))
    assert find_due(timed_ledger, policy=patient) == [GONE, OLD]
    timed_ledger.actions.execute(Action.CLEAR_TERMINAL, [FRESH], action_request("clear"))
    assert find_due(timed_ledger) == [FRESH]


def test_longest_due_come_first_in_each_lane(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Each lane is queried separately, with its own limit."""
    for customer in ("5", "4"):
        record_failure(timed_ledger, key(customer))
        clock.tick()
    record_failure(timed_ledger, FRESH)
    clock.tick(timedelta(hours=1))
    timed_ledger.retry_queue.schedule_failures(POLICY, today=TODAY)
    options = {"source": SOURCE, "today": TODAY, "limit": 1}
    (fresh,) = timed_ledger.retry_queue.find_due(POLICY, Lane.FRESH, **options)  # type: ignore[arg-type]
    assert fresh.key == FRESH
    (backfill,) = timed_ledger.retry_queue.find_due(POLICY, Lane.BACKFILL, **options)  # type: ignore[arg-type]
    scheduled = timed_ledger.retry_queue.find_scheduled([key("4"), key("5")])
    assert backfill == min(scheduled.values(), key=lambda each: each.due_at or datetime.max.replace(tzinfo=UTC))
    assert timed_ledger.retry_queue.find_due(POLICY, Lane.FRESH, source="other", today=TODAY) == []


def test_demoted_partition_is_not_retried_automatically(timed_ledger: Ledger, clock: FakeClock) -> None:
    """A retry would accept the same data again, so only a control action starts one."""
    accepted_runs(timed_ledger, [OLD])
    taken_back = rejection(run(OLD, "r1"), error_class="demoted", validation_id="demote-1")
    record_verdict(timed_ledger, taken_back)
    clock.tick(timedelta(days=2))
    assert find_due(timed_ledger) == []
    assert timed_ledger.retry_queue.find_scheduled([OLD])[OLD].due_at is None
    timed_ledger.actions.execute(Action.REQUEUE, [OLD], action_request())
    assert find_due_requests(timed_ledger) == [OLD]


def test_request_is_open_until_the_next_verdict(timed_ledger: Ledger, clock: FakeClock) -> None:
    """A request is due until the partition has one more attempt, accepted or not."""
    again, new, better = key("4"), key("5"), key("6")
    record_failure(timed_ledger, again)
    accepted_runs(timed_ledger, [better])
    timed_ledger.actions.execute(Action.REQUEUE, [again], action_request("a"))
    clock.tick()
    timed_ledger.actions.execute(Action.ENQUEUE, [new], action_request("b"))
    clock.tick()
    assert timed_ledger.actions.execute(Action.REPROCESS, [better], action_request("c")).changed
    assert timed_ledger.actions.execute(Action.REPROCESS, [better], action_request("d")).unchanged == (better,)
    assert find_due_requests(timed_ledger) == [again, new, better]
    kinds = {
        partition: request.kind
        for partition, request in timed_ledger.retry_queue.find_requests([again, better]).items()
    }
    assert kinds == {again: "retry", better: "reprocess"}
    record_failure(timed_ledger, better, "r2")
    assert timed_ledger.states.get(better).status is Status.SUCCESS
    record_success(timed_ledger, again, "r2")
    assert find_due_requests(timed_ledger) == [new]
    find_due(timed_ledger)
    assert list(timed_ledger.retry_queue.find_requests([again, new, better])) == [new]


def test_exhausted_quota_costs_no_attempt(timed_ledger: Ledger, clock: FakeClock) -> None:
    """The partition is due at the time that the source named, with all its attempts left."""
    until = clock.now + timedelta(hours=9)
    timed_ledger.actions.execute(Action.ENQUEUE, [FRESH], action_request())
    for _ in range(20):
        clock.tick()
        (scheduled,) = timed_ledger.failed_fetches.record(
            [FailedFetch(key=FRESH, error_class="quota_exhausted", error_message="no more today", wait_until=until)],
            POLICY,
        ).values()
    assert scheduled is not None
    assert (scheduled.failures, scheduled.due_at) == (0, until)
    assert timed_ledger.states.get(FRESH).attempt_count == 0
    assert find_due_requests(timed_ledger) == []
    clock.now = until
    assert find_due_requests(timed_ledger) == [FRESH]


def test_failed_fetches_and_rejections_count_together(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Both are failures in a row that an acceptance ends; only verdicts are attempts."""
    for number in range(3):
        clock.tick()
        record_failure(timed_ledger, OLD, f"r{number}")
        clock.tick()
        record_failed_fetch(timed_ledger, OLD, "timeout")
    assert timed_ledger.retry_queue.find_scheduled([OLD])[OLD].failures == 6
    clock.tick(timedelta(days=1))
    assert find_due(timed_ledger) == []
    record_success(timed_ledger, OLD, "r9")
    clock.tick()
    record_failed_fetch(timed_ledger, OLD, "timeout")
    assert timed_ledger.retry_queue.find_scheduled([OLD])[OLD].failures == 1


@pytest.mark.parametrize(
    ("error_class", "scope", "name"),
    [("customer_not_enabled", "customer", "1"), ("unrecognized_field", "query", "campaign_daily")],
)
def test_account_or_query_error_parks_it(
    timed_ledger: Ledger, clock: FakeClock, error_class: str, scope: str, name: str
) -> None:
    """All partitions of a parked account or query wait until it is released; others continue."""
    other_query, other_customer = replace(FRESH, query_name="other"), replace(FRESH, customer_id="7")
    neighbour = other_query if scope == "customer" else other_customer
    unrelated = replace(FRESH, customer_id="8", query_name="other")
    for partition in (neighbour, unrelated):
        record_failure(timed_ledger, partition)
    clock.tick(timedelta(hours=1))
    record_failed_fetch(timed_ledger, FRESH, error_class)
    assert find_due(timed_ledger) == [unrelated]
    (parking,) = timed_ledger.retry_queue.list_parkings(SOURCE)
    assert (parking.scope, parking.name, parking.error_class) == (scope, name, error_class)
    assert timed_ledger.actions.release(parking, action_request("release-1"))
    assert timed_ledger.actions.release(parking, action_request("release-1"))  # the same request again
    assert not timed_ledger.actions.release(parking, action_request("release-2"))
    assert set(find_due(timed_ledger)) == {neighbour, unrelated, FRESH}
    (forecast,) = timed_ledger.retry_queue.forecast([timed_ledger.states.get(FRESH)], POLICY).values()
    assert isinstance(forecast.decision, RetryAt)
    assert forecast.is_due
    with pytest.raises(ActionIdReused):
        timed_ledger.actions.park(parking, action_request("release-1"))


def test_wait_of_an_old_backfill_never_ends(timed_ledger: Ledger, clock: FakeClock) -> None:
    """The quota may end in the middle of years of days, which nobody requested but a backfill in Dagster's UI."""
    years_ago = replace(OLD, logical_date=TODAY - timedelta(days=1_000))
    for _ in range(50):
        record_failed_fetch(timed_ledger, years_ago, "quota_exhausted")
        clock.tick(timedelta(hours=3))
        assert find_due(timed_ledger) == [years_ago]
    (forecast,) = timed_ledger.retry_queue.forecast([timed_ledger.states.get(years_ago)], POLICY).values()
    assert (forecast.is_due, forecast.terminal) == (True, None)
    assert timed_ledger.retry_queue.find_scheduled([years_ago])[years_ago].failures == 0
    record_failed_fetch(timed_ledger, years_ago, "transient")
    clock.tick(timedelta(days=1))
    assert find_due(timed_ledger) == []


def test_refused_credentials_park_the_source(timed_ledger: Ledger, clock: FakeClock) -> None:
    """One parking stops every partition of the source, retries and requests alike, until it is released."""
    other = replace(FRESH, customer_id="7", query_name="other")
    record_failure(timed_ledger, other)
    clock.tick(timedelta(hours=1))
    timed_ledger.actions.execute(Action.ENQUEUE, [OLD], action_request("enqueue"))
    record_failed_fetch(timed_ledger, FRESH, "credentials_refused")
    assert (find_due(timed_ledger), find_due_requests(timed_ledger)) == ([], [])
    (parking,) = timed_ledger.retry_queue.list_parkings(SOURCE)
    assert (parking.scope, parking.name, parking.target) == ("source", SOURCE, f"source {SOURCE}")
    states = timed_ledger.states.get_many([OLD, other]).values()
    forecasts = timed_ledger.retry_queue.forecast(list(states), POLICY)
    assert [(forecast.parkings, forecast.is_due) for forecast in forecasts.values()] == [((parking,), False)] * 2
    assert timed_ledger.actions.release(parking, action_request("release"))
    assert (find_due(timed_ledger), find_due_requests(timed_ledger)) == ([other, FRESH], [OLD])


def test_failed_fetch_keeps_the_request_id(timed_ledger: Ledger, log: EventLog, backdoor: sa.Engine) -> None:
    """Support finds a request by its id, so the row and the event have it."""
    failed = FailedFetch(key=OLD, error_class="transient", error_message="reset", request_id="q-17")
    timed_ledger.failed_fetches.record([failed], POLICY)
    rows = database.transact(backdoor, lambda c: c.exec_driver_sql("SELECT request_id FROM finished_attempts").all())
    (event,) = [
        each.event for each in log.fetch(timed_ledger.origin.engine_run_id) if each.event.event_type == "FetchFailed"
    ]
    assert ([row.request_id for row in rows], event.event_data["request_id"]) == (["q-17"], "q-17")


def test_operator_parks_and_releases(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Parked partitions wait; parking again keeps the first reason."""
    record_failure(timed_ledger, OLD)
    clock.tick(timedelta(hours=1))
    parking = Parking(source=SOURCE, scope="customer", name="2", error_class="by_operator", why="moves to us in May")
    assert timed_ledger.actions.park(parking, action_request("park-1"))
    assert not timed_ledger.actions.park(parking, action_request("park-2"))
    assert find_due(timed_ledger) == []
    assert timed_ledger.actions.release(parking, action_request("release-1"))
    assert find_due(timed_ledger) == [OLD]


def test_marked_partition_is_not_requeued(ledger: Ledger) -> None:
    """Only failed partitions can be marked; a requeue is refused until the mark is cleared; each action is logged."""
    record_failure(ledger, OLD)
    accepted_runs(ledger, [key("9")])
    marked = ledger.actions.execute(Action.MARK_TERMINAL, [OLD, key("9")], action_request("mark"))
    assert ([state.key for state in marked.changed], len(marked.refused)) == ([OLD], 1)
    assert ledger.actions.execute(Action.MARK_TERMINAL, [OLD], action_request("mark-2")).unchanged == (OLD,)
    assert ledger.retry_queue.find_marked([OLD, key("9")]) == {OLD}
    (refusal,) = ledger.actions.execute(Action.REQUEUE, [OLD], action_request("retry")).refused.values()
    assert isinstance(refusal, MarkedTerminal)
    assert ledger.states.get(OLD).status is Status.FAILED
    assert ledger.actions.execute(Action.CLEAR_TERMINAL, [OLD], action_request("clear")).changed
    assert ledger.actions.execute(Action.CLEAR_TERMINAL, [OLD], action_request("clear-2")).unchanged == (OLD,)
    assert ledger.actions.execute(Action.MARK_TERMINAL, [OLD], action_request("mark-3")).changed
    assert ledger.actions.execute(Action.CLEAR_TERMINAL, [OLD], action_request("clear-3")).changed
    assert ledger.actions.execute(Action.REQUEUE, [OLD], action_request("retry-2")).changed
    assert [act.action for act in ledger.audit.of_partition(OLD)] == [
        *("mark_terminal", "clear_terminal", "mark_terminal", "clear_terminal", "requeue")
    ]


def test_actions_without_state_change_emit_events(ledger: Ledger, log: EventLog) -> None:
    """Marks, requests and failed fetches emit events, also when they are repeated."""
    record_failure(ledger, OLD)
    accepted_runs(ledger, [key("9")])
    for number in range(2):
        ledger.actions.execute(Action.MARK_TERMINAL, [OLD], action_request(f"mark-{number}"))
        ledger.actions.execute(Action.CLEAR_TERMINAL, [OLD], action_request(f"clear-{number}"))
        record_failed_fetch(ledger, OLD, "timeout")
    ledger.actions.execute(Action.REPROCESS, [key("9")], action_request("reprocess"))
    events = [each.event.event_type for each in log.fetch(ledger.origin.engine_run_id)]
    assert events[-7:] == [*(["TerminalMarked", "TerminalCleared", "FetchFailed"] * 2), "ReprocessRequested"]


@pytest.mark.invariant("S17")
def test_mark_follows_from_the_log_of_actions(timed_ledger: Ledger, clock: FakeClock) -> None:
    """The last action of the two decides, in the order in which they were executed: a clock may go back."""
    record_verdict(timed_ledger, rejection(registered_runs(timed_ledger, OLD, "r1")[0]))
    for number, action in enumerate((Action.MARK_TERMINAL, Action.CLEAR_TERMINAL, Action.MARK_TERMINAL)):
        timed_ledger.actions.execute(action, [OLD], action_request(f"action-{number}"))
        is_marked = OLD in timed_ledger.retry_queue.find_marked([OLD, FRESH])
        assert is_marked == (action is Action.MARK_TERMINAL)
        clock.tick(-timedelta(hours=1))


def test_schedule_of_more_attempts_is_kept(timed_ledger: Ledger, clock: FakeClock, backdoor: sa.Engine) -> None:
    """Scheduling from an older read does not overwrite a newer schedule."""
    record_failure(timed_ledger, OLD)
    record_failure(timed_ledger, OLD, "r2")
    timed_ledger.retry_queue.schedule_failures(POLICY, today=TODAY)
    later = "UPDATE retry_queue SET attempt_no = 7, why = 'scheduled later'"
    database.transact(backdoor, lambda c: c.exec_driver_sql(later))
    clock.tick()
    record_failed_fetch(timed_ledger, OLD, "timeout")
    assert timed_ledger.retry_queue.find_scheduled([OLD])[OLD].why == "scheduled later"


def record_failed_fetch(ledger: Ledger, partition: PartitionKey, error_class: str) -> None:
    failed = FailedFetch(key=partition, error_class=error_class, error_message="it did not come")
    ledger.failed_fetches.record([failed], POLICY)


REQUESTS = ("requeue", "reprocess")
# Each example has customers, and so an action id, of its own. Of one length, they have the same order in each.
_customer_ids = itertools.count(10**9)
histories = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(
            ["accept", "contract", "demoted", "quota_exhausted", "customer_not_enabled", "timeout", *REQUESTS]
        ),
        st.integers(0, 4000),
    ),
    max_size=14,
)


@pytest.mark.invariant("S17")
@given(history=histories, max_attempts=st.integers(1, 4), marks=st.sets(st.integers(0, 3)))
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_the_database_finds_due_is_what_the_policy_says(
    url: str, history: list[tuple[int, str, int]], max_attempts: int, marks: set[int]
) -> None:
    """Failures are due that `decide_retry` retries by now, and forecasts agree with both lists, requests included."""
    policy, clock = RetryPolicy(max_attempts=max_attempts), FakeClock()
    with Ledger.opened(url, clock=clock) as ledger:
        partitions = _new_partitions()
        ends: dict[PartitionKey, list[AttemptEnd]] = {each: [] for each in partitions}
        for number, (position, what, wait) in enumerate(history):
            partition = partitions[position]
            clock.tick(timedelta(seconds=1 + wait))
            if what in REQUESTS:
                request = action_request(f"{what}-{partition.customer_id}-{number}")
                ledger.actions.execute(Action[what.upper()], [partition], request)
            else:
                ends[partition].append(_happens(ledger, partition, what, f"r{number}", policy))
        states, requests = ledger.states.get_many(partitions), ledger.retry_queue.find_requests(partitions)
        failed = [each for each in partitions if states[each].status is Status.FAILED]
        # Nobody requested these days, and their fetch failed before any verdict.
        unfetched = [
            each for each in partitions if states[each].recorded_status is Status.PENDING and each not in requests
        ]
        marked = {partitions[position] for position in marks} & set(failed)
        ledger.actions.execute(Action.MARK_TERMINAL, marked, action_request(f"mark-{partitions[0].customer_id}"))
        parked = {parking.name for parking in ledger.retry_queue.list_parkings(SOURCE)}
        expected = set[PartitionKey]()
        for each in failed + unfetched:
            failure = last_failure(each, ends[each])
            assert failure is not None
            is_waiting = each in unfetched and failure.error_class in PENDING_CLASSES
            unlimited = replace(policy, max_age=UNLIMITED_AGE) if is_waiting else policy
            answer = decide_retry(failure, unlimited, marked=each in marked, today=TODAY)
            if isinstance(answer, RetryAt) and answer.at <= clock.now and each.customer_id not in parked:
                expected.add(each)
        assert set(find_due(ledger, policy=policy)) & set(partitions) == expected
        for lane in Lane:
            found = ledger.retry_queue.find_due(policy, lane, source=SOURCE, today=TODAY)
            assert all(lane_for(each.key, TODAY) is lane for each in found)
        requested = set(find_due_requests(ledger, policy=policy)) & set(partitions)
        forecasts = ledger.retry_queue.forecast(list(states.values()), policy)
        assert {key for key, forecast in forecasts.items() if forecast.is_due} == expected | requested


def _happens(ledger: Ledger, partition: PartitionKey, what: str, run_id: str, policy: RetryPolicy) -> AttemptEnd:
    if what in {"accept", "contract", "demoted"}:
        ledger.registrations.register(sealed_runs(run(partition, run_id)))
        verdict = acceptance(run(partition, run_id))
        if what != "accept":
            verdict = rejection(run(partition, run_id), error_class=what)
        recorded = record_verdict(ledger, verdict)
        at = recorded.state.updated_at
        assert at is not None
        return AttemptEnd(at=at, accepted=what == "accept", error_class=None if what == "accept" else what)
    failed = FailedFetch(key=partition, error_class=what, error_message="no")
    (scheduled,) = ledger.failed_fetches.record([failed], policy).values()
    assert scheduled is not None
    return AttemptEnd(at=scheduled.failed_at, error_class=what)


def _new_partitions() -> list[PartitionKey]:
    """Partitions that no earlier example used: one ledger per example would take far longer."""
    days = (FRESH.logical_date, OLD.logical_date, GONE.logical_date, date(2026, 2, 20))
    return [replace(FRESH, customer_id=str(next(_customer_ids)), logical_date=day) for day in days]
