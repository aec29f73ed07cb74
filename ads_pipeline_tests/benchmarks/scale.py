"""Measures operators' commands on a ledger of a million partitions, in SQLite and Postgres.

The limits are times, because the requirements are. A command runs in this process with its own connection, from its
settings to its last line, so only Python's start is excluded. SQLite has no statistics, as in production.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final

from ads_pipeline.domain.fetching.retry_policy import Lane, RetryPolicy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.operations.cli.command_line.options import Page
from ads_pipeline.operations.cli.state import listing, why
from ads_pipeline.pipeline.retry_scheduling import RetryScheduler
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline_tests.benchmarks.ratios import Figure, measure_time
from ads_pipeline_tests.ledger.large_ledgers import FIRST_DAY, KINDS, SOURCE, LedgerShape, fill_ledger
from ads_pipeline_tests.postgres_server import start_postgres

SHAPE: Final = LedgerShape(queries=4, customers=500, days=500)
ROUNDS: Final = 9
DAY: Final = FIRST_DAY + timedelta(days=SHAPE.days // 2)
MIDDLE: Final = PartitionKey(
    source=SOURCE, customer_id="1000001750", query_name="campaign_daily", logical_date=DAY
)  # half of all partitions follow it
OTHERS: Final = ("1000000007", "1000003493")
ONE_PARTITION_MS, PAGE_MS, DUE_MS, PLAN_S, PLAN_MIB = 50, 200, 1_000, 30, 2_048
ATTENTION_MS: Final = 60_000  # half of the partitions need it; an ordinary ledger has few such days

BY_QUERY: Final = {"query": [MIDDLE.query_name]}
WEEK: Final = {"since": str(DAY), "until": str(DAY + timedelta(days=6))}
ONE_DAY: Final = {"since": str(DAY), "until": str(DAY)}
SINCE_DAY: Final = {"since": str(DAY)}
RECORDED: Final[Mapping[str, Any]] = {"status": list(Status)}  # without it, only days that need attention are listed
FILTERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "of all": {},
    "by customer": {"customer": [MIDDLE.customer_id]},
    "by three customers": {"customer": [MIDDLE.customer_id, *OTHERS]},
    "by customer and week": {"customer": [MIDDLE.customer_id]} | WEEK,
    "by query": BY_QUERY,
    "by status failed": {"status": [Status.FAILED]},
    "by status pending": {"status": [Status.PENDING]},
    "by status success": {"status": [Status.SUCCESS]},
    "by one day": ONE_DAY,
    "by all days since one": SINCE_DAY,
    "by query and week": BY_QUERY | WEEK,
    "by query and all days since one": BY_QUERY | SINCE_DAY,
    "by status failed and query": BY_QUERY | {"status": [Status.FAILED]},
    "by status success and query": BY_QUERY | {"status": [Status.SUCCESS]},
    "by status failed and week": {"status": [Status.FAILED]} | WEEK,
}


def measure() -> Iterator[Figure]:
    home = Path(tempfile.mkdtemp(prefix="scale"))
    server = start_postgres(home / "pg")
    try:
        yield from _measure_database("SQLite", {"ADS_PIPELINE_HOME": str(home / "sqlite")})
        shutil.rmtree(home / "sqlite")
        url = server.get_uri(driver="psycopg2")
        yield from _measure_database("Postgres", {"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_DATABASE_URL": url})
    finally:
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)


def _measure_database(name: str, environ: Mapping[str, str]) -> Iterator[Figure]:
    settings = read_settings(environ)
    engine = database.open_engine(settings.database_url)
    database.migrate(engine)
    engine.dispose()
    fill_ledger(settings.database_url, SHAPE)
    one = {**RECORDED, "customer": [MIDDLE.customer_id]} | ONE_DAY | BY_QUERY
    yield _measure_ms(f"{name}: state inspect of one partition", lambda: _inspect(settings, one), ONE_PARTITION_MS)
    yield _measure_ms(
        f"{name}: state why of one partition",
        lambda: why.print_report(settings, str(MIDDLE), as_json=False),
        ONE_PARTITION_MS,
    )
    attention = f"{name}: the days of {SHAPE.customers} customers that need attention"
    yield _measure_ms(attention, partial(_inspect, settings, {}), ATTENTION_MS, rounds=1)
    for description, options in FILTERS.items():
        for position, after in (("first", None), ("middle", str(MIDDLE))):
            page = f"{name}: the {position} page of 100 partitions {description}, with remarks"
            yield _measure_ms(page, partial(_inspect, settings, {**RECORDED, **options}, after=after), PAGE_MS)
    yield from _measure_retry_queue(name, settings)
    yield from _measure_reconcile_plan(name, settings.database_url)


def _measure_retry_queue(name: str, settings: Settings) -> Iterator[Figure]:
    """Finding due retries of both lanes on the last day, with the default policy and without an age limit."""
    today = FIRST_DAY + timedelta(days=SHAPE.days)
    with Ledger.opened(settings.database_url) as ledger:
        # The first call schedules all earlier failures.
        ledger.retry_queue.schedule_failures(settings.retry_policy, today=today)
        for description, policy in {
            "": settings.retry_policy,
            " without an age limit": RetryPolicy(max_age=timedelta(days=9_999)),
        }.items():

            def find_due(policy: RetryPolicy = policy) -> list[PartitionKey]:
                due = (ledger.retry_queue.find_due(policy, lane, source=SOURCE, today=today) for lane in Lane)
                return [retry.key for retries in due for retry in retries]

            if not find_due():
                raise AssertionError("nothing is due, so nothing was measured")
            yield _measure_ms(f"{name}: finding due retries{description}", find_due, DUE_MS)
        scheduler = RetryScheduler(ledger=ledger, policy=settings.retry_policy, source=SOURCE, today=today)
        yield _measure_ms(
            f"{name}: scheduling retries without new failures",
            lambda: _schedule_again(ledger, settings, today),
            DUE_MS,
        )
        yield _measure_ms(f"{name}: choosing the next requests", lambda: scheduler.next_runs(slots=2_000), DUE_MS)


def _schedule_again(ledger: Ledger, settings: Settings, today: date) -> None:
    if ledger.retry_queue.schedule_failures(settings.retry_policy, today=today):
        raise AssertionError("a failure was scheduled twice")


def _inspect(settings: Settings, options: Mapping[str, Any], *, after: str | None = None) -> None:
    listing.inspect(settings, listing.StateFilters(**options), Page(after=after))


def _measure_ms(name: str, command: Callable[[], object], limit: float, *, rounds: int = ROUNDS) -> Figure:
    """The command's time in milliseconds. Its output is discarded."""

    def run(_number: int) -> None:
        with redirect_stdout(StringIO()):
            command()

    figure = measure_time(name, run, rounds=rounds, limit=limit)
    return replace(figure, value=figure.value * 1000, unit="ms")


def _measure_reconcile_plan(name: str, url: str) -> Iterator[Figure]:
    """Planning reconciliation of all queries, in a new process with its own peak memory."""
    numbers = (str(SHAPE.queries), str(SHAPE.customers), str(SHAPE.days))
    arguments = [sys.executable, "-m", "ads_pipeline_tests.benchmarks.planning", url, *numbers]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    differing = sum(KINDS[partition.kind].differs for partition in SHAPE.partitions())
    if result["repairs"] != differing:
        raise AssertionError(f"{result['repairs']} repairs were planned for {differing} differences")
    title = f"{name}: planning reconciliation of {SHAPE.queries * SHAPE.customers * SHAPE.days:,} partitions"
    yield Figure(name=title, value=result["seconds"], unit="s", limit=PLAN_S)
    yield Figure(name=f"{title}, peak memory", value=result["peak_mib"], unit="MiB", limit=PLAN_MIB)
