"""Interrupted landings in a bucket (R1, R3, R4): a crash, fault or race at any request leaves a whole run or none.

A proxy between the landing process and the bucket kills the process before or after the service carries out a
request, or fails requests at random."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier

import pytest

from ads_pipeline.domain.errors import RawUnavailable, RunExists, RunNotSealed
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline_tests.builders import PAYLOAD_OF_ROWS, ROWS, find_runs, key, run, seal_facts
from ads_pipeline_tests.example_counts import TIMES, examples
from ads_pipeline_tests.lake.storage.fault_proxy import LOST_ANSWERS, Fault, FaultProxy, start_fault_proxy

LAND = """
import sys
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline_tests.builders import ROWS, run, seal_facts
RawRuns(sys.argv[1]).land(run(), ROWS, seal_facts())
"""


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    with start_fault_proxy(s3_endpoint) as started:
        started.hold = 0.8
        yield started


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """What a process left that died at its n-th request."""

    location: str
    requests: tuple[str, ...]
    executed: bool  # whether the service carried out the last request
    survived: bool

    @property
    def is_sealed(self) -> bool:
        carried_out = self.requests if self.executed else self.requests[:-1]
        return self.survived or any("metadata.json" in each and each.startswith("PUT") for each in carried_out)


def crash(proxy: FaultProxy, location: str, fatal: int, *, executed: bool) -> Crash:
    """Land a run in a process that is killed at a request, before or after it is carried out."""
    environ = os.environ | {"AWS_ENDPOINT_URL": proxy.endpoint}
    proxy.requests.clear()
    process = subprocess.Popen([sys.executable, "-c", LAND, location], env=environ)

    def choose(_method: str, _path: str) -> Fault | None:
        if len(proxy.requests) < fatal:
            return None
        if not executed:
            process.kill()
        return Fault.EXECUTED_AND_RESET if executed else Fault.RESET

    proxy.choose = choose
    proxy.after_execution = process.kill if executed else lambda: None
    code = process.wait(60)
    assert code in {0, -signal.SIGKILL}
    return Crash(location=location, requests=tuple(proxy.requests), executed=executed, survived=code == 0)


@pytest.fixture
def crashes(proxy: FaultProxy, s3_location: str) -> list[Crash]:
    """A crash before and after each request of a landing, and at last a landing that survives."""
    found: list[Crash] = []
    while not (found and found[-1].survived):
        fatal = len(found) // 2 + 1
        found += [
            crash(proxy, f"{s3_location}/{fatal}/{executed}", fatal, executed=executed) for executed in (False, True)
        ]
    return found


@pytest.mark.invariant("R1", "R3")
def test_crash_leaves_whole_run_or_none(crashes: list[Crash]) -> None:
    """Until the seal is put nothing is listed or read; from then on the run is complete.

    Either way, a landing under a new run_id succeeds. The old one is taken once the payload is put: that is the price
    of a bucket."""
    kinds = Counter[str]()
    for each in crashes:
        raw = RawRuns(each.location, is_in_use=lambda: False)
        if each.is_sealed:
            with raw.open(run()) as (seal, payload):
                assert (find_runs(raw), payload.read()) == ([seal], PAYLOAD_OF_ROWS), each
        else:
            assert find_runs(raw) == [], each
            with pytest.raises(RunNotSealed):
                raw.verify(run())
        again = raw.land(run("again"), ROWS, seal_facts())
        assert again in raw.list_runs(key())
        try:
            raw.land(run(), ROWS, seal_facts())
            kinds["free"] += 1
        except RunExists:
            kinds["sealed" if each.is_sealed else "lost"] += 1
    requests = [each.partition(" ")[0] + " " + each.rpartition("/")[2] for each in crashes[-1].requests]
    assert requests[-2:] == ["PUT payload.jsonl", "PUT metadata.json"]
    assert kinds == {"free": len(crashes) - 5, "lost": 2, "sealed": 3}, kinds
    print(f"\n{len(crashes)} crashes around {len(requests)} requests: {dict(kinds)}")


@pytest.mark.invariant("R3", "R4")
@pytest.mark.parametrize("name", ["payload.jsonl", "metadata.json"])
@pytest.mark.parametrize("fault", LOST_ANSWERS)
def test_own_lost_answer_is_a_success(
    proxy: FaultProxy, s3_location: str, monkeypatch: pytest.MonkeyPatch, name: str, fault: Fault
) -> None:
    """When the answer to either put is lost, the landing goes on: it is not mistaken for another's run."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    monkeypatch.setenv("AWS_TIMEOUT", "400ms")
    left = [fault]
    proxy.choose = lambda method, path: left.pop() if left and method == "PUT" and path.endswith(name) else None
    raw = RawRuns(s3_location)
    seal = raw.land(run(), ROWS, seal_facts())
    assert proxy.fired == {fault: 1}
    assert find_runs(raw) == [raw.verify(run())] == [seal]


