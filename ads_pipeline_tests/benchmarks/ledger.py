"""Measures recording verdicts against plain SQL for the same rows, on the same Postgres with the same driver."""

import hashlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.extras import execute_values

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Verdict
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.database import SCHEMA
from ads_pipeline_tests.benchmarks.ratios import Ratio, compare
from ads_pipeline_tests.builders import acceptance, sealed_run
from ads_pipeline_tests.ledger.builders import record_verdict
from ads_pipeline_tests.postgres_server import start_postgres

PARTITIONS = 1000
SINGLE_VERDICTS = 400


def _create_keys(first: int) -> list[PartitionKey]:
    day = date(2026, 2, 1)
    return [
        PartitionKey(source="google_ads", customer_id=str(n), query_name="campaign_daily", logical_date=day)
        for n in range(first, first + PARTITIONS)
    ]


OUR_KEYS, BASELINE_KEYS = _create_keys(1_000_000), _create_keys(2_000_000)
COLUMNS = (
    "source, customer_id, query_name, logical_date, status, current_run_id, schema_version, record_count, "
    "updated_at, error_message, attempt_count"
)
CHANGES = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS.split(", ")[4:])
UPSERT = f"ON CONFLICT (source, customer_id, query_name, logical_date) DO UPDATE SET {CHANGES}"
ATTEMPT_COLUMNS = (
    "source, customer_id, query_name, logical_date, attempt_no, run_id, validation_id, ordinal, outcome, effect, "
    "rows_read, payload_bytes, payload_sha256, judged_at, current_ordinal"
)
STATUS_COLUMNS = (
    "tenant_id, workspace_id, asset_key, partition_key, last_materialization_run_id, last_materialization_at, "
    "last_materialization_code_version, last_attempt_run_id, last_attempt_at, last_attempt_outcome, "
    "partition_values, row_version"
)
STATUS_CHANGES = ", ".join(f"{name} = excluded.{name}" for name in STATUS_COLUMNS.split(", ")[4:])
STATUS_UPSERT = f"ON CONFLICT (tenant_id, workspace_id, asset_key, partition_key) DO UPDATE SET {STATUS_CHANGES}"
EVENT_COLUMNS = (
    "engine_run_id, run_seq, event_id, event_type, step_id, logical_attempt_id, event_data, engine_run_ref, "
    "idempotency_key, emitted_at, persisted_at"
)
# What a verdict writes, besides one row per transaction: the attempt, the state after it, its status and its event.
SAME_ROWS = (
    f"INSERT INTO checked_attempts ({ATTEMPT_COLUMNS}) VALUES %s",
    f"INSERT INTO checked_state ({COLUMNS}) VALUES %s {UPSERT}",
    f"INSERT INTO checked_status ({STATUS_COLUMNS}) VALUES %s {STATUS_UPSERT}",
    f"INSERT INTO checked_events ({EVENT_COLUMNS}) VALUES %s",
)
# The state table and the attempts: with columns and primary keys only, and with all constraints and indexes. They
# have no triggers, which would refuse states without attempts.
BASELINE_TABLES = """
CREATE TABLE baseline_state (LIKE partition_state);
ALTER TABLE baseline_state ADD PRIMARY KEY (source, customer_id, query_name, logical_date);
CREATE TABLE baseline_attempts (LIKE attempts);
ALTER TABLE baseline_attempts ADD PRIMARY KEY (source, customer_id, query_name, logical_date, attempt_no);
CREATE TABLE checked_state (LIKE partition_state INCLUDING ALL);
ALTER TABLE checked_state ADD FOREIGN KEY (source, customer_id, query_name, logical_date, current_run_id)
    REFERENCES runs (source, customer_id, query_name, logical_date, run_id);
CREATE TABLE checked_attempts (LIKE attempts INCLUDING ALL);
ALTER TABLE checked_attempts ADD FOREIGN KEY (source, customer_id, query_name, logical_date, run_id)
    REFERENCES runs (source, customer_id, query_name, logical_date, run_id);
CREATE TABLE checked_status (LIKE partition_status INCLUDING ALL);
CREATE TABLE checked_events (LIKE run_events INCLUDING ALL);
"""


def measure() -> Iterator[Ratio]:
    home = Path(tempfile.mkdtemp(prefix="pg"))
    server = start_postgres(home / "data")
    connection = psycopg2.connect(server.get_uri(), options=f"-c search_path={SCHEMA}")
    try:
        with Ledger.opened(server.get_uri(driver="psycopg2")) as ledger:
            for run_id in ("history-1", "history-2", "history-3"):
                ledger.verdicts.record(_create_verdicts(ledger, OUR_KEYS, run_id))
            _run(connection, BASELINE_TABLES)
            _run(connection, "ANALYZE")  # autovacuum does it within a minute, and both sides need it
            for table in ("baseline_state", "checked_state"):
                yield _measure_batch(ledger, connection, table)
            yield _measure_same_rows(ledger, connection)
            yield _measure_single(ledger, connection, "baseline_attempts", "baseline_state", required=None)
            yield _measure_single(ledger, connection, "checked_attempts", "checked_state", required=0.5)
    finally:
        connection.close()
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)


