"""Opens Dagster's UI in Chromium, and clicks in it as an operator does."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Locator, Page, sync_playwright

from ads_pipeline_tests.orchestration.dagster_server import DagsterServer, Partition

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDTH, HEIGHT = 1_600, 900
MILLISECONDS = 120_000  # a limit for a busy machine


@contextmanager
def open_browser() -> Iterator[Page]:
    """A page of the installed Chromium."""
    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    assert executable, f"none of {', '.join(BROWSERS)} is on the PATH; name the program in CHROMIUM"
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # the sandbox refuses root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(MILLISECONDS)
        yield page
        browser.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class DagsterPages:
    """The pages of one server."""

    page: Page
    server: DagsterServer

    def open(self, path: str) -> None:
        self.page.goto(f"{self.server.url}/{path}", wait_until="domcontentloaded")

    def click(self, text: str) -> None:
        """Click the first visible element with exactly this text."""
        self._visible(self.page.get_by_text(text, exact=True)).first.click()

    def open_catalogue(self) -> None:
        self.open("assets")
        self.page.get_by_test_id("checkbox-raw/campaign_daily").wait_for(state="attached")

    def open_check(self, asset: str, check: str, partition: Partition) -> None:
        """Open a check of an asset at one partition."""
        name = partition if isinstance(partition, str) else partition.dagster_key
        customer, _, day = name.rpartition("|")
        self.open(f"assets/{asset}?view=checks&checkDetail={check}")
        self.page.get_by_text("Execution history").wait_for()
        self.page.get_by_text("Partitions", exact=True).last.click()
        for dimension, value in (("customer", customer), ("date", day)):
            self._select_row(dimension, value)
        self.page.get_by_role("heading", name=name).or_(self.page.get_by_text(name, exact=True)).first.wait_for()

    def _select_row(self, dimension: str, value: str) -> None:
        """Click a partition in the list of a dimension. The list renders only its first rows, so it is filtered."""
        search = self._visible(self.page.get_by_placeholder(f"Filter by {dimension}")).first
        search.fill(value)
        column = search.locator(f"xpath=ancestor::div[.//*[normalize-space(text())='{value}']][1]")
        column.get_by_text(value, exact=True).first.click()
        search.fill("")

    def shows(self, text: str) -> bool:
        """Whether the page shows the text, now or after it has loaded."""
        found = self.page.get_by_text(text).first
        found.wait_for()
        return bool(found.is_visible())

    def launch_backfill(self, assets: list[str], customer: str, days: str) -> None:
        """Select the assets in the catalogue, and launch a backfill of these partitions by clicking."""
        self.open_catalogue()
        for asset in assets:
            self.page.get_by_test_id(f"checkbox-{asset}").locator("xpath=..").click()
        self.page.get_by_role("button", name="Materialize selected").click()
        self._visible(self.page.get_by_text("Select a partition or create one")).first.click()
        self._visible(self.page.get_by_text(customer, exact=True)).last.click()
        self.page.keyboard.press("Escape")
        dates = self._visible(self.page.locator("input[placeholder^='ex:']")).first
        dates.fill(days)
        dates.press("Enter")
        launch = self.page.get_by_role("button", name="Launch backfill")
        launch.wait_for()
        self.picture("dagster-backfill")
        launch.click()

    def picture(self, name: str, *, above: str | None = None) -> None:
        """Write a screenshot for the documentation after the page has settled: of all, or what is above a text."""
        self.page.wait_for_timeout(2_000)
        box = self.page.get_by_text(above, exact=True).first.bounding_box() if above else None
        height = box["y"] if box else min(HEIGHT, self.page.evaluate("document.body.offsetHeight"))
        self.page.screenshot(path=IMAGES / f"{name}.png", clip={"x": 0, "y": 0, "width": WIDTH, "height": height})

    def _visible(self, found: Locator) -> Locator:
        return found.locator("visible=true")
