"""Tests how the event log appends: dates, repeated events, concurrent writers and conflicts."""

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.errors import BadEvent
from ads_pipeline.domain.run_events import LEDGER_TYPES, AppendResult, Event
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.testing.event_strategies import (
    EMITTED_AT,
    make_completions,
    make_event,
)
from ads_pipeline_tests.ledger.builders import FakeClock, accepted_runs, key, open_part
from ads_pipeline_tests.ledger.state.test_concurrency import count_transactions, wait_until_a_transaction_waits
from ads_pipeline_tests.ledger.state.test_crashes import lose_one_commit

THREADS = 8
RUNS = 500
# Dates.


@pytest.mark.invariant("E15")
def test_persisted_at_never_decreases(timed_log: EventLog, clock: FakeClock) -> None:
    """If the clock goes back, an event gets the time of the one before it. `emitted_at` is stored unchanged."""
    seconds = [0, 5, -60, 2, 58, -1, 1]
    for number, step in enumerate(seconds):
        clock.tick(timedelta(seconds=step))
        timed_log.append_many(make_completions("r", number + 1))
    logged = timed_log.fetch("r")
    since = [(each.persisted_at - logged[0].persisted_at).total_seconds() for each in logged]
    assert since == [0, 5, 5, 5, 5, 5, 5]
    assert {each.event.emitted_at for each in logged} == {EMITTED_AT}
    clock.tick(timedelta(seconds=7))
    timed_log.append(make_event("r", "RunPaused"))
    (last,) = timed_log.fetch("r", after_seq=7)
    assert last.persisted_at == clock.now > logged[-1].persisted_at