def _measure_batch(ledger: Ledger, connection: Any, table: str) -> Ratio:
    rounds = 12
    run_ids = [f"batch-{table}-{n}" for n in range(rounds)]
    verdicts = [_create_verdicts(ledger, OUR_KEYS, run_id) for run_id in run_ids]
    for run_id in run_ids:
        _create_verdicts(ledger, BASELINE_KEYS, run_id)

    def upsert(number: int) -> None:
        rows = [(*_key_values(key), *_success_values(run_ids[number], number + 1)) for key in BASELINE_KEYS]
        with connection.cursor() as cursor:
            execute_values(cursor, f"INSERT INTO {table} ({COLUMNS}) VALUES %s {UPSERT}", rows, page_size=len(rows))
        connection.commit()

    return compare(
        "recording 1,000 verdicts in one transaction",
        lambda number: ledger.verdicts.record(verdicts[number]),
        upsert,
        baseline_name=f"a multi-row upsert of {table}",
        rounds=rounds,
        required=0.3,
    )


def _measure_same_rows(ledger: Ledger, connection: Any) -> Ratio:
    rounds = 12
    run_ids = [f"same-rows-{n}" for n in range(rounds)]
    verdicts = [_create_verdicts(ledger, OUR_KEYS, run_id) for run_id in run_ids]
    for run_id in run_ids:
        _create_verdicts(ledger, BASELINE_KEYS, run_id)

    def write(number: int) -> None:
        rows = [_rows_of_verdict(key, run_ids[number], number + 1) for key in BASELINE_KEYS]
        with connection.cursor() as cursor:
            for statement, of_table in zip(SAME_ROWS, zip(*rows, strict=True), strict=True):
                execute_values(cursor, statement, of_table, page_size=len(rows))
        connection.commit()

    return compare(
        "recording 1,000 verdicts in one transaction",
        lambda number: ledger.verdicts.record(verdicts[number]),
        write,
        baseline_name="multi-row upserts of the same rows of attempts, states, statuses and events",
        rounds=rounds,
        required=0.6,
    )


def _rows_of_verdict(key: PartitionKey, run_id: str, count: int) -> tuple[tuple[Any, ...], ...]:
    """The rows of an attempt, a state, a status and an event, in the order of SAME_ROWS."""
    now, values = datetime.now(UTC), _key_values(key)
    event_id, data = str(uuid.uuid4()), f'{{"effect":"promoted","rows_failed":0,"rows_read":5,"run_id":"{run_id}"}}'
    asset_partition = "default", key.source, f"raw/{key.query_name}", key.dagster_key
    event = run_id, int(key.customer_id), event_id, "VerdictAccepted", str(key), count, data, "{}"
    return (
        (*values, count, run_id, "", 1, "accepted", "promoted", 5, 500, "0" * 64, now, 1),
        (*values, *_success_values(run_id, count)),
        (*asset_partition, run_id, now, "1", run_id, now, "SUCCEEDED", "{}", f"{count:026}"),
        (*event, hashlib.sha256(event_id.encode()).hexdigest(), now.isoformat(), now),
    )


def _measure_single(ledger: Ledger, connection: Any, attempts: str, state: str, *, required: float | None) -> Ratio:
    run_id = f"single-{state}"
    verdicts = _create_verdicts(ledger, OUR_KEYS, run_id)
    _create_verdicts(ledger, BASELINE_KEYS, run_id)
    placeholders = "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s"
    insert = f"INSERT INTO {attempts} ({ATTEMPT_COLUMNS}) VALUES ({placeholders}, %s, %s, %s, %s)"
    upsert = f"INSERT INTO {state} ({COLUMNS}) VALUES ({placeholders}) {UPSERT}"

    def two_statements(number: int) -> None:
        key, count = _key_values(BASELINE_KEYS[number]), 1000
        attempt = (count, run_id, "", 1, "accepted", "promoted", 5, 500, "0" * 64, datetime.now(UTC), 1)
        with connection.cursor() as cursor:
            cursor.execute(insert, (*key, *attempt))
            cursor.execute(upsert, (*key, *_success_values(run_id, count)))
        connection.commit()

    return compare(
        "recording one verdict",
        lambda number: record_verdict(ledger, verdicts[number]),
        two_statements,
        baseline_name=f"INSERT into {attempts} and upsert of {state}",
        rounds=SINGLE_VERDICTS,
        required=required,
    )


def _create_verdicts(ledger: Ledger, keys: list[PartitionKey], run_id: str) -> list[Verdict]:
    """Register a run of each key and return an acceptance of it."""
    runs = [Run(key=key, run_id=run_id) for key in keys]
    ledger.registrations.register([sealed_run(run, 5) for run in runs])
    return [acceptance(run, 5) for run in runs]


def _key_values(key: PartitionKey) -> tuple[str, str, str, date]:
    return key.source, key.customer_id, key.query_name, key.logical_date


def _success_values(run_id: str, attempt_count: int) -> tuple[Any, ...]:
    return "success", run_id, "1", 5, datetime.now(UTC), None, attempt_count


def _run(connection: Any, statements: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statements)
    connection.commit()
