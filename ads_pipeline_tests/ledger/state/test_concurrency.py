"""Concurrent writers on the same partitions: no lost updates, no double counts, no deadlocks."""

import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action, Effect, Status, Verdict
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.row_mapping import read_clock
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    accepted_runs,
    action_request,
    key,
    keys,
    record_verdict,
    registered_runs,
    rejection,
    run,
    sealed_runs,
)
from ads_pipeline_tests.processes import fork_server

WRITERS = 8
PARTITIONS = keys(6)
RUNS_PER_PARTITION = 12


def verdicts_by_writer() -> list[list[Verdict]]:
    """Return different verdicts on the same partitions for each writer. Every third is a rejection."""
    return [
        [
            (rejection if n % 3 == 2 else acceptance)(run(partition, f"w{writer}-{n}"))
            for partition in PARTITIONS
            for n in range(RUNS_PER_PARTITION)
        ]
        for writer in range(WRITERS)
    ]


def write_verdicts(url: str, writer: int) -> None:
    """Record the verdicts of a writer and a tenth of another's, in random order, 1 or 10 per call."""
    chance = random.Random(writer)
    own, others = verdicts_by_writer()[writer], verdicts_by_writer()[(writer + 1) % WRITERS]
    verdicts = own + chance.sample(others, len(others) // 10)
    chance.shuffle(verdicts)
    with Ledger.opened(url) as ledger:
        while verdicts:
            size = chance.choice([1, 1, 1, 10])
            ledger.verdicts.record(verdicts[:size])
            verdicts = verdicts[size:]


@pytest.mark.invariant("S6", "S7", "S8", "S10")
def test_concurrent_attempts_are_not_lost(url: str) -> None:
    """Eight processes judge the same partitions. attempt_count equals the number of distinct verdicts."""
    expected = RUNS_PER_PARTITION * WRITERS
    with Ledger.opened(url) as ledger:
        ledger.registrations.register(
            sealed_runs(*(verdict.run for verdicts in verdicts_by_writer() for verdict in verdicts))
        )
        context = fork_server()
        writers = [context.Process(target=write_verdicts, args=(url, writer)) for writer in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert [writer.exitcode for writer in writers] == [0] * WRITERS
        for partition in PARTITIONS:
            _check_history(ledger, partition, expected)


def _check_history(ledger: Ledger, partition: PartitionKey, expected: int) -> None:
    state, attempts = ledger.states.get(partition), ledger.runs.attempts(partition)
    assert state.attempt_count == len(attempts) == expected
    assert [attempt.attempt_no for attempt in attempts] == list(range(1, expected + 1))
    assert len({attempt.verdict.run for attempt in attempts}) == expected
    promoted = [attempt.ordinal for attempt in attempts if attempt.effect is Effect.PROMOTED]
    assert promoted == sorted(promoted), "an older run took authority"
    assert state.status is Status.SUCCESS
    assert state.current_run_id == next(
        registered.run.run_id
        for registered in ledger.runs.registered(partition)
        if registered.ordinal == promoted[-1]
    )


def test_overlapping_calls_do_not_deadlock(ledger: Ledger) -> None:
    """Threads register and judge the same partitions in different orders without a retried transaction."""
    partitions = keys(40)
    transactions = count_transactions(ledger.engine)

    def work(thread: int) -> None:
        chance = random.Random(thread)
        for turn in range(10):
            runs = [run(partition, f"t{thread}-{turn}") for partition in chance.sample(partitions, 25)]
            ledger.registrations.register(sealed_runs(*runs))
            chance.shuffle(runs)
            ledger.verdicts.record([acceptance(each) for each in runs])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert sum(state.attempt_count for state in ledger.states.get_many(partitions).values()) == 4 * 10 * 25
    assert transactions["begun"] == transactions["committed"], "a transaction was retried"


def count_transactions(engine: sa.Engine) -> dict[str, int]:
    counts = {"begun": 0, "committed": 0}

    def begun(_connection: sa.Connection) -> None:
        counts["begun"] += 1

    def committed(_connection: sa.Connection) -> None:
        counts["committed"] += 1

    sa.event.listen(engine, "begin", begun)
    sa.event.listen(engine, "commit", committed)
    return counts


def test_verdict_that_waited_for_the_lock_applies_to_the_new_state(postgres_url: str) -> None:
    """A verdict that waits for another transaction counts after it and sees its state."""
    partition = key()
    with Ledger.opened(postgres_url) as ledger, Ledger.opened(postgres_url) as slow:
        first, second, third = registered_runs(ledger, partition, "r1", "r2", "r3")
        record_verdict(ledger, acceptance(first))
        paused, resume = pause_commits(slow.engine)
        with ThreadPoolExecutor(2) as pool:
            slower = pool.submit(record_verdict, slow, acceptance(third))
            assert paused.wait(300)
            waiting = pool.submit(record_verdict, ledger, acceptance(second))
            wait_until_a_transaction_waits(postgres_url)
            resume.set()
            assert slower.result().effect is Effect.PROMOTED
            assert (waiting.result().effect, waiting.result().attempt_no) == (Effect.SUPERSEDED, 3)
        assert ledger.states.get(partition).current_run_id == "r3"


def test_actions_of_a_partition_have_the_order_of_their_times(postgres_url: str) -> None:
    """An action that waited for another one is logged after it, although it was called before that one committed."""
    with Ledger.opened(postgres_url) as ledger, Ledger.opened(postgres_url) as slow:
        accepted_runs(ledger, [key()])
        paused, resume = pause_commits(slow.engine)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(slow.actions.execute, Action.REPROCESS, [key()], action_request("z-first"))
            assert paused.wait(300)
            second = pool.submit(ledger.actions.execute, Action.WITHDRAW, [key()], action_request("a-second"))
            wait_until_a_transaction_waits(postgres_url)
            released = database.transact(ledger.engine, read_clock)
            resume.set()
            assert first.result().changed
            assert second.result().changed
        assert [act.action_id for act in ledger.audit.of_partition(key())] == ["z-first", "a-second"]
        assert ledger.audit.page(limit=1)[0].performed_at >= released


def test_clock_of_the_ledger_has_microseconds(ledger: Ledger) -> None:
    """Two actions can be executed within a millisecond. Their times must tell which was first."""
    assert any(database.transact(ledger.engine, read_clock).microsecond % 1_000 for _ in range(20))


def pause_commits(engine: sa.Engine) -> tuple[threading.Event, threading.Event]:
    """Let the commits of the engine wait. The events tell that one waits, and let it go on."""
    paused, resume = threading.Event(), threading.Event()

    def pause(_connection: sa.Connection) -> None:
        paused.set()
        resume.wait(300)

    sa.event.listen(engine, "commit", pause)
    return paused, resume


def wait_until_a_transaction_waits(url: str) -> None:
    engine = database.open_engine(url)
    for _ in itertools.repeat(None, 15_000):
        statement = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        if database.transact(engine, lambda c, text=statement: c.exec_driver_sql(text).scalar_one()):  # type: ignore[misc]
            break
        time.sleep(0.02)
    else:
        pytest.fail("no transaction waited for the lock")
    engine.dispose()
