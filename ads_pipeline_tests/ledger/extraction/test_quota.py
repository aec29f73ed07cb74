"""The budget of API operations: limits, lanes, the rolling window, holds, and reservations of several processes."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.errors import LedgerRefused
from ads_pipeline.domain.fetching.quota import (
    OK,
    WINDOW,
    Granted,
    Hold,
    Operation,
    OperationKind,
    OperationOutcome,
    OtherCall,
    QuotaLimits,
    Refused,
    SharedSince,
)
from ads_pipeline.domain.fetching.retry_policy import Lane
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import api_operations, instant_text
from ads_pipeline.ledger.write_steps.leases import Lease
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import FakeClock
from ads_pipeline_tests.processes import fork_server

SOURCE = "google_ads"
QUESTION = Operation(source=SOURCE, kind=OperationKind.LOOKBACK, customer_id="1")
FRESH, BACKFILL = Operation(source=SOURCE), Operation(source=SOURCE, lane=Lane.BACKFILL)
REPORT = Operation(
    source=SOURCE,
    lane=Lane.BACKFILL,
    customer_id="1234567890",
    query_name="campaign_daily",
    since=date(2026, 2, 1),
    until=date(2026, 2, 28),
)
PROCESSES, SHARED, TRIES = 8, 100, 60


def reserve_many(url: str, tries: int, granted: "multiprocessing.Queue[list[int]]") -> None:
    """Try to reserve operations, and report the numbers of the granted ones."""
    with Ledger.opened(url) as ledger:
        limits = QuotaLimits(daily_operations=SHARED)
        answers = [ledger.quota.reserve(FRESH, limits) for _ in range(tries)]
    granted.put([answer.number for answer in answers if isinstance(answer, Granted)])


def test_processes_never_spend_an_operation_twice(url: str) -> None:
    """Eight processes try 480 times to share 100 operations. Exactly 100 are granted, each once."""
    context = fork_server()
    granted = context.Queue()
    with Ledger.opened(url) as ledger:
        processes = [context.Process(target=reserve_many, args=(url, TRIES, granted)) for _ in range(PROCESSES)]
        for process in processes:
            process.start()
        numbers = sorted(number for _ in processes for number in granted.get(timeout=120))
        for process in processes:
            process.join()
        assert numbers == list(range(1, SHARED + 1))
        assert ledger.quota.usage(SOURCE, QuotaLimits(daily_operations=SHARED)).left(Lane.FRESH) == 0


def test_window_frees_an_operation_after_24_hours(timed_ledger: Ledger, clock: FakeClock) -> None:
    """A refusal names the moment; a microsecond before it the call is refused, and then it is granted."""
    limits, start = QuotaLimits(daily_operations=2), clock.now
    for _ in range(2):
        assert isinstance(timed_ledger.quota.reserve(FRESH, limits), Granted)
        clock.tick(timedelta(minutes=10))
    for expected in (start + WINDOW, start + WINDOW + timedelta(minutes=10)):
        refused = timed_ledger.quota.reserve(FRESH, limits)
        assert refused == Refused(until=expected, why="2 of 2 operations were used within 24 hours")
        clock.now = expected - timedelta(microseconds=1)
        assert isinstance(timed_ledger.quota.reserve(FRESH, limits), Refused)
        clock.now = expected
        assert isinstance(timed_ledger.quota.reserve(FRESH, limits), Granted)


@contextmanager
def ledger_of_run(url: str, engine_run_id: str, clock: FakeClock) -> Iterator[Ledger]:
    """The ledger of a run that holds a lease of a minute, which it does not renew."""
    with database.open_checked_engine(url) as engine:
        lease = Lease(engine, engine_run_id, duration=timedelta(minutes=1), clock=clock)
        lease.open()
        yield Ledger(
            engine, clock=clock, origin=EventOrigin(engine_run_id=engine_run_id, plan_version="p1"), lease=lease
        )
        lease.end()


def test_call_of_another_run_is_shared_until_it_ends(url: str, clock: FakeClock) -> None:
    """While a run calls for some of the days, no other run may, and nothing is counted."""
    shared, limits = SharedSince(at=clock.now, final=frozenset({"denied"}), final_at=clock.now), QuotaLimits()
    overlapping = replace(REPORT, since=REPORT.until, until=date(2026, 3, 9))
    others = (
        replace(REPORT, since=date(2026, 3, 1), until=date(2026, 3, 9)),
        replace(REPORT, customer_id="2"),
        replace(REPORT, query_name="ad_group_daily"),
    )
    with ledger_of_run(url, "first", clock) as first, ledger_of_run(url, "second", clock) as second:
        granted = first.quota.reserve_shared(REPORT, limits, shared)
        assert isinstance(granted, Granted)
        assert second.quota.reserve_shared(overlapping, limits, shared) == OtherCall(engine_run_id="first")
        assert second.quota.usage(SOURCE, limits).used == 1
        assert all(isinstance(second.quota.reserve_shared(each, limits, shared), Granted) for each in others)
        assert isinstance(second.quota.reserve(overlapping, limits), Granted), "a call that is not shared"
        first.quota.finish(granted, OperationOutcome(outcome=OK))
        assert isinstance(second.quota.reserve_shared(REPORT, limits, shared), Granted)


def test_final_answer_of_another_run_is_not_asked_for_again(url: str, clock: FakeClock) -> None:
    """A refusal counts for the runs that began before it, or while its run lasts. Later ones know of the parking."""
    limits, began = QuotaLimits(), clock.now
    shared = SharedSince(at=began, final=frozenset({"denied"}), final_at=began)
    clock.tick()
    later = replace(shared, final_at=clock.now + timedelta(hours=1))
    with ledger_of_run(url, "second", clock) as second:
        with ledger_of_run(url, "first", clock) as first:
            granted = first.quota.reserve_shared(REPORT, limits, shared)
            assert isinstance(granted, Granted)
            refusal = OperationOutcome(outcome="denied", error_message="No permission\n", request_id="r-1")
            first.quota.finish(granted, refusal)
            refused = OtherCall(engine_run_id="first", refusal=replace(refusal, error_message="No permission\\n"))
            assert second.quota.reserve_shared(REPORT, limits, later) == refused
        assert second.quota.reserve_shared(REPORT, limits, shared) == refused
        next_backfill = replace(shared, at=clock.now + timedelta(seconds=1))
        assert isinstance(second.quota.reserve_shared(REPORT, limits, next_backfill), Granted)
        assert isinstance(second.quota.reserve_shared(REPORT, limits, later), Granted)


def test_call_of_a_run_that_died_stands_in_the_way_until_its_lease_expires(url: str, clock: FakeClock) -> None:
    """A run that died in its call never records an outcome. Its lease bounds how long others wait."""
    shared, limits = SharedSince(at=clock.now, final=frozenset(), final_at=clock.now), QuotaLimits()
    with ledger_of_run(url, "dead", clock) as dead, Ledger.opened(url, clock=clock) as other:
        assert isinstance(dead.quota.reserve_shared(REPORT, limits, shared), Granted)
        assert isinstance(other.quota.reserve_shared(REPORT, limits, shared), OtherCall)
        clock.tick(timedelta(minutes=1))
        assert isinstance(other.quota.reserve_shared(REPORT, limits, shared), Granted)


def test_share_of_fresh_days_is_never_used_by_backfills(timed_ledger: Ledger) -> None:
    """Backfills stop at three quarters. Fresh days use the rest, and all of it when there are no backfills."""
    limits = QuotaLimits(daily_operations=8)
    backfills = [timed_ledger.quota.reserve(BACKFILL, limits) for _ in range(8)]
    assert [isinstance(answer, Granted) for answer in backfills] == [True] * 6 + [False] * 2
    assert isinstance(backfills[-1], Refused)
    assert "used 6 of 6 operations" in backfills[-1].why
    usage = timed_ledger.quota.usage(SOURCE, limits)
    assert (usage.used, usage.reserved, usage.left(Lane.FRESH), usage.left(Lane.BACKFILL)) == (6, 2, 2, 0)
    fresh = [timed_ledger.quota.reserve(FRESH, limits) for _ in range(3)]
    assert [isinstance(answer, Granted) for answer in fresh] == [True, True, False]


def test_questions_about_accounts_leave_the_share_to_fresh_days(timed_ledger: Ledger) -> None:
    """Together with backfills they leave the reserved share. Backfills stop earlier, so that discovery goes on."""
    limits = QuotaLimits(daily_operations=40)
    asked = [timed_ledger.quota.reserve(QUESTION, limits) for _ in range(10)]
    backfills = [timed_ledger.quota.reserve(BACKFILL, limits) for _ in range(40)]
    asked += [timed_ledger.quota.reserve(QUESTION, limits) for _ in range(40)]
    counts = [sum(isinstance(each, Granted) for each in answers) for answers in (asked, backfills)]
    assert counts == [12, 18]
    fresh = [timed_ledger.quota.reserve(FRESH, limits) for _ in range(12)]
    assert [isinstance(answer, Granted) for answer in fresh] == [True] * 10 + [False] * 2


def reserve_until_refused(url: str, operation: Operation, tries: int, granted: "multiprocessing.Queue[int]") -> None:
    with Ledger.opened(url) as ledger:
        limits = QuotaLimits(daily_operations=40)
        answers = [ledger.quota.reserve(operation, limits) for _ in range(tries)]
    granted.put(sum(isinstance(answer, Granted) for answer in answers))


def test_fresh_days_get_their_share_in_a_race(url: str) -> None:
    """Three backfills and two discoveries want 200 operations of 40; the ten of the fresh days are granted."""
    context = fork_server()
    fresh, others = context.Queue(), context.Queue()
    calls = [(FRESH, 10, fresh), *[(BACKFILL, 40, others)] * 3, *[(QUESTION, 40, others)] * 2]
    processes = [context.Process(target=reserve_until_refused, args=(url, *call)) for call in reversed(calls)]
    for process in processes:
        process.start()
    assert fresh.get(timeout=300) == 10
    assert sum(others.get(timeout=300) for _ in calls[1:]) == 30
    for process in processes:
        process.join()


def test_no_limit_grants_everything(timed_ledger: Ledger) -> None:
    """Operations are counted also without a limit."""
    assert all(isinstance(timed_ledger.quota.reserve(BACKFILL, QuotaLimits()), Granted) for _ in range(5))
    usage = timed_ledger.quota.usage(SOURCE, QuotaLimits())
    assert (usage.used, usage.left(Lane.FRESH), usage.reserved) == (5, None, None)


def test_hold_stops_the_calls_of_every_run(url: str, clock: FakeClock) -> None:
    """One run stores that the source asked to wait; another run reads it before its call."""
    until = clock.now + timedelta(hours=2)
    with Ledger.opened(url, clock=clock) as one, Ledger.opened(url, clock=clock) as other:
        one.quota.hold(Hold(source=SOURCE, until=until, why="RESOURCE_EXHAUSTED, retry later", request_id="q1"))
        one.quota.hold(Hold(source=SOURCE, until=until - timedelta(hours=1), why="an earlier end"))
        refused = other.quota.reserve(REPORT, QuotaLimits())
        assert refused == Refused(until=until, why="RESOURCE_EXHAUSTED, retry later")
        assert isinstance(other.quota.reserve(Operation(source="another"), QuotaLimits()), Granted)
        clock.now = until
        assert isinstance(other.quota.reserve(REPORT, QuotaLimits()), Granted)


def test_hold_of_a_customer_stops_only_its_calls(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Another customer goes on, and so do calls about no customer."""
    hold = Hold(source=SOURCE, customer_id=REPORT.customer_id, until=clock.now + timedelta(hours=1), why="busy")
    timed_ledger.quota.hold(hold)
    other = Operation(source=SOURCE, customer_id="7")
    answers = [timed_ledger.quota.reserve(each, QuotaLimits()) for each in (REPORT, other, FRESH)]
    assert [isinstance(answer, Granted) for answer in answers] == [False, True, True]
    assert timed_ledger.quota.usage(SOURCE, QuotaLimits()).holds == (hold,)