def land_in_storm(
    location: str, rounds: int, racer: int, start: Barrier, results: "SimpleQueue[tuple[int, list[str]]]"
) -> None:
    """In each round, land the run that every other racer lands too; put what became of each into `results`."""
    outcomes = []
    for number in range(rounds):
        waiting = [start]

        def rows(waiting: list[Barrier] = waiting) -> Iterator[dict[str, int]]:
            yield from ({"racer": racer, "row": n} for n in range(racer + 1))
            waiting.pop().wait(300)  # every racer has checked by now that the name is free

        try:
            RawRuns(location).land(run(f"round-{number}"), rows(), seal_facts())
            outcomes.append("won")
        except RunExists:
            outcomes.append("lost")
        except RawUnavailable:
            outcomes.append("unknown")
        for barrier in waiting:  # this racer failed before it wrote; the others still count on it
            barrier.wait(300)
    results.put((racer, outcomes))


@pytest.mark.invariant("R4")
@pytest.mark.parametrize("rate", [0.5, *([0.93] if TIMES > 1 else [])])  # at 0.93 few racers learn who won
def test_at_most_one_of_four_racers_wins_in_a_storm(
    proxy: FaultProxy, s3_location: str, monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    """Of processes that land the same run while puts fail, at most one is told that it won, and its rows are read.

    Nobody's rows are mixed with another's seal. A run without a winner has one that got an error, or no seal."""
    rounds, racers = examples(4), 4
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    monkeypatch.setenv("AWS_TIMEOUT", "400ms")
    proxy.fail_at_random(seed=23, rate=rate, methods="PUT HEAD")  # racers meet after their listing
    spawn = multiprocessing.get_context("spawn")
    start, results = spawn.Barrier(racers), spawn.SimpleQueue()
    field = [
        spawn.Process(target=land_in_storm, args=(s3_location, rounds, n, start, results), daemon=True)
        for n in range(racers)
    ]
    for process in field:
        process.start()
    for process in field:
        process.join(3_000)
    assert [process.exitcode for process in field] == [0] * racers
    outcomes = dict(results.get() for _ in field)
    results.close()
    proxy.choose = lambda _method, _path: None
    raw, counts = RawRuns(s3_location), Counter[str]()
    for number in range(rounds):
        answers = [outcomes[racer][number] for racer in range(racers)]
        counts.update(answers)
        assert answers.count("won") <= 1
        try:
            with raw.open(run(f"round-{number}")) as (_seal, payload):
                lines = [json.loads(line) for line in payload]
        except RunNotSealed:
            assert "won" not in answers
            counts["unsealed"] += 1
            continue
        (owner,) = {line["racer"] for line in lines}
        assert lines == [{"racer": owner, "row": n} for n in range(owner + 1)]
        assert answers[owner] in ({"won"} if "won" in answers else {"unknown"})
        counts["sealed"] += 1
    assert sum(proxy.fired.values()) > rounds
    print(f"\n{rounds} rounds of {racers} racers: {dict(counts)}; faults fired: {dict(sorted(proxy.fired.items()))}")
