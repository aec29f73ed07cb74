"""An operator's day in Dagster's UI and in the report, on the demo's data.

The name of this file keeps it out of `make test`. The tests also write the screenshots of the documentation.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from playwright.sync_api import Page

from ads_pipeline.demo.made_up_reports import ACCOUNTS
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import PAYLOAD
from ads_pipeline_tests.browser.pages import DagsterPages, open_browser
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.orchestration.dagster_server import DagsterServer, dagster_server

pytestmark = pytest.mark.timeout(3_600)
RAW, WAREHOUSE = "raw/campaign_daily", "warehouse/campaign_daily"
REASON = "cost_micros must be at least 0 in 1 row"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoServer:
    """Dagster on the loaded demo, the day that the validator rejected, and the one without a run."""

    server: DagsterServer
    command_line: CommandLine
    bad_day: PartitionKey
    late_day: PartitionKey

    @property
    def raw(self) -> RawRuns:
        return RawRuns(self.command_line.home / "raw")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoServer]:
    command_line = CommandLine(
        home=tmp_path_factory.mktemp("browser") / "home", more={"ADS_PIPELINE_SPARK": "local[2]"}
    )
    done = command_line.process("demo")
    assert done.code == 0, done.err
    bad_day = PartitionKey(
        source="google_ads",
        customer_id=ACCOUNTS[1].customer_id,
        query_name="campaign_daily",
        logical_date=datetime.now(UTC).date() - timedelta(days=2),
    )
    late_day = replace(
        bad_day, customer_id=ACCOUNTS[3].customer_id, logical_date=bad_day.logical_date + timedelta(days=1)
    )
    with dagster_server(command_line.home, {}) as server:
        yield DemoServer(server=server, command_line=command_line, bad_day=bad_day, late_day=late_day)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with open_browser() as opened:
        yield opened


def has_failed(server: DagsterServer, day: PartitionKey) -> bool:
    """Whether the Checks tab shows that readers get no rows of the day."""
    return server.check_status(WAREHOUSE.split("/"), day, "readable") == "failed"


def test_operators_day(demo: DemoServer, page: Page) -> None:
    """From the catalogue, one click shows the bad day with its reason. A backfill by clicks loads the corrected run.

    The check turns green, and red again after the day is withdrawn. The report is renewed by clicks and shows both.
    """
    pages, day = DagsterPages(page=page, server=demo.server), demo.bad_day
    pages.open_catalogue()
    pages.click("report")
    assert pages.shows(REASON)
    page.get_by_placeholder("Filter metadata keys").evaluate("each => each.scrollIntoView()")
    pages.picture("dagster-report", above="days")  # the next row is a path of this machine
    for bad in (day, demo.late_day):
        demo.server.wait_for(partial(has_failed, demo.server, bad))
    pages.open_check(WAREHOUSE, "readable", demo.late_day)
    assert pages.shows("Late: no run arrived")
    pages.open_check(WAREHOUSE, "readable", day)
    assert pages.shows(f"Rejected: {REASON}")
    pages.picture("dagster")

    _seal_corrected_run(demo)
    pages.launch_backfill(
        [RAW, WAREHOUSE], day.customer_id, f"[{day.logical_date - timedelta(days=1)}...{day.logical_date}]"
    )
    demo.server.wait_for(lambda: demo.server.check_status(WAREHOUSE.split("/"), day, "readable") == "succeeded")
    pages.open_check(WAREHOUSE, "readable", day)
    assert pages.shows("Readable: accepted")

    withdrawn = demo.command_line.process("state", "withdraw", str(day), "--reason", "wrong account", "--yes")
    assert withdrawn.code == 0, withdrawn.err
    demo.server.wait_for(lambda: demo.server.check_status(WAREHOUSE.split("/"), day, "readable") == "failed")
    pages.open_check(WAREHOUSE, "readable", day)
    assert pages.shows("Hidden: withdrawn")


def test_report_is_renewed_by_clicks(demo: DemoServer, page: Page) -> None:
    """Its page opens in the browser without a server."""
    pages, path = DagsterPages(page=page, server=demo.server), demo.command_line.home / "report.html"
    written = path.stat().st_mtime_ns
    pages.open("assets/report")
    page.get_by_role("button", name="Materialize").first.click()
    demo.server.wait_for(lambda: path.stat().st_mtime_ns > written)
    page.goto(path.as_uri())
    assert pages.shows("need you")
    pages.picture("report")


def _seal_corrected_run(demo: DemoServer) -> None:
    """Seal the rejected run again without the negative cost."""
    (bad,) = (each for each in demo.raw.list_runs(demo.bad_day) if isinstance(each, SealedRun))
    lines = (demo.raw.root / bad.run.path / PAYLOAD).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    corrected = [row | {"cost_micros": abs(row["cost_micros"])} for row in rows]
    demo.raw.land(Run(key=demo.bad_day, run_id=f"{bad.run.run_id}-corrected"), corrected, bad.facts)