def test_outcome_is_a_second_row_and_one_event(timed_ledger: Ledger, backdoor: sa.Engine) -> None:
    """A repeated report adds nothing. The event has neither rows nor headers of the answer."""
    granted = timed_ledger.quota.reserve(REPORT, QuotaLimits())
    assert isinstance(granted, Granted)
    outcome = OperationOutcome(outcome=OK, request_id="q-1", rows=17, seconds=1.25, consumption=3)
    for _ in range(2):
        timed_ledger.quota.finish(granted, outcome)
    rows = database.transact(backdoor, lambda c: c.execute(sa.select(api_operations)).all())
    assert sorted((row.entry, row.outcome, row.request_id, row.milliseconds) for row in rows) == [
        ("finished", "ok", "q-1", 1250),
        ("reserved", None, None, None),
    ]
    events = [each.event for each in timed_ledger.events.fetch(timed_ledger.origin.engine_run_id)]
    (spent,) = [each for each in events if each.event_type == "OperationSpent"]
    assert (spent.step_id, spent.event_data["rows_received"], spent.event_data["until"]) == (None, 17, "2026-02-28")
    assert timed_ledger.quota.usage(SOURCE, QuotaLimits()).used == 1


def test_operations_of_one_run_are_separate_events(timed_ledger: Ledger) -> None:
    """Each operation has an event of its own, and accounts are counted like reports."""
    for kind in OperationKind:
        granted = timed_ledger.quota.reserve(Operation(source=SOURCE, kind=kind), QuotaLimits())
        assert isinstance(granted, Granted)
        timed_ledger.quota.finish(granted, OperationOutcome(outcome="transient"))
    events = [each.event for each in timed_ledger.events.fetch(timed_ledger.origin.engine_run_id)]
    kinds = [each.event_data["kind"] for each in events if each.event_type == "OperationSpent"]
    assert kinds == [str(kind) for kind in OperationKind]


