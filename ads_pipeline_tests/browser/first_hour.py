"""A new user from the demo to a question answered, and an operator from a red day to a green one.

The name of this file keeps it out of `make test`. Both use the commands that the demo and the pages print.
"""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page

from ads_pipeline.demo.made_up_reports import ACCOUNTS
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import PAYLOAD
from ads_pipeline_tests.browser.journeys import Journey
from ads_pipeline_tests.browser.pages import DagsterPages, open_browser
from ads_pipeline_tests.operations.cli.running import MAIN_SCRIPT, CommandLine
from ads_pipeline_tests.orchestration.dagster_server import DagsterServer
from ads_pipeline_tests.ports import reserve_port

pytestmark = pytest.mark.timeout(3_600)
WAREHOUSE = "warehouse/campaign_daily"
REASON = "cost_micros must be at least 0"
SECONDS_TO_START = 600
README = Path(__file__).parents[2] / "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What `ads-pipeline demo` and `ads-pipeline dev` left running, and the day that the validator rejected."""

    command_line: CommandLine
    server: DagsterServer
    journey: Journey
    bad_day: PartitionKey

    def execute(self, command: str) -> None:
        """Run a command as it was printed, with a reason in place of TEXT."""
        program, *arguments = shlex.split(command.replace("TEXT", "'the source was corrected'"))
        assert program == "ads-pipeline"
        done = self.command_line.process(*arguments)
        assert done.code == 0, done.err


@pytest.fixture
def page() -> Iterator[Page]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The first two commands of the README, in a home of their own."""
    assert re.search(r"^make demo.*\n(.*\n)*?make dev", README.read_text(), re.MULTILINE)
    home = tmp_path_factory.mktemp("first") / "home"
    command_line = CommandLine(home=home, more={"ADS_PIPELINE_SPARK": "local[2]"})
    journey = Journey("a new user from the demo to an answer")
    with journey.step("ads-pipeline demo", commands=1):
        done = command_line.process("demo")
        assert done.code == 0, done.err
        assert done.lines[-1] == "ads-pipeline dev"
    port = reserve_port()
    log = home.parent / "dev.out"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN_SCRIPT, "dev", "--port", str(port)],
            env=command_line.environ(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        with journey.step("ads-pipeline dev", commands=1):
            address = _wait_for_address(process, log)
        yield Deployment(
            command_line=command_line,
            server=DagsterServer(url=address, log=log, process=process),
            journey=journey,
            bad_day=PartitionKey(
                source="google_ads",
                customer_id=ACCOUNTS[1].customer_id,
                query_name="campaign_daily",
                logical_date=datetime.now(UTC).date() - timedelta(days=2),
            ),
        )
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)


def test_new_user_gets_an_answer(deployment: Deployment, page: Page) -> None:
    """Why is a day missing? The page whose address `dev` prints leads to the reason."""
    pages, journey = DagsterPages(page=page, server=deployment.server), deployment.journey
    journey.watch(page)
    with journey.step("open the printed address"):
        pages.open("")
        page.get_by_role("link", name="Catalog").wait_for()
    with journey.step("which days are missing, and why"):
        page.get_by_role("link", name="Catalog").click()
        pages.click("report")
        assert pages.shows(REASON)
    with journey.step("what is in the table", commands=1):
        done = deployment.command_line.process(
            "warehouse", "query", "SELECT sum(clicks) AS clicks FROM campaign_daily", "--json"
        )
        assert done.objects[0]["clicks"] > 0


def test_operator_makes_a_red_day_green(deployment: Deployment, page: Page) -> None:
    """The check names the reason and the next command. After the corrected run, the same page is green by itself."""
    journey, day, server = Journey("an operator from red to green"), deployment.bad_day, deployment.server
    pages = DagsterPages(page=page, server=server)
    journey.watch(page)
    with journey.step("find the red day in the catalogue"):
        pages.open_catalogue()
        pages.click("report")
        assert pages.shows(REASON)
    with journey.step("read the reason and the next command"):
        pages.open_check(WAREHOUSE, "readable", day)
        assert pages.shows(f"Rejected: {REASON}")
        # `state retry`, or `state why` once the automatic retry is due.
        command = page.get_by_text(re.compile("^ads-pipeline state ")).first.inner_text()
        assert str(day.short_name) in command
    with journey.step("execute the command", commands=1):
        deployment.execute(command)
    with journey.step("the extractor seals the corrected run; wait for green"):
        _seal_corrected_run(RawRuns(deployment.command_line.home / "raw"), day)
        server.wait_for(lambda: server.check_status(WAREHOUSE.split("/"), day, "readable") == "succeeded")
        pages.open_check(WAREHOUSE, "readable", day)
        assert pages.shows("Readable: accepted")
    with journey.step("the report shows it too"):
        report = deployment.command_line.home / "report.html"
        server.wait_for(lambda: not _lists(page, report, day))


def _lists(page: Page, report: Path, day: PartitionKey) -> bool:
    """Whether the work list of the report has the day."""
    page.goto(report.as_uri())
    page.get_by_role("heading", name=re.compile("needs? you")).wait_for()
    return day.short_name in "".join(page.locator("#work-list").inner_text().split())


def _wait_for_address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """The address that `ads-pipeline dev` prints when it serves."""
    end = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r"^Dagster's UI: (\S+)", log.read_text(), re.MULTILINE):
            return found[1]
        time.sleep(0.2)
    raise AssertionError(log.read_text())


def _seal_corrected_run(raw: RawRuns, day: PartitionKey) -> None:
    """Seal the rejected run again without the negative cost, as an extractor does."""
    (bad,) = (each for each in raw.list_runs(day) if isinstance(each, SealedRun))
    rows = [json.loads(line) for line in (raw.root / bad.run.path / PAYLOAD).read_text().splitlines()]
    corrected = [row | {"cost_micros": abs(row["cost_micros"])} for row in rows]
    raw.land(Run(key=day, run_id=f"{bad.run.run_id}-corrected"), corrected, bad.facts)
