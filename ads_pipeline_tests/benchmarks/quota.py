"""Measures a reservation of an API operation against the smallest commit on the same database."""

import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from ads_pipeline.domain.fetching.quota import Hold, Operation, QuotaLimits, Refused
from ads_pipeline.domain.fetching.retry_policy import Lane
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import api_operations
from ads_pipeline_tests.benchmarks.ratios import Figure
from ads_pipeline_tests.postgres_server import start_postgres

SOURCE: Final = "google_ads"
OPERATIONS: Final = 15_000
ROUNDS: Final = 200
LIMIT: Final = 3.0


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="quota") as folder:
        yield _compare("SQLite", f"sqlite:///{folder}/ledger.db")
        server = start_postgres(Path(folder) / "pg")
        try:
            yield _compare("Postgres", server.get_uri(driver="psycopg2"))
        finally:
            server.cleanup()


def _compare(name: str, url: str) -> Figure:
    """The best of many, the two in turn, so that both meet the same moments of a busy machine."""
    now, limits = datetime.now(UTC), QuotaLimits(daily_operations=2 * OPERATIONS)
    engine = database.open_engine(url)
    database.migrate(engine)
    _fill(engine, now)
    with Ledger.opened(url) as ledger:
        ledger.quota.hold(Hold(source="another", until=now, why="a row to change"))
        pairs = [
            (_time(partial(_write_one_value, engine, number)), _time(partial(_reserve, ledger, limits)))
            for number in range(ROUNDS)
        ]
    engine.dispose()
    smallest, reserving = (min(times) for times in zip(*pairs, strict=True))
    title = f"{name}: reserving with {OPERATIONS:,} operations in the window, {reserving * 1_000:.2f} ms"
    return Figure(name=title, value=reserving / smallest, unit="times the smallest commit", limit=LIMIT)


def _reserve(ledger: Ledger, limits: QuotaLimits) -> None:
    operation = Operation(source=SOURCE, lane=Lane.BACKFILL)
    assert not isinstance(ledger.quota.reserve(operation, limits), Refused), "nothing was measured"


def _write_one_value(engine: sa.Engine, number: int) -> None:
    changed = f"UPDATE api_holds SET request_id = 'q{number}'"
    database.transact(engine, lambda connection: connection.exec_driver_sql(changed))


def _time(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _fill(engine: sa.Engine, now: datetime) -> None:
    """Spend the operations of half a day, directly in the tables."""
    first = now - timedelta(hours=12)
    rows = [
        {
            "source": SOURCE,
            "operation_no": number,
            "entry": "reserved",
            "at": first + timedelta(seconds=number),
            "engine_run_id": "r1",
            "kind": "report",
            "lane": "backfill",
            "others_no": number,
        }
        for number in range(1, OPERATIONS + 1)
    ]

    def write(connection: sa.Connection) -> None:
        connection.execute(sa.insert(api_operations), rows)

    database.transact(engine, write)