def waiting_events(ledger: Ledger) -> list[dict[str, object]]:
    events = [each.event for each in ledger.events.fetch(ledger.origin.engine_run_id)]
    return [dict(each.event_data) for each in events if each.event_type == "QuotaWaiting" and each.step_id is None]


def test_run_emits_one_event_when_it_has_to_wait(timed_ledger: Ledger, clock: FakeClock, url: str) -> None:
    """Not one for each refused call. Another run that waits has its own; a run that never waits has none."""
    limits, start, report = QuotaLimits(daily_operations=1), clock.now, replace(REPORT, lane=Lane.FRESH)
    timed_ledger.quota.reserve(report, limits)
    assert waiting_events(timed_ledger) == []
    for _ in range(3):
        assert isinstance(timed_ledger.quota.reserve(report, limits), Refused)
    assert waiting_events(timed_ledger) == [
        {
            "until": instant_text(start + WINDOW),
            "why": "1 of 1 operations were used within 24 hours",
            "customer_id": REPORT.customer_id,
            "query_name": REPORT.query_name,
        }
    ]
    with Ledger.opened(url, clock=clock) as other:
        assert other.origin.engine_run_id != timed_ledger.origin.engine_run_id
        assert isinstance(other.quota.reserve(FRESH, limits), Refused)
        assert [each["until"] for each in waiting_events(other)] == [instant_text(start + WINDOW)]
    assert len(waiting_events(timed_ledger)) == 1


