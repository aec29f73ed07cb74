"""Many writers on the same partitions at once: nothing is lost, nothing counts twice, nobody deadlocks."""

import itertools
import multiprocessing
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Effect, Status, Verdict
from ads_pipeline.ledger import database
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.builders import acceptance, key, keys, registered_runs, rejection, run, sealed_runs

WRITERS = 8
CONTESTED = keys(6)
RUNS_EACH = 12


def shares() -> list[list[Verdict]]:
    """Each writer's verdicts: distinct from the others', on the same partitions; every third is a rejection."""
    return [
        [
            (rejection if n % 3 == 2 else acceptance)(run(partition, f"w{writer}-{n}"))
            for partition in CONTESTED
            for n in range(RUNS_EACH)
        ]
        for writer in range(WRITERS)
    ]


def write_share(url: str, writer: int) -> None:
    """Record one's own share in any order, by ones and by tens, and hear a tenth of another's again."""
    chance = random.Random(writer)
    mine, others = shares()[writer], shares()[(writer + 1) % WRITERS]
    verdicts = mine + chance.sample(others, len(others) // 10)
    chance.shuffle(verdicts)
    with Ledger.opened(url) as ledger:
        while verdicts:
            size = chance.choice([1, 1, 1, 10])
            ledger.record_verdicts(verdicts[:size])
            verdicts = verdicts[size:]


@pytest.mark.invariant("S6", "S7", "S8", "S10")
def test_attempts_are_never_lost(url: str) -> None:
    """Eight processes judge the same partitions: the count equals the distinct verdicts, heard twice or not."""
    expected = len(shares()[0]) // len(CONTESTED) * WRITERS
    with Ledger.opened(url) as ledger:
        ledger.register(sealed_runs(*(verdict.run for share in shares() for verdict in share)))
        context = multiprocessing.get_context("spawn")
        writers = [context.Process(target=write_share, args=(url, writer)) for writer in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert [writer.exitcode for writer in writers] == [0] * WRITERS
        for partition in CONTESTED:
            _check_history(ledger, partition, expected)


def _check_history(ledger: Ledger, partition: PartitionKey, expected: int) -> None:
    state, attempts = ledger.state(partition), ledger.attempts(partition)
    assert state.attempt_count == len(attempts) == expected
    assert [attempt.attempt_no for attempt in attempts] == list(range(1, expected + 1))
    assert len({attempt.run for attempt in attempts}) == expected
    promoted = [attempt.ordinal for attempt in attempts if attempt.effect is Effect.PROMOTED]
    assert promoted == sorted(promoted), "authority went back to an older run"
    assert state.status is Status.SUCCESS
    assert state.current_run_id == next(
        registered.run.run_id for registered in ledger.runs(partition) if registered.ordinal == promoted[-1]
    )


def test_overlapping_sets_in_any_order_do_not_deadlock(ledger: Ledger) -> None:
    """Threads that judge, register and list the same partitions in different orders all finish at the first try."""
    partitions = keys(40)
    tries = count_tries(ledger._engine)

    def work(thread: int) -> None:
        chance = random.Random(thread)
        for turn in range(10):
            runs = [run(partition, f"t{thread}-{turn}") for partition in chance.sample(partitions, 25)]
            ledger.register(sealed_runs(*runs))
            chance.shuffle(runs)
            ledger.record_verdicts([acceptance(each) for each in runs])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert sum(state.attempt_count for state in ledger.states(partitions).values()) == 4 * 10 * 25
    assert tries["begun"] - tries["committed"] == 0, "a transaction had to be tried again"


def count_tries(engine: sa.Engine) -> dict[str, int]:
    counted = {"begun": 0, "committed": 0}

    def begun(_connection: sa.Connection) -> None:
        counted["begun"] += 1

    def committed(_connection: sa.Connection) -> None:
        counted["committed"] += 1

    sa.event.listen(engine, "begin", begun)
    sa.event.listen(engine, "commit", committed)
    return counted


def test_a_verdict_that_waited_for_the_lock_sees_what_it_waited_for(postgres_url: str) -> None:
    """A verdict that arrives while another is being written counts after it, on the state that the other left."""
    partition = key()
    with Ledger.opened(postgres_url) as ledger, Ledger.opened(postgres_url) as slow:
        first, second, third = registered_runs(ledger, partition, "r1", "r2", "r3")
        ledger.record_verdict(acceptance(first))
        hold, held = threading.Event(), threading.Event()

        def pause(connection: sa.Connection) -> None:
            held.set()
            hold.wait(20)

        sa.event.listen(slow._engine, "commit", pause)
        with ThreadPoolExecutor(2) as pool:
            slower = pool.submit(slow.record_verdict, acceptance(third))
            assert held.wait(20)
            waiting = pool.submit(ledger.record_verdict, acceptance(second))
            wait_for_a_lock(postgres_url)
            hold.set()
            assert slower.result().effect is Effect.PROMOTED
            assert (waiting.result().effect, waiting.result().attempt_no) == (Effect.SUPERSEDED, 3)
        assert ledger.state(partition).current_run_id == "r3"


def wait_for_a_lock(url: str) -> None:
    engine = database.open_engine(url)
    for _ in itertools.repeat(None, 500):
        statement = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        if database.transact(engine, lambda c, text=statement: c.exec_driver_sql(text).scalar_one()):  # type: ignore[misc]
            break
        time.sleep(0.02)
    else:
        pytest.fail("nobody ever waited for the lock")
    engine.dispose()
