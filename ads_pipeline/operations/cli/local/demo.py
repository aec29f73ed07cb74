"""The command `ads-pipeline demo`: lands a week of made-up reports, runs the assets and prints the results.

Dagster runs in a subprocess, because the command line does not import Dagster.
"""

import subprocess
import sys
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from ads_pipeline.demo.made_up_reports import ACCOUNTS, DAYS, QUERIES, Demo, describe_accounts, land_demo
from ads_pipeline.domain.errors import EngineRunFailed
from ads_pipeline.domain.transitions import Status
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.storage.durable_files import create_empty_file
from ads_pipeline.operations.cli.command_line.options import Page
from ads_pipeline.operations.cli.command_line.output import OutputConsole
from ads_pipeline.operations.cli.command_line.parsing import open_ledger_for_writing
from ads_pipeline.operations.cli.local.demo_home import choose_home, open_home, print_next_commands, require_spark
from ads_pipeline.operations.cli.local.dev import prepare_dagster, read_last_line
from ads_pipeline.operations.cli.state import listing
from ads_pipeline.operations.cli.warehouse.gaps import GapFilters, list_gaps
from ads_pipeline.operations.cli.warehouse.rows import query
from ads_pipeline.pipeline.days.staleness import publish_statuses
from ads_pipeline.pipeline.progress import lines_while_waiting
from ads_pipeline.settings.environment import Settings, read_settings

DEMO_QUERY: Final = """
SELECT customer_id, count(DISTINCT logical_date) AS days, sum(clicks)::BIGINT AS clicks,
       round(sum(cost_micros) / 1e6, 2) AS cost, currency_code AS currency,
       sum(conversions::DECIMAL(18, 2)) AS conversions
FROM campaign_daily GROUP BY customer_id, currency_code ORDER BY customer_id, currency_code
"""


def run_demo(environ: Mapping[str, str]) -> None:
    """Run the demo. A second run on the same day changes nothing.

    Raises BadCommand when the home has other runs, BadSettings when Spark cannot start, and EngineRunFailed when a
    run of Dagster failed.
    """
    environ = choose_home(environ, ".ads_pipeline_demo")
    settings = read_settings(environ)
    require_spark(settings, environ)
    today = datetime.now(UTC).date()
    since, until = today - timedelta(days=DAYS), today - timedelta(days=1)
    customers = [account.customer_id for account in ACCOUNTS]
    settings = open_home(settings, environ, queries=QUERIES, first_day=since, customers=customers)
    console = OutputConsole()
    console.print(f"Landing a week of {len(QUERIES)} queries below {settings.raw_location}")
    demo = land_demo(RawRuns(settings.raw_location), settings.google_apis, until=today)
    _record_accounts(settings)
    _print_special_cases(console, demo)
    console.print("\nRunning the assets raw/…, their checks and warehouse/… with Dagster and Spark")
    run_assets(settings, prepare_dagster(settings, environ), QUERIES, since, until)
    console.print("\nRejected partitions, from `ads-pipeline state inspect --status failed`:\n")
    listing.inspect(settings, listing.StateFilters(status=[Status.FAILED]), Page(limit=20))
    console.print("\nMissing partitions, from `ads-pipeline warehouse gaps`:\n")
    list_gaps(settings, GapFilters(query=sorted(QUERIES), since=str(since), until=str(until)))
    console.print("\nVisible rows, from `ads-pipeline warehouse query`:\n")
    query(settings, DEMO_QUERY.strip())
    print_next_commands(console, settings, _list_next_commands(demo))


def _record_accounts(settings: Settings) -> None:
    """Store the names and currencies of the customers, unless an earlier demo has done so."""
    from ads_pipeline.ledger.ledger import Ledger  # noqa: PLC0415 - see parsing.py

    source = settings.google_apis.source
    with Ledger.opened(settings.database_url, tenancy=settings.tenancy) as ledger:
        if not ledger.accounts.list_all(source):
            ledger.accounts.record(source, describe_accounts(source))


def _list_next_commands(demo: Demo) -> list[str]:
    rejected = demo.negative_cost.key
    return [
        "state inspect",
        f"state why {rejected.customer_id}/{rejected.query_name}/{rejected.logical_date}",
        "warehouse gaps",
        'warehouse query "SELECT * FROM campaign_daily LIMIT 5"',
        "report",
        "doctor",
        "dev",
    ]


def _print_special_cases(console: OutputConsole, demo: Demo) -> None:
    """Print the partitions that differ from the others, so that the results can be checked."""
    for run, description in (
        (demo.negative_cost, "has a negative cost"),
        (demo.damaged, "has fewer rows than its seal states"),
        (demo.empty, "is a valid day without rows"),
        (demo.restated, "was reported twice, the second time with more conversions"),
    ):
        console.print(f"  {run.key}\n    {description}", soft_wrap=True)
    console.print(f"  {demo.late}\n    has no run", soft_wrap=True)


def run_assets(
    settings: Settings, environment: Mapping[str, str], names: Collection[str], since: date, until: date
) -> None:
    """Run the assets of these queries over the days in a process of its own. Its log is in the home."""
    command = [sys.executable, "-m", "ads_pipeline.definitions", str(since), str(until), *sorted(names)]
    log: Path = settings.home / "demo.log"
    create_empty_file(log)
    with (
        log.open("wb") as errors,
        lines_while_waiting(sys.stdout, "Dagster and Spark are working") as write,
        subprocess.Popen(  # noqa: S603 - constant arguments
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace"
        ) as process,
    ):
        for line in process.stdout or ():
            write(line.rstrip("\n"))
    if process.returncode:
        raise EngineRunFailed("a run of the assets", read_last_line(log), str(log))
    with open_ledger_for_writing(settings) as ledger:  # no schedule runs the job reconcile here
        publish_statuses(ledger, settings.google_apis, settings.status_file, now=datetime.now(UTC))