def test_hold_of_the_source_emits_the_same_event(timed_ledger: Ledger, clock: FakeClock) -> None:
    """With the request that the source refused. Calls that the hold refuses add no event."""
    until = clock.now + timedelta(hours=2)
    hold = Hold(source=SOURCE, until=until, why="RESOURCE_EXHAUSTED, retry later", request_id="q1")
    for _ in range(2):
        timed_ledger.quota.hold(hold)
        assert isinstance(timed_ledger.quota.reserve(REPORT, QuotaLimits()), Refused)
    assert waiting_events(timed_ledger) == [{"until": instant_text(until), "why": hold.why, "request_id": "q1"}]


def test_spent_operations_cannot_be_forgotten(timed_ledger: Ledger, backdoor: sa.Engine) -> None:
    """The database refuses to delete an operation and to change it."""
    timed_ledger.quota.reserve(FRESH, QuotaLimits())
    for statement in (
        "DELETE FROM api_operations",
        "UPDATE api_operations SET lane = 'backfill'",
    ):
        with pytest.raises(LedgerRefused):
            database.transact(backdoor, lambda c, text=statement: c.exec_driver_sql(text))  # type: ignore[misc]


def test_reader_sees_the_usage_and_reserves_nothing(timed_ledger: Ledger, url: str) -> None:
    """A command that only shows the budget cannot spend it."""
    timed_ledger.quota.reserve(FRESH, QuotaLimits())
    with LedgerReader.opened(url) as reader:
        assert not hasattr(reader.quota, "reserve")
        assert reader.quota.usage(SOURCE, QuotaLimits(daily_operations=9)).left(Lane.FRESH) == 9


