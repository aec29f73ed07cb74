"""Tests leases across processes: races for partitions, processes that are stopped and resumed, and killed ones."""

import itertools
import json
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.errors import LeaseLost
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import claims, leases
from ads_pipeline.ledger.write_steps.leases import Lease
from ads_pipeline_tests.ledger.builders import acceptance, key, keys, publish_runs, record_verdict, run
from ads_pipeline_tests.ledger.control.test_leases import WRITES
from ads_pipeline_tests.ledger.test_database_constraints import read_all_tables
from ads_pipeline_tests.polling import wait_for
from ads_pipeline_tests.processes import fork_server

T = TypeVar("T")
CONTESTED: Final = keys(6)
PROCESSES, THREADS = 4, 2
SECONDS_OF_RACING, TURNS = 5, 20  # both are minimums: a slow machine has few turns in that time
SHORT: Final = timedelta(milliseconds=400)

# Claims a partition and waits for a line on standard input. Then it prints for each write whether it was refused.
HOLDER_SCRIPT = """
import sys
from datetime import timedelta
from ads_pipeline.domain.errors import LeaseLost
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline_tests.ledger.control.test_leases import WRITES
from ads_pipeline_tests.ledger.builders import key, open_lease, run, sealed_runs

url, wait = sys.argv[1], float(sys.argv[2])
with (
    open_lease(url, "suspended", duration=timedelta(seconds=4)) as lease,
    Ledger.opened(url, origin=EventOrigin(engine_run_id="suspended", plan_version="p1"), lease=lease) as ledger,
):
    lease.claim([key()])
    if wait:  # another process of the run has ended meanwhile
        lease.stay_open(timedelta(seconds=wait))
    ledger.registrations.register(sealed_runs(run(key(), "r1"), run(key(), "r2")))
    print("holding", flush=True)
    sys.stdin.readline()
    for name, write in WRITES.items():
        try:
            write(ledger)
        except LeaseLost as error:
            print(f"{name}: {error}", flush=True)
        else:
            print(f"{name}: done", flush=True)
    print("kept" if lease.renew() else "lost", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holder_process(url: str, wait: float = 0) -> Iterator["subprocess.Popen[str]"]:
    """A process that has claimed the partition and renews its lease. With a wait, its run has had another process."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER_SCRIPT, url, str(wait)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert read_line(child) == "holding"
        yield child
    finally:
        child.kill()
        child.communicate()


def read_line(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def send_newline(child: "subprocess.Popen[str]") -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def open_lease(engine: sa.Engine, engine_run_id: str = "successor") -> Lease:
    lease = Lease(engine, engine_run_id, duration=timedelta(hours=1))
    lease.open()
    return lease


def claim_fence(lease: Lease) -> int | None:
    """Claim the partition: its fence, or None while another run holds it."""
    return lease.claim([key()]).granted.get(key())


@pytest.mark.invariant("O3")
@pytest.mark.parametrize("wait", [0, 9], ids=["one process", "steps are processes"])
def test_process_resumed_after_its_lease_changes_nothing(url: str, backdoor: sa.Engine, wait: float) -> None:
    """A process is stopped past its lease while another run takes over, judges and publishes. After it resumes,
    each of its writes is refused, its lease cannot be renewed, and every row of the ledger stays as it was."""
    with holder_process(url, wait) as suspended:
        successor = open_lease(backdoor)
        time.sleep(5)  # longer than the lease, which the process renews
        assert claim_fence(successor) is None
        suspended.send_signal(signal.SIGSTOP)
        assert wait_for(lambda: claim_fence(successor)) == 2
        ledger = Ledger(backdoor, lease=successor)
        record_verdict(ledger, acceptance(run(key(), "r1")))
        assert publish_runs(ledger, run(key(), "r1")).published
        before = read_all_tables(backdoor)
        suspended.send_signal(signal.SIGCONT)
        send_newline(suspended)
        answers = [read_line(suspended) for _ in WRITES]
        assert [answer.partition(": run successor claimed it at")[0] for answer in answers] == [
            f"{name}: {key()}: run suspended may not write to it" for name in WRITES
        ]
        assert read_line(suspended) == "lost"
        assert read_all_tables(backdoor) == before


@pytest.mark.invariant("O3")
@pytest.mark.parametrize("wait", [0, 9], ids=["one process", "steps are processes"])
def test_claims_of_a_killed_process_are_free_after_its_lease(url: str, backdoor: sa.Engine, wait: float) -> None:
    """A killed process does not end its lease. Its partition is granted after the lease expires, and not before."""
    with holder_process(url, wait) as victim, LedgerReader.opened(url) as reader:
        successor = open_lease(backdoor)
        victim.kill()
        victim.wait()
        holder = reader.leases.holders([key()])[key()]
        assert (holder.engine_run_id, successor.claim([key()]).held) == ("suspended", {key(): holder})
        assert wait_for(lambda: claim_fence(successor)) == 2
        taken = database.transact(backdoor, lambda c: c.execute(sa.select(claims)).one())
        assert taken.claimed_at >= holder.expires_at
        assert taken.claimed_at < holder.expires_at + timedelta(seconds=10), "the grant came too late"
        assert reader.leases.holders([key()])[key()].engine_run_id == "successor"


def run_racer(url: str, number: int, record: Path) -> None:
    """Claims and releases the partitions repeatedly in several threads, and writes down who held what when."""
    end = time.monotonic() + SECONDS_OF_RACING

    def work(thread: int) -> None:
        chance = random.Random(number * THREADS + thread)
        with record.with_stem(f"{number}-{thread}").open("w") as file:
            for turn in itertools.count():
                if turn >= TURNS and time.monotonic() > end:
                    break
                file.write(_hold_partitions(engine, f"w{number}-{thread}-{turn}", chance))

    with database.open_checked_engine(url) as engine, ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))


def _hold_partitions(engine: sa.Engine, engine_run_id: str, chance: random.Random) -> str:
    """One run: it claims twice, maybe in two processes, holds, and then ends its lease or simply stops."""
    lease, held = Lease(engine, engine_run_id, duration=SHORT), dict[PartitionKey, tuple[int, datetime]]()
    lease.open()
    with suppress(LeaseLost):  # a slow machine may take longer than its lease lasts
        for _ in range(2):
            fences = lease.claim(chance.sample(CONTESTED, 3)).granted
            held = {each: (fence, datetime.now(UTC)) for each, fence in fences.items()} | held
            time.sleep(chance.random() / 50)
            if chance.random() < 0.5:
                lease.stay_open(SHORT / 2)
                lease = Lease(engine, engine_run_id, duration=SHORT)
                lease.open()
    let_go = datetime.now(UTC)
    dies = chance.random() < 0.1
    if not dies:
        lease.end()
    rows = [(str(each), fence, engine_run_id, str(since), str(let_go), dies) for each, (fence, since) in held.items()]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.invariant("O4")
def test_no_two_runs_hold_a_partition_at_once(url: str, backdoor: sa.Engine, tmp_path: Path) -> None:
    """Threads of several processes race for the same partitions, and some stop without ending their lease. Each fence
    belongs to one run, fences have no gaps, and no grant precedes the end or expiry of the previous one."""
    context = fork_server()
    racers = [context.Process(target=run_racer, args=(url, n, tmp_path / f"{n}.jsonl")) for n in range(PROCESSES)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * PROCESSES
    rows = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    expiries = {
        row.engine_run_id: row.expires_at
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
