"""The cases of `test_misleading_cases` in the browser: what an operator reads about each day.

The name of this file keeps it out of `make test`.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page
from pyspark.sql import SparkSession

from ads_pipeline_tests.browser.pages import DagsterPages, open_browser
from ads_pipeline_tests.orchestration import misleading_story as days
from ads_pipeline_tests.orchestration.dagster_server import Partition
from ads_pipeline_tests.orchestration.misleading_story import Story, play_story

pytestmark = pytest.mark.timeout(3_600)
CHECK_PAGE = "warehouse/campaign_daily"


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Story]:
    with play_story(tmp_path_factory.mktemp("browser") / "home", spark) as played:
        played.server.wait_for(
            lambda: played.server.check_status(days.WAREHOUSE, days.KILLED, "readable") == "succeeded"
        )
        yield played


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with open_browser() as opened:
        yield opened


@pytest.mark.parametrize(
    ("partition", "status", "description"),
    [
        (days.WITHDRAWN, "failed", "Hidden: withdrawn by ada: on request"),
        (days.DEMOTED, "failed", "Hidden: demoted by ada: on request"),
        (days.RESTORED, "succeeded", "Readable, restated: accepted; the newest run was demoted by ada: on request"),
        (days.RERUN, "failed", "Readable, rejected rerun: cost_micros must be at least 0"),
        (days.ABSENT, "failed", "Missing: no run arrived"),
        (days.CANCELLED, "succeeded", "Readable: accepted"),
        (days.QUEUED, "succeeded", "Readable: accepted"),
        (days.KILLED, "succeeded", "Readable, restated: accepted"),
        (days.UNTOUCHED, "succeeded", "Readable: accepted"),
    ],
    ids=[
        "withdrawn",
        "demoted",
        "restored",
        "rejected rerun",
        "absent",
        "cancelled",
        "queued",
        "killed",
        "untouched",
    ],
)
def test_check_describes_the_day(
    story: Story, page: Page, partition: Partition, status: str, description: str
) -> None:
    """The Checks tab shows what readers get and why."""
    story.server.wait_for(lambda: story.server.check_status(days.WAREHOUSE, partition, "readable") == status)
    pages = DagsterPages(page=page, server=story.server)
    pages.open_check(CHECK_PAGE, "readable", partition)
    assert pages.shows(description)


def test_days_of_an_invalid_customer_say_why(story: Story, page: Page) -> None:
    """They have not passed, and the text names the account by its digits."""
    pages = DagsterPages(page=page, server=story.server)
    pages.open_check(CHECK_PAGE, "readable", days.INVALID_CUSTOMER)
    assert pages.shows("this account is 2046619385")
    assert not page.get_by_text("Passed", exact=True).locator("visible=true").count()


def test_no_loaded_day_is_marked_as_unsynced(story: Story, page: Page) -> None:
    """Neither in the catalogue nor on the Partitions tab, which shows no failed partition."""
    pages = DagsterPages(page=page, server=story.server)
    pages.open_catalogue()
    assert not page.get_by_text("Unsynced").count()
    pages.open("assets/warehouse/campaign_daily?view=partitions")
    assert pages.shows("Failed (0)")
    assert pages.shows("Materialized (11)")
