"""The command `ads-pipeline demo`: lands a week of made-up reports, runs the assets and prints the results.

Dagster runs in a subprocess, because the command line does not import Dagster.
"""

import subprocess
import sys
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from ads_pipeline.cli.dev import prepare_dagster
from ads_pipeline.cli.options import Page
from ads_pipeline.cli.output import OutputConsole
from ads_pipeline.cli.state import listing
from ads_pipeline.cli.warehouse.gaps import ExpectedDays, list_gaps
from ads_pipeline.cli.warehouse.rows import query
from ads_pipeline.demo.reports import DAYS, QUERIES, Demo, land_demo
from ads_pipeline.domain.transitions import Status
from ads_pipeline.errors import BadCommand
from ads_pipeline.query_file import DEFAULT_QUERIES_FILE, narrow_query_file
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import Settings, read_settings
from ads_pipeline.storage.durable_files import atomic_write, create_empty_file, make_durable_directories

DEMO_QUERY: Final = """
SELECT customer_id, count(DISTINCT logical_date) AS days, sum(clicks)::BIGINT AS clicks,
       round(sum(cost_micros) / 1e6, 2) AS cost, sum(conversions::DECIMAL(18, 2)) AS conversions
FROM campaign_daily GROUP BY customer_id ORDER BY customer_id
"""


def run_demo(settings: Settings, environ: Mapping[str, str]) -> None:
    """Run the demo. A second run on the same day changes nothing."""
    today = datetime.now(UTC).date()
    since, until = today - timedelta(days=DAYS), today - timedelta(days=1)
    settings = open_home(settings, environ, QUERIES, since)
    console = OutputConsole()
    console.print(f"Landing a week of {len(QUERIES)} queries below {settings.raw_location}")
    demo = land_demo(RawRuns(settings.raw_location), settings.google_apis, until=today)
    _print_special_cases(console, demo)
    console.print("\nRunning the assets raw/…, their checks and warehouse/… with Dagster and Spark")
    run_assets(settings, prepare_dagster(settings, environ), QUERIES, since, until)
    console.print("\nRejected partitions, from `ads-pipeline state inspect --status failed`:\n")
    listing.inspect(settings, listing.StateFilters(status=[Status.FAILED]), Page(limit=20))
    console.print("\nMissing partitions, from `ads-pipeline warehouse gaps`:\n")
    list_gaps(settings, ExpectedDays(query=sorted(QUERIES), since=str(since), until=str(until)))
    console.print("\nVisible rows, from `ads-pipeline warehouse query`:\n")
    query(settings, DEMO_QUERY.strip())


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


def open_home(settings: Settings, environ: Mapping[str, str], names: Collection[str], first_day: date) -> Settings:
    """Return the settings of a home whose query file has the demo's queries and begins at its first day.

    The file is written unless there is one, in the home or named by ADS_PIPELINE_QUERIES. One that does not fit is
    refused.
    """
    make_durable_directories(settings.home)
    if settings.queries_file == DEFAULT_QUERIES_FILE:
        text = narrow_query_file(first_day, names)
        with atomic_write(settings.home / DEFAULT_QUERIES_FILE.name) as file:
            file.write(f"# Written by `ads-pipeline demo`.\n{text}".encode())
    found = read_settings(environ)
    if found.google_apis.start_date > first_day or not set(names) <= found.google_apis.queries.keys():
        needed = f"{', '.join(sorted(names))} from {first_day} on"
        raise BadCommand(
            f"{found.queries_file} does not fit the demo, which needs {needed}: "
            "name an empty directory in ADS_PIPELINE_HOME"
        )
    return found


def run_assets(
    settings: Settings, environment: Mapping[str, str], names: Collection[str], since: date, until: date
) -> None:
    """Run the assets of these queries over the days in a process of its own. Its log is in the home."""
    command = [sys.executable, "-m", "ads_pipeline.definitions", str(since), str(until), *sorted(names)]
    log: Path = settings.home / "demo.log"
    create_empty_file(log)
    with log.open("wb") as errors:
        process = subprocess.run(command, env=environment, stderr=errors, check=False)  # noqa: S603 - constant arguments
    if process.returncode:
        raise BadCommand(f"Dagster could not run the assets; see {log}")