@pytest.mark.invariant("E15")
def test_ledger_events_share_the_time_order(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Times never decrease along `run_seq`, also when writers with different clocks append to a run."""
    log = EventLog(timed_ledger.engine)  # uses the database's clock, which is months ahead
    origin = timed_ledger.origin
    accepted_runs(timed_ledger, [key("1")])
    log.append(origin.make_event("StepStarted", at=clock.now, step_id="s"))
    clock.tick()
    accepted_runs(timed_ledger, [key("2")])
    logged = log.fetch(origin.engine_run_id)
    assert len(logged) == 5
    assert all(earlier.persisted_at <= later.persisted_at for earlier, later in pairwise(logged))


# Appending.


@pytest.mark.parametrize("event_type", sorted(LEDGER_TYPES))
def test_ledger_event_types_are_refused_from_others(log: EventLog, event_type: str) -> None:
    """`append_many` refuses an event type that only the ledger emits, with the whole batch."""
    with pytest.raises(BadEvent, match=event_type):
        log.append_many([make_event("r", "RunStarted"), make_event("r", event_type, "s1")])
    assert log.get_head("r") is None


@pytest.mark.invariant("E4")
def test_lost_commit_acknowledgement_is_retried(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the acknowledgement of a commit is lost, the log retries by itself and stores nothing twice."""
    log.append_many([make_event("r", "RunStarted"), make_event("r", "RunPaused")])
    losses = lose_one_commit(log.engine, monkeypatch)
    appended = log.append_many(
        [make_event("r", "RunResumed"), make_event("r", "RunPaused"), *make_completions("new", 1)]
    )
    assert losses == ["lost"]
    assert appended == [AppendResult(run_seq=seq, idempotent=True) for seq in (3, 4, 1)]
    assert [each.event.logical_attempt_id for each in log.fetch("r")] == [1, 1, 1, 2]
    assert len(log.fetch("new")) == 1


@pytest.mark.invariant("E4", "E5")
@pytest.mark.parametrize("is_new", [True, False], ids=["new run", "known run"])
def test_concurrent_appends_of_one_event_store_it_once(log: EventLog, is_new: bool) -> None:
    """Of many threads that append one event, one stores it and all get its `run_seq`, also for a new run."""
    for turn in range(12):
        events = [make_event(f"r{turn}", "RunPaused"), *make_completions(f"r{turn}", 2)]
        if not is_new:
            log.append(make_event(f"r{turn}", "RunStarted"))
        results = run_concurrently([[event] for event in events for _ in range(THREADS // 2)], log)
        for number in range(len(events)):
            same = [result for (result,) in results[number * THREADS // 2 : (number + 1) * THREADS // 2]]
            assert sum(result.persisted for result in same) == 1
            assert len({result.run_seq for result in same}) == 1
        _check_gapless(log, f"r{turn}", len(events) + (not is_new))


@pytest.mark.invariant("E4")
@pytest.mark.parametrize("is_new", [True, False], ids=["new runs", "known runs"])
@pytest.mark.parametrize("numbered", [0, 3], ids=["numbered before", "numbered by the log"])
def test_batches_in_different_orders_do_not_deadlock(log: EventLog, is_new: bool, numbered: int) -> None:
    """Threads that append to the same runs in different orders all succeed without a retry."""
    tries = count_transactions(log.engine)
    runs = [f"r{number}" for number in range(RUNS)]
    if not is_new:
        log.append_many([make_event(engine_run_id, "RunStarted") for engine_run_id in runs])
    calls = list[list[Event]]()
    for thread in range(4):
        events = [make_event(engine_run_id, "StepStarted", f"s{thread}") for engine_run_id in runs]
        events += [
            make_event(engine_run_id, "RunPaused") for engine_run_id in random.Random(thread).sample(runs, numbered)
        ]
        calls.append(events[:: 1 if thread % 2 else -1])
    results = run_concurrently(calls, log)
    assert tries["begun"] == tries["committed"], "a transaction was retried"
    assert all(result.persisted for batch in results for result in batch)
    seqs = {engine_run_id: [each.run_seq for each in log.fetch(engine_run_id)] for engine_run_id in runs[::20]}
    assert all(found == list(range(1, len(found) + 1)) for found in seqs.values())
    heads = [head.last_seq for head, _snapshot in log.list_newest_runs(RUNS)]
    assert sum(heads) == 4 * (RUNS + numbered) + (0 if is_new else RUNS)


@pytest.mark.invariant("E4", "E5")
def test_append_reads_again_after_waiting_for_the_lock(postgres_url: str) -> None:
    """An append that finds no run and then waits for the same event of another writer returns its `run_seq`."""
    event, (other,) = make_event("r", "RunStarted"), make_completions("r", 1)
    release, held, first = threading.Event(), threading.Event(), list[Future[AppendResult]]()

    def pause(_connection: sa.Connection) -> None:
        held.set()
        release.wait(300)

    def create_run() -> None:
        slow.append(other)

    def append_slowly() -> None:
        sa.event.listen(slow.engine, "commit", pause)
        first.append(pool.submit(slow.append, event))
        assert held.wait(300)

    actions = iter([lambda: None, create_run, append_slowly])

    def before_statement(*arguments: Any) -> None:
        """Do nothing at the first lookup, create the run before the insert, lock it before the second lookup."""
        if arguments[2].startswith("EXECUTE"):
            next(actions, lambda: None)()

    with (
        open_part(EventLog, postgres_url) as log,
        open_part(EventLog, postgres_url) as slow,
        ThreadPoolExecutor(2) as pool,
    ):
        sa.event.listen(log.engine, "before_cursor_execute", before_statement)
        # The path that `append` takes after the plain insert was refused.
        waiting = pool.submit(database.transact, log.engine, lambda c: log._append_many(c, [event]))
        wait_until_a_transaction_waits(postgres_url)
        release.set()
        assert first[0].result() == AppendResult(run_seq=2, idempotent=False)
        assert waiting.result() == [AppendResult(run_seq=2, idempotent=True)]


@pytest.mark.invariant("E2", "E4")
def test_append_that_waited_for_its_duplicate_is_idempotent(postgres_url: str) -> None:
    """Of two concurrent appends of one event, the second returns the first one's `run_seq` and leaves no gap."""
    (event, other) = make_completions("r", 2)
    release, held = threading.Event(), threading.Event()

    def pause(_connection: sa.Connection) -> None:
        held.set()
        release.wait(300)

    with (
        open_part(EventLog, postgres_url) as log,
        open_part(EventLog, postgres_url) as slow,
        ThreadPoolExecutor(2) as pool,
    ):
        sa.event.listen(slow.engine, "commit", pause)
        first = pool.submit(slow.append, event)
        assert held.wait(300)
        waiting = pool.submit(log.append, event)
        wait_until_a_transaction_waits(postgres_url)
        release.set()
        assert first.result() == AppendResult(run_seq=1, idempotent=False)
        assert waiting.result() == AppendResult(run_seq=1, idempotent=True)
        assert log.append(other) == AppendResult(run_seq=2, idempotent=False)


@pytest.mark.invariant("E4")
def test_numbered_event_does_not_hide_an_unnumbered_one(log: EventLog) -> None:
    """A repeatable event without a number is stored beside a numbered one of the same batch."""
    numbered, unnumbered = make_event("r", "RunPaused", logical_attempt_id=1), make_event("r", "RunPaused")
    assert [each.persisted for each in log.append_many([numbered, unnumbered, unnumbered])] == [True, True, False]
    assert [each.event.logical_attempt_id for each in log.fetch("r")] == [1, 2]


@pytest.mark.invariant("E17")
def test_payload_conflicts_are_counted_per_run(log: EventLog) -> None:
    """The head of a run counts how often a known key came with another payload."""
    first = make_event("r", "RunStarted", event_data=1)
    log.append_many([first, make_event("s", "RunStarted")])
    other = make_event("r", "RunStarted", event_data=2)
    log.append_many([other, make_event("s", "RunStarted"), other])
    assert [head.payload_conflicts for head in map(log.get_head, "rs") if head] == [2, 0]


def run_concurrently(calls: list[list[Event]], log: EventLog) -> list[list[AppendResult]]:
    """Append each batch in its own thread, all at the same moment."""
    barrier = threading.Barrier(len(calls))

    def append(events: list[Event]) -> list[AppendResult]:
        barrier.wait(300)
        return log.append_many(events)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(append, calls))


def _check_gapless(log: EventLog, engine_run_id: str, count: int) -> None:
    assert [each.run_seq for each in log.fetch(engine_run_id)] == list(range(1, count + 1))
