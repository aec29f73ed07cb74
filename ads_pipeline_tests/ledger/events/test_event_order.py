"""Tests that a polling reader gets every acknowledged event once and in order, despite rollbacks and crashes."""

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.run_events import Event, LoggedEvent
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.sql import database
from ads_pipeline.testing.event_strategies import make_event
from ads_pipeline_tests.example_counts import TIMES
from ads_pipeline_tests.ledger.builders import open_part
from ads_pipeline_tests.polling import wait_for
from ads_pipeline_tests.processes import fork_server

RUNS: Final = tuple(f"run-{number}" for number in range(4))
WRITERS: Final = 8
EVENTS_PER_WRITER: Final = 500 * min(TIMES, 5)
SINGLE_APPENDS: Final = EVENTS_PER_WRITER // 10  # per writer; the other events are appended in batches
Position = tuple[str, int, str]  # engine_run_id, run_seq, step_id


class RolledBack(Exception):
    """Raised by a writer to roll back its transaction."""


def step_completed(engine_run_id: str, step_id: str) -> Event:
    return make_event(engine_run_id, "StepCompleted", step_id)


def writer_events(writer: int, count: int) -> list[Event]:
    """Return a writer's events, spread over the runs."""
    chance = random.Random(writer)
    return [step_completed(chance.choice(RUNS), f"w{writer}-{number}") for number in range(count)]


def split_into_appends(events: Sequence[Event], chance: random.Random) -> Iterator[Sequence[Event]]:
    """Yield some events alone and the others in batches of 10 to 50."""
    start, single = 0, SINGLE_APPENDS
    while start < len(events):
        size = 1 if chance.random() < single / (single + (len(events) - start) / 30) else chance.randint(10, 50)
        single -= size == 1
        yield events[start : start + size]
        start += size


def append_and_roll_back(log: EventLog, events: Sequence[Event]) -> None:
    """Append in a transaction that is rolled back."""

    def work(connection: sa.Connection) -> None:
        log._append_many(connection, events)
        raise RolledBack

    with pytest.raises(RolledBack):
        database.transact(log.engine, work)


