"""Processes that race for partitions, are stopped and wake up late, or die: nobody works on what is another's."""

import itertools
import json
import multiprocessing
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.errors import LeaseLost
from ads_pipeline.ledger import database
from ads_pipeline.ledger.control.leases import Lease
from ads_pipeline.ledger.control.tables import claims, leases
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline_tests.ledger.builders import acceptance, key, keys, publish_runs, run
from ads_pipeline_tests.ledger.control.test_leases import WRITES
from ads_pipeline_tests.ledger.test_database_constraints import everything

T = TypeVar("T")
CONTESTED: Final = keys(6)
PROCESSES, THREADS = 4, 2
SECONDS_OF_RACING: Final = 5
SHORT: Final = timedelta(milliseconds=400)

# Holds a partition until it is told to go on; then it says of each write whether it was refused.
HOLDING = """
import sys
from datetime import timedelta
from ads_pipeline.errors import LeaseLost
from ads_pipeline.ledger.control.leases import Lease
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.domain.run_events import Origin
from ads_pipeline_tests.ledger.control.test_leases import WRITES
from ads_pipeline_tests.ledger.builders import key, run, sealed

url = sys.argv[1]
with (
    Lease.opened(url, "zombie", duration=timedelta(seconds=4)) as lease,
    Ledger.opened(url, origin=Origin(run_id="zombie", plan_version="p1"), lease=lease) as ledger,
):
    lease.claim([key()])
    ledger.register(sealed(run(key(), "r1"), run(key(), "r2")))
    print("holding", flush=True)
    sys.stdin.readline()
    for name, write in WRITES.items():
        try:
            write(ledger)
        except LeaseLost as error:
            print(f"{name}: {error}", flush=True)
        else:
            print(f"{name}: done", flush=True)
    print("kept" if lease.beat() else "lost", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holding(url: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that has claimed the partition and keeps its lease."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDING, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert said(child) == "holding"
        yield child
    finally:
        child.kill()
        child.communicate()


def said(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def go_on(child: "subprocess.Popen[str]") -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def heir_of(engine: sa.Engine, run_id: str = "heir") -> Lease:
    lease = Lease(engine, run_id, duration=timedelta(hours=1))
    lease.open()
    return lease


def until(look: Callable[[], T | None], seconds: float = 60) -> T:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = look()
        if found is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not in {seconds} s")


def granted(lease: Lease) -> int | None:
    """The fence of the partition, once it is granted."""
    return lease.claim([key()]).granted.get(key())


@pytest.mark.invariant("O3")
def test_who_wakes_up_after_its_lease_changes_nothing(url: str, backdoor: sa.Engine) -> None:
    """A process is stopped past its lease, while another takes over, judges and publishes. When it goes on, each of
    its writes is refused by name, its beat brings nothing back, and every row of the ledger is as it was."""
    with holding(url) as zombie:
        heir = heir_of(backdoor)
        time.sleep(5)  # longer than its lease, which it renews
        assert granted(heir) is None
        zombie.send_signal(signal.SIGSTOP)
        assert until(lambda: granted(heir)) == 2
        ledger = Ledger(backdoor, lease=heir)
        ledger.record_verdict(acceptance(run(key(), "r1")))
        assert publish_runs(ledger, run(key(), "r1")).published
        before = everything(backdoor)
        zombie.send_signal(signal.SIGCONT)
        go_on(zombie)
        answers = [said(zombie) for _ in WRITES]
        assert [answer.partition(": run heir claimed it at")[0] for answer in answers] == [
            f"{name}: {key()}: run zombie may not write of it" for name in WRITES
        ]
        assert said(zombie) == "lost"
        assert everything(backdoor) == before


@pytest.mark.invariant("O3")
def test_what_a_killed_process_held_is_free_when_its_lease_has_expired(url: str, backdoor: sa.Engine) -> None:
    """Killed at once, it ends nothing: the partition is held for as long as its last lease says, and then granted."""
    with holding(url) as victim, LedgerReader.opened(url) as reader:
        heir = heir_of(backdoor)
        victim.kill()
        victim.wait()
        holder = reader.lease_holders([key()])[key()]
        assert (holder.run_id, heir.claim([key()]).held) == ("zombie", {key(): holder})
        assert until(lambda: granted(heir)) == 2
        taken = database.transact(backdoor, lambda c: c.execute(sa.select(claims)).one())
        assert taken.claimed_at >= holder.until
        assert taken.claimed_at < holder.until + timedelta(seconds=10), "nobody would have waited for it"
        assert reader.lease_holders([key()])[key()].run_id == "heir"


def race(url: str, number: int, record: Path) -> None:
    """Claims and lets go of the partitions again and again, in several threads; writes down what was held when."""
    end = time.monotonic() + SECONDS_OF_RACING

    def work(thread: int) -> None:
        chance = random.Random(number * THREADS + thread)
        with record.with_stem(f"{number}-{thread}").open("w") as file:
            for turn in itertools.count():
                if time.monotonic() > end:
                    break
                file.write(_hold(engine, f"w{number}-{thread}-{turn}", chance))

    with database.opened(url) as engine, ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))


def _hold(engine: sa.Engine, run_id: str, chance: random.Random) -> str:
    """One run's life: it claims twice, holds, and ends or simply stops."""
    lease, held = Lease(engine, run_id, duration=SHORT), dict[PartitionKey, tuple[int, datetime]]()
    lease.open()
    with suppress(LeaseLost):  # a slow machine may take longer than its lease lasts
        for _ in range(2):
            fences = lease.claim(chance.sample(CONTESTED, 3)).granted
            held = {each: (fence, datetime.now(UTC)) for each, fence in fences.items()} | held
            time.sleep(chance.random() / 50)
    let_go = datetime.now(UTC)
    dies = chance.random() < 0.1
    if not dies:
        lease.end()
    rows = [(str(each), fence, run_id, str(since), str(let_go), dies) for each, (fence, since) in held.items()]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.invariant("O4")
def test_no_two_hold_a_partition_at_the_same_time(url: str, backdoor: sa.Engine, tmp_path: Path) -> None:
    """Processes of many threads race for the same partitions, some die holding them: each fence is of one run, the
    fences of a partition follow each other, and nobody was granted it before the holder before let go or expired."""
    context = multiprocessing.get_context("spawn")
    racers = [context.Process(target=race, args=(url, n, tmp_path / f"{n}.jsonl")) for n in range(PROCESSES)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * PROCESSES
    rows = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    expiries = {
        row.run_id: row.expires_at
        for row in database.transact(backdoor, lambda c: c.execute(sa.select(leases)).all())
    }
    of_partition = defaultdict[str, list[Any]](list)
    for row in rows:
        of_partition[row[0]].append(row[1:])
    assert set(of_partition) == set(map(str, CONTESTED))
    for history in of_partition.values():
        history.sort()
        assert [fence for fence, *_ in history] == list(range(1, len(history) + 1)), "a fence of two runs, or of none"
        for (_, holder, _, let_go, dies), (_, _, since, _, _) in itertools.pairwise(history):
            left = expiries[holder] if dies else min(expiries[holder], datetime.fromisoformat(let_go))
            assert datetime.fromisoformat(since) >= left
    assert any(dies for *_, dies in rows)
    assert len(rows) > 100, "there was hardly a race"
