"""A reader who follows a run hears all that was acknowledged, once and in order, whoever writes, fails or dies."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.run_events import Event, LoggedEvent
from ads_pipeline.ledger import database
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline_tests.run_event_stores.builders import told

RUNS: Final = tuple(f"run-{number}" for number in range(4))
WRITERS: Final = 8
EACH: Final = 2_500
SINGLE: Final = 250  # of each writer's events are appended alone
Place = tuple[str, int, str]  # a run, a place in it and the step that is told of there


class RolledBack(Exception):
    """What a writer throws to have its transaction undone."""


def event(run_id: str, step_id: str) -> Event:
    return told(run_id, "StepCompleted", step_id)


def share(writer: int, each: int) -> list[Event]:
    """A writer's events, spread over the runs."""
    chance = random.Random(writer)
    return [event(chance.choice(RUNS), f"w{writer}-{number}") for number in range(each)]


def portions(events: Sequence[Event], chance: random.Random) -> Iterator[Sequence[Event]]:
    """Some of the events alone, the others by tens."""
    start, alone = 0, SINGLE
    while start < len(events):
        size = 1 if chance.random() < alone / (alone + (len(events) - start) / 30) else chance.randint(10, 50)
        alone -= size == 1
        yield events[start : start + size]
        start += size


def append_and_undo(log: EventLog, events: Sequence[Event]) -> None:
    """Appends in a transaction that fails afterwards."""

    def work(connection: sa.Connection) -> None:
        log._append_many(connection, events)
        raise RolledBack

    with pytest.raises(RolledBack):
        database.transact(log.engine, work)


def write_share(url: str, writer: int, acknowledged: Path) -> None:
    """Append one's share; a tenth of it is undone first, a tenth told again after oneself or another."""
    chance = random.Random(1_000 + writer)
    mine, others = share(writer, EACH), share((writer + 1) % WRITERS, EACH)
    told_before = 1
    with EventLog.opened(url) as log, acknowledged.open("w") as file:
        for events in portions(mine, chance):
            if chance.random() < 0.1:
                append_and_undo(log, events)
            again = chance.choices([*mine[:told_before], *others[:told_before]], k=len(events) // 10)
            append(log, chance.sample([*events, *again], len(events) + len(again)), to=file.fileno())
            if chance.random() < 0.1:
                append(log, [chance.choice(others[:told_before])], to=file.fileno())
            told_before += len(events)


def append(log: EventLog, events: Sequence[Event], *, to: int) -> None:
    """Append, and write down what was acknowledged: at once, so that it outlives the writer."""
    answers = [log.append(events[0])] if len(events) == 1 else log.append_many(events)
    places = [(each.run_id, answer.run_seq, each.step_id) for each, answer in zip(events, answers, strict=True)]
    os.write(to, "".join(json.dumps(place) + "\n" for place in places).encode())


def tail(url: str, done: threading.Event) -> dict[str, list[LoggedEvent]]:
    """Read every run behind the last place seen, again and again, until the writers are done and nothing is left."""
    heard: dict[str, list[LoggedEvent]] = {run_id: [] for run_id in RUNS}
    with EventReader.opened(url) as reader:
        while True:
            last_look, news = done.is_set(), 0
            for run_id, logged in heard.items():
                page = reader.fetch(run_id, after_seq=logged[-1].run_seq if logged else 0, limit=200)
                logged.extend(page)
                news += len(page)
            if last_look and not news:
                return heard
            time.sleep(0 if news else 0.01)


def acknowledged_in(files: Sequence[Path]) -> list[Place]:
    lines = [line for file in files for line in file.read_text().splitlines() if line]
    return [(run_id, seq, step_id) for run_id, seq, step_id in map(json.loads, lines)]


def places(heard: dict[str, list[LoggedEvent]]) -> list[Place]:
    return [(run_id, each.run_seq, str(each.event.step_id)) for run_id, logged in heard.items() for each in logged]


@pytest.mark.invariant("E1", "E2", "E3", "E4")
def test_a_reader_who_follows_hears_everything_once_and_in_order(url: str, tmp_path: Path) -> None:
    """Eight processes append 20,000 events, one by one and by tens, undo a tenth and repeat a tenth; none is lost."""
    done = threading.Event()
    files = [tmp_path / f"acknowledged-{writer}" for writer in range(WRITERS)]
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_share, args=(url, number, file)) for number, file in enumerate(files)]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(tail, url, done)
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        done.set()
        heard = reading.result(60)
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    acknowledged = acknowledged_in(files)
    assert set(places(heard)) == set(acknowledged)
    assert len(acknowledged) > len(set(acknowledged)), "nothing was told twice"
    for logged in heard.values():
        assert [each.run_seq for each in logged] == list(range(1, len(logged) + 1))
    steps = Counter(each.event.step_id for logged in heard.values() for each in logged)
    expected = {each.step_id for writer in range(WRITERS) for each in share(writer, EACH)}
    assert steps == dict.fromkeys(expected, 1)
    assert len(expected) == WRITERS * EACH


# Appends for ever, and writes down what was acknowledged, until it is killed.
MORTAL = """
import os, random, sys
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline_tests.ledger.events.test_event_order import RUNS, append, event

url, name, number = sys.argv[1], sys.argv[2], 0
with EventLog.opened(url) as log:
    os.write(1, bytes([10]))
    while True:
        size, chance = random.choice([1, 1, 20]), random.Random(number)
        append(log, [event(chance.choice(RUNS), f"{name}-{number + n}") for n in range(size)], to=1)
        number += size
"""


@pytest.mark.invariant("E2", "E3")
def test_a_reader_hears_what_killed_writers_had_acknowledged(url: str, tmp_path: Path) -> None:
    """Writers are killed at random moments while others go on: what they had acknowledged is read, once, in order."""
    chance, done, alive = random.Random(7), threading.Event(), list[subprocess.Popen[bytes]]()
    files = [tmp_path / f"acknowledged-{number}" for number in range(12)]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(tail, url, done)
        try:
            for number, file in enumerate(files):
                alive.append(_start(url, f"w{number}", file))
                if len(alive) == 4:
                    time.sleep(chance.uniform(0, 0.2))
                    _kill(alive.pop(chance.randrange(3)))
        finally:
            for writer in alive:
                _kill(writer)
            done.set()
        heard = reading.result(60)
    acknowledged = acknowledged_in(files)
    assert len(acknowledged) > 200, "hardly anything was appended"
    assert set(acknowledged) <= set(places(heard))
    for run_id, logged in heard.items():
        assert [each.run_seq for each in logged] == list(range(1, len(logged) + 1))
        assert len({each.idempotency_key for each in logged}) == len(logged), run_id
    # What a writer had sent and not been told of may be there as well: its last call, all of it or nothing.
    assert len(set(places(heard)) - set(acknowledged)) <= 20 * len(files)


def _start(url: str, name: str, file: Path) -> subprocess.Popen[bytes]:
    with file.open("wb") as written:
        writer = subprocess.Popen([sys.executable, "-c", MORTAL, url, name], stdout=written)
    deadline = time.monotonic() + 60
    while not file.stat().st_size:
        assert writer.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return writer


def _kill(writer: subprocess.Popen[bytes]) -> None:
    writer.send_signal(signal.SIGKILL)
    assert writer.wait(30) == -signal.SIGKILL