def write_events(url: str, writer: int, acknowledged: Path) -> None:
    """Append a writer's events. A tenth is rolled back first, and the same or another writer repeats a tenth."""
    chance = random.Random(1_000 + writer)
    mine, others = writer_events(writer, EVENTS_PER_WRITER), writer_events((writer + 1) % WRITERS, EVENTS_PER_WRITER)
    sent_count = 1
    with open_part(EventLog, url) as log, acknowledged.open("w") as file:
        for events in split_into_appends(mine, chance):
            if chance.random() < 0.1:
                append_and_roll_back(log, events)
            repeated = chance.choices([*mine[:sent_count], *others[:sent_count]], k=len(events) // 10)
            append(log, chance.sample([*events, *repeated], len(events) + len(repeated)), to=file.fileno())
            if chance.random() < 0.1:
                append(log, [chance.choice(others[:sent_count])], to=file.fileno())
            sent_count += len(events)


def append(log: EventLog, events: Sequence[Event], *, to: int) -> None:
    """Append, and write the acknowledged positions to a file descriptor without a buffer."""
    results = [log.append(events[0])] if len(events) == 1 else log.append_many(events)
    appended = [
        (each.engine_run_id, result.run_seq, each.step_id) for each, result in zip(events, results, strict=True)
    ]
    os.write(to, "".join(json.dumps(position) + "\n" for position in appended).encode())


def poll_all_runs(url: str, done: threading.Event) -> dict[str, list[LoggedEvent]]:
    """Poll every run for new events until the writers are done and no event is left."""
    received: dict[str, list[LoggedEvent]] = {engine_run_id: [] for engine_run_id in RUNS}
    with open_part(EventReader, url) as reader:
        while True:
            is_last_poll, new_count = done.is_set(), 0
            for engine_run_id, logged in received.items():
                page = reader.fetch(engine_run_id, after_seq=logged[-1].run_seq if logged else 0, limit=200)
                logged.extend(page)
                new_count += len(page)
            if is_last_poll and not new_count:
                return received
            time.sleep(0 if new_count else 0.01)


def read_acknowledged(files: Sequence[Path]) -> list[Position]:
    lines = [line for file in files for line in file.read_text().splitlines() if line]
    return [(engine_run_id, seq, step_id) for engine_run_id, seq, step_id in map(json.loads, lines)]


def positions(received: dict[str, list[LoggedEvent]]) -> list[Position]:
    return [
        (engine_run_id, each.run_seq, str(each.event.step_id))
        for engine_run_id, logged in received.items()
        for each in logged
    ]


@pytest.mark.invariant("E1", "E2", "E3", "E4")
def test_polling_reader_gets_every_event_once_in_order(url: str, tmp_path: Path) -> None:
    """Eight processes append thousands of events, roll back a tenth and repeat a tenth. The reader misses none."""
    done = threading.Event()
    files = [tmp_path / f"acknowledged-{writer}" for writer in range(WRITERS)]
    context = fork_server()
    writers = [context.Process(target=write_events, args=(url, number, file)) for number, file in enumerate(files)]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(poll_all_runs, url, done)
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        done.set()
        received = reading.result(600)
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    acknowledged = read_acknowledged(files)
    assert set(positions(received)) == set(acknowledged)
    assert len(acknowledged) > len(set(acknowledged)), "no event was repeated"
    for logged in received.values():
        assert [each.run_seq for each in logged] == list(range(1, len(logged) + 1))
    steps = Counter(each.event.step_id for logged in received.values() for each in logged)
    expected = {each.step_id for writer in range(WRITERS) for each in writer_events(writer, EVENTS_PER_WRITER)}
    assert steps == dict.fromkeys(expected, 1)
    assert len(expected) == WRITERS * EVENTS_PER_WRITER


def write_endlessly(url: str, name: str, acknowledged: Path) -> None:
    """Append and acknowledge until the process is killed. The first line is empty."""
    number = 0
    with open_part(EventLog, url) as log, acknowledged.open("wb", buffering=0) as file:
        file.write(b"\n")
        while True:
            size, chance = random.choice([1, 1, 20]), random.Random(number)
            events = [step_completed(chance.choice(RUNS), f"{name}-{number + n}") for n in range(size)]
            append(log, events, to=file.fileno())
            number += size


@pytest.mark.invariant("E2", "E3")
def test_events_of_killed_writers_are_not_lost(url: str, tmp_path: Path) -> None:
    """The reader gets every event that a killed writer had acknowledged, once and in order."""
    chance, done, running = random.Random(7), threading.Event(), list[BaseProcess]()
    files = [tmp_path / f"acknowledged-{number}" for number in range(12)]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(poll_all_runs, url, done)
        try:
            for number, file in enumerate(files):
                running.append(_start(url, f"w{number}", file))
                if len(running) == 4:
                    time.sleep(chance.uniform(0, 0.2))
                    _kill(running.pop(chance.randrange(3)))
        finally:
            for writer in running:
                _kill(writer)
            done.set()
        received = reading.result(600)
    acknowledged = read_acknowledged(files)
    assert len(acknowledged) > 200, "too few events were appended"
    assert set(acknowledged) <= set(positions(received))
    for engine_run_id, logged in received.items():
        assert [each.run_seq for each in logged] == list(range(1, len(logged) + 1))
        assert len({each.idempotency_key for each in logged}) == len(logged), engine_run_id
    # The last batch of a killed writer may be stored without an acknowledgement.
    assert len(set(positions(received)) - set(acknowledged)) <= 20 * len(files)


def _start(url: str, name: str, file: Path) -> BaseProcess:
    writer = fork_server().Process(target=write_endlessly, args=(url, name, file))
    writer.start()
    wait_for(lambda: file.exists() and file.stat().st_size, every=0.01, is_alive=writer.is_alive)
    return writer


def _kill(writer: BaseProcess) -> None:
    writer.kill()
    writer.join(300)
    assert writer.exitcode == -signal.SIGKILL