def test_clock_that_goes_back_frees_nothing(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Times keep the order of the numbers."""
    limits = QuotaLimits(daily_operations=1)
    start = clock.now
    timed_ledger.quota.reserve(FRESH, limits)
    clock.now = start - timedelta(hours=5)
    refused = timed_ledger.quota.reserve(FRESH, limits)
    assert isinstance(refused, Refused)
    assert refused.until == start + WINDOW


def test_operation_granted_after_the_clock_went_back_counts_as_long_as_the_one_before(
    timed_ledger: Ledger, clock: FakeClock
) -> None:
    """It is never before the last operation, so that it does not leave the window of 24 hours earlier."""
    limits, start = QuotaLimits(daily_operations=2), clock.now
    for now in (start, start - timedelta(hours=5)):
        clock.now = now
        granted = timed_ledger.quota.reserve(FRESH, limits)
        assert isinstance(granted, Granted)
    assert granted == Granted(operation=FRESH, number=2)
    for now in (start + timedelta(hours=19), start + WINDOW - timedelta(microseconds=1)):
        clock.now = now
        refused = timed_ledger.quota.reserve(FRESH, limits)
        assert isinstance(refused, Refused)
        assert refused.until == start + WINDOW
    clock.now = start + WINDOW
    assert isinstance(timed_ledger.quota.reserve(FRESH, limits), Granted)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from([FRESH, BACKFILL, QUESTION]), st.integers(-400, 400)), min_size=1, max_size=25
    ),
    limit=st.integers(1, 30),
    share=st.sampled_from([0.0, 0.25, 0.5]),
)
@settings(max_examples=examples(20), deadline=None)
def test_grants_follow_from_a_plain_count(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Operation, int]], limit: int, share: float
) -> None:
    """The numbers give the same answer as counting the operations of the last 24 hours one by one.

    After the clock went back, an operation has the time of the one before it.
    """
    url, clock = f"sqlite:///{tmp_path_factory.mktemp('quota')}/ledger.db", FakeClock()
    limits, granted = (
        QuotaLimits(daily_operations=limit, reserved_for_fresh=share),
        list[tuple[datetime, Operation]](),
    )
    with Ledger.opened(url, clock=clock) as ledger:
        for operation, minutes in steps:
            clock.tick(timedelta(minutes=minutes))
            counted = [each for at, each in granted if at > clock.now - WINDOW]
            others = sum(each is not FRESH for each in counted)
            own = limits.limit_of(Lane.BACKFILL) if operation is BACKFILL else limits.limit_of_others
            assert own is not None
            expected = len(counted) < limit and (operation is FRESH or others < own)
            answer = ledger.quota.reserve(operation, limits)
            assert isinstance(answer, Granted) is expected
            if isinstance(answer, Refused):
                clock.now = answer.until
                assert isinstance(ledger.quota.reserve(operation, limits), Granted)
            granted.append((max(clock.now, granted[-1][0]) if granted else clock.now, operation))


@pytest.mark.parametrize("spent", [0, 500])
def test_reservation_needs_few_statements(timed_ledger: Ledger, spent: int) -> None:
    """Their number does not grow with the operations in the window. `make bench` measures the time."""
    limits, statements = QuotaLimits(daily_operations=2 * spent + 2), list[str]()
    for _ in range(spent + 1):
        timed_ledger.quota.reserve(BACKFILL, limits)

    def count(_connection: object, _cursor: object, statement: str, *_others: object) -> None:
        statements.append(statement)

    sa.event.listen(timed_ledger.engine, "before_cursor_execute", count)
    assert isinstance(timed_ledger.quota.reserve(BACKFILL, limits), Granted)
    assert len([each for each in statements if not each.startswith("BEGIN")]) <= 3, statements
