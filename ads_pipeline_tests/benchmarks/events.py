"""Measures the run-event log against plain SQL on the same Postgres, and the lag of its snapshots under load."""

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
from psycopg2.extras import execute_values

from ads_pipeline.domain.run_events import Event, idempotency_key
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.events.snapshots import Follower, fold_run
from ads_pipeline.ledger.sql.database import SCHEMA
from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio, compare, measure_time
from ads_pipeline_tests.ledger.builders import open_part
from ads_pipeline_tests.postgres_server import start_postgres

SINGLE_APPENDS = 400
EVENTS_PER_BATCH = 1_000
LOAD_SECONDS, EVENTS_PER_SECOND, EVENTS_PER_CALL = 60, 500, 10
LONG_RUN_EVENTS = 100_000
# The minimum of an append: the last sequence number of the run, and the event with its idempotency key.
BASELINE_TABLES = """
CREATE TABLE baseline_head (run_id TEXT PRIMARY KEY, last_seq BIGINT NOT NULL);
CREATE TABLE baseline_events (
    run_id TEXT, run_seq BIGINT, event_id TEXT, event_type TEXT, step_id TEXT, logical_attempt_id BIGINT,
    event_data TEXT, idempotency_key TEXT, emitted_at TEXT, persisted_at TIMESTAMPTZ,
    PRIMARY KEY (run_id, run_seq), UNIQUE (run_id, idempotency_key)
);
INSERT INTO baseline_head VALUES ('baseline', 0);
"""
COLUMNS = (
    "run_id, run_seq, event_id, event_type, step_id, logical_attempt_id, event_data, idempotency_key, emitted_at, "
    "persisted_at"
)


def measure() -> Iterator[Ratio | Figure]:
    home = Path(tempfile.mkdtemp(prefix="pg"))
    server = start_postgres(home / "data")
    connection = psycopg2.connect(server.get_uri(), options=f"-c search_path={SCHEMA}")
    try:
        url = server.get_uri(driver="psycopg2")
        with open_part(EventLog, url) as log:
            with connection.cursor() as cursor:
                cursor.execute(BASELINE_TABLES)
            connection.commit()
            yield _measure_single_append(log, connection)
            yield _measure_batch_append(log, connection)
            yield _measure_snapshot(log)
        yield from _measure_lag("Postgres", url)
        yield from _measure_lag("SQLite", f"sqlite:///{home / 'ledger.db'}")
    finally:
        connection.close()
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)


def create_event(run_id: str, number: int) -> Event:
    return Event(
        engine_run_id=run_id,
        event_type="StepCompleted",
        plan_version="1",
        emitted_at=datetime.now(UTC).isoformat(),
        step_id=f"google_ads/{number}/campaign_daily/2026-03-01",
        event_data={"rows": number, "run_id": "20260303T043000000Z-0a1b2c3d"},
    )


def _measure_single_append(log: EventLog, connection: Any) -> Ratio:
    events = [create_event("single", number) for number in range(SINGLE_APPENDS)]

    def two_statements(number: int) -> None:
        row = _to_row(events[number])
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE baseline_head SET last_seq = last_seq + 1 WHERE run_id = 'baseline' RETURNING last_seq"
            )
            (seq,) = cursor.fetchone()
            placeholders = ", ".join(["%s"] * 10)
            cursor.execute(
                f"INSERT INTO baseline_events ({COLUMNS}) VALUES ({placeholders})", (row[0], seq, *row[1:])
            )
        connection.commit()

    return compare(
        "appending one event",
        lambda number: log.append(events[number]),
        two_statements,
        baseline_name="two SQL statements",
        rounds=SINGLE_APPENDS,
        required=0.6,
    )


def _measure_batch_append(log: EventLog, connection: Any) -> Ratio:
    rounds = 12
    batches = [[create_event(f"batch-{n}", number) for number in range(EVENTS_PER_BATCH)] for n in range(rounds)]

    def insert(number: int) -> None:
        rows = [(f"baseline-{number}", seq, *_to_row(event)[1:]) for seq, event in enumerate(batches[number], 1)]
        with connection.cursor() as cursor:
            execute_values(cursor, f"INSERT INTO baseline_events ({COLUMNS}) VALUES %s", rows, page_size=len(rows))
        connection.commit()

    return compare(
        "appending 1,000 events in one call",
        lambda number: log.append_many(batches[number]),
        insert,
        baseline_name="a multi-row INSERT",
        rounds=rounds,
        required=0.4,
    )


def _to_row(event: Event) -> tuple[Any, ...]:
    key = idempotency_key(
        engine_run_id="baseline",
        step_id=event.step_id,
        logical_attempt_id=1,
        event_type=event.event_type,
        plan_version="1",
    )
    now = datetime.now(UTC)
    return ("baseline", event.event_id, event.event_type, event.step_id, 1, event.payload, key, event.emitted_at, now)


def _measure_snapshot(log: EventLog) -> Figure:
    """The snapshot of a long run that is projected except for the last ten events."""
    projected = LONG_RUN_EVENTS - 10
    for first in range(0, projected, 5_000):
        log.append_many([create_event("long", number) for number in range(first, min(first + 5_000, projected))])
    Follower(log).catch_up()
    log.append_many([create_event("long", number) for number in range(projected, LONG_RUN_EVENTS)])
    figure = measure_time(
        f"reading the snapshot of {LONG_RUN_EVENTS:,} events, ten of them not yet projected",
        lambda _: log.get_current_snapshot("long"),
        rounds=20,
        limit=0.01,
    )
    Follower(log).catch_up()
    return figure


def _measure_lag(database: str, url: str) -> Iterator[Figure]:
    """A minute of load. Each call is folded as a run does it, and another thread samples the lag."""
    lags: list[float] = []
    done = threading.Event()

    def sample_lag() -> None:
        with open_part(EventReader, url) as reader:
            while not done.wait(0.05):
                lags.append(reader.get_lag().total_seconds())

    sampler = threading.Thread(target=sample_lag)
    with open_part(EventLog, url) as log:
        sampler.start()
        delay = _append_at_fixed_rate(log)
        done.set()
        sampler.join()
    yield Figure(
        name=f"{database}: 99th percentile of snapshot lag at {EVENTS_PER_SECOND} events/s for {LOAD_SECONDS} s",
        value=statistics.quantiles(lags, n=100)[98],
        unit="s",
        limit=1,
    )
    yield Figure(
        name=f"{database}: delay of the last of these {LOAD_SECONDS * EVENTS_PER_SECOND:,} events",
        value=delay,
        unit="s",
        limit=1,
    )


def _append_at_fixed_rate(log: EventLog) -> float:
    """Append at EVENTS_PER_SECOND and return how many seconds late the last call was."""
    started, number = time.monotonic(), 0
    for call in range(LOAD_SECONDS * EVENTS_PER_SECOND // EVENTS_PER_CALL):
        due = started + call * EVENTS_PER_CALL / EVENTS_PER_SECOND
        time.sleep(max(0.0, due - time.monotonic()))
        run_id = f"load-{number // 5_000}"
        log.append_many([create_event(run_id, number + n) for n in range(EVENTS_PER_CALL)])
        fold_run(log, run_id)
        number += EVENTS_PER_CALL
    return max(0.0, time.monotonic() - started - LOAD_SECONDS)
