"""Tells the demo: a week of reports is landed, the real assets run over it, and what came of it is asked.

Dagster runs in a process of its own, because no command of ours is to wait for it or to depend on it.
"""

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from ads_pipeline.cli import states
from ads_pipeline.cli.output import Paper
from ads_pipeline.cli.parsing import Window
from ads_pipeline.cli.warehouse import Form, gaps, query
from ads_pipeline.demo.reports import DAYS, QUERIES, Demo, land_demo
from ads_pipeline.domain.transitions import Status
from ads_pipeline.errors import BadCommand
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import Settings

QUESTION: Final = """
SELECT customer_id, count(DISTINCT logical_date) AS days, sum(clicks)::BIGINT AS clicks,
       round(sum(cost_micros) / 1e6, 2) AS cost, sum(conversions::DECIMAL(18, 2)) AS conversions
FROM campaign_daily GROUP BY customer_id ORDER BY customer_id
"""


def tell(settings: Settings) -> None:
    """Land, run, and ask; may be told again, and then changes nothing but what has become a day older."""
    today = datetime.now(UTC).date()
    since, until = today - timedelta(days=DAYS), today - timedelta(days=1)
    paper = Paper()
    paper.print(f"Landing a week of {len(QUERIES)} queries below {settings.home}")
    demo = land_demo(RawRuns(settings.raw_root), settings.google_apis, until=today)
    _introduce(paper, demo)
    paper.print("\nRunning the assets raw/…, their checks and warehouse/… with Dagster and Spark")
    _run(settings, since, until)
    paper.print("\nWhat is not safe to read, says `ads-pipeline state inspect --status failed`:\n")
    states.inspect(settings, StateFilter(statuses=frozenset({Status.FAILED})), after=None, limit=20, as_json=False)
    paper.print("\nWhat is missing, says `ads-pipeline warehouse gaps`:\n")
    gaps(settings, query=sorted(QUERIES), customer=None, days=Window(since=since, until=until), as_json=False)
    paper.print("\nWhat is safe to read, says `ads-pipeline warehouse query`:\n")
    query(settings, QUESTION.strip(), form=Form.TABLE, limit=None)


def _introduce(paper: Paper, demo: Demo) -> None:
    """Who is who, so that the answers below can be checked."""
    for run, words in (
        (demo.bad, "has a negative cost"),
        (demo.damaged, "has fewer rows than its seal says"),
        (demo.empty, "is a quiet day without a row, and good"),
        (demo.restated, "reports a day again, with more conversions"),
    ):
        paper.print(f"  {run.key}\n    {words}", soft_wrap=True)
    paper.print(f"  {demo.late}\n    has not arrived", soft_wrap=True)


def _run(settings: Settings, since: date, until: date) -> None:
    command = [sys.executable, "-m", "ads_pipeline.definitions", str(since), str(until), *sorted(QUERIES)]
    log: Path = settings.home / "demo.log"
    with log.open("wb") as errors:
        done = subprocess.run(command, stderr=errors, check=False)  # noqa: S603 - our own words
    if done.returncode:
        raise BadCommand(
            f"Dagster could not run the assets; {log} says why. Is dagster.yaml in this folder, or DAGSTER_HOME set?"
        )
