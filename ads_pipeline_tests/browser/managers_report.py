"""A manager with the report alone: one file, without a server.

The name of this file keeps it out of `make test`.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page

from ads_pipeline.domain.fetching.account import ENABLED, Account
from ads_pipeline.domain.measures import Measures
from ads_pipeline.domain.partition import PartitionKey, days_between
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.operations.report.content import MICROS, ReportReader
from ads_pipeline.operations.report.document import render
from ads_pipeline.pipeline.days.day_conditions import DayRules
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.browser.journeys import Journey
from ads_pipeline_tests.browser.pages import open_browser
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    action_request,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
)

NOW = datetime(2026, 3, 10, 13, tzinfo=UTC)
FIRST, LAST = date(2026, 1, 20), date(2026, 3, 9)
QUERY = "campaign_daily"
SHOES, FLOWERS, BIKES = "1180250317", "4727351908", "2046619385"
NAMES = {
    SHOES: ("Nordwind Schuhe GmbH & Co. KG, Hamburg und Bremen, Onlinehandel", "EUR", 100),
    FLOWERS: ("東京フラワー株式会社", "JPY", 20_000),
    BIKES: ("Fahrrad Franz", "EUR", 40),
}
MISSING, REJECTED, LATE = date(2026, 2, 21), date(2026, 3, 4), LAST
ACKNOWLEDGED = date(2026, 2, 14)
RESTATED = (date(2026, 2, 3), date(2026, 2, 10))
WIDEST = "Math.max(...[...document.querySelectorAll('table')].map((each) => each.getBoundingClientRect().right))"
REASON = "cost_micros must be at least 0"


def key(customer: str, day: date) -> PartitionKey:
    return PartitionKey(source="google_ads", customer_id=customer, query_name=QUERY, logical_date=day)


def fill(ledger: Ledger, clock: FakeClock) -> dict[tuple[str, date], int]:
    """Seven weeks of three customers: some days missing, rejected or restated. Returns the cost that readers see."""
    accounts = [
        Account(
            source="google_ads",
            customer_id=customer,
            status=ENABLED,
            name=name,
            currency_code=currency,
            time_zone="UTC",
        )
        for customer, (name, currency, _cost) in NAMES.items()
    ]
    ledger.accounts.record("google_ads", accounts)
    shown: dict[tuple[str, date], int] = {}
    for customer, (_name, _currency, cost) in NAMES.items():
        for day in days_between(FIRST, LAST):
            clock.now = datetime(day.year, day.month, day.day, 6, tzinfo=UTC) + timedelta(days=1)
            if (customer, day) in {(SHOES, MISSING), (SHOES, LATE), (BIKES, ACKNOWLEDGED)}:
                continue
            (first,) = registered_runs(ledger, key(customer, day), "r1")
            if customer == SHOES and day == REJECTED:
                clock.now = NOW - timedelta(minutes=2)
                record_verdict(ledger, rejection(first, REASON))
                continue
            shown[customer, day] = cost * MICROS
            verdict = replace(acceptance(first), measures=Measures(cost_micros=cost * MICROS))
            record_verdict(ledger, verdict)
            publish_runs(ledger, first)
    for customer, factor in ((SHOES, 2), (FLOWERS, 3)):
        for day in RESTATED:
            clock.now = datetime(2026, 3, 2, 6, tzinfo=UTC)
            (newer,) = registered_runs(ledger, key(customer, day), "r2")
            shown[customer, day] *= factor
            record_verdict(ledger, replace(acceptance(newer), measures=Measures(cost_micros=shown[customer, day])))
            publish_runs(ledger, newer)
    ledger.actions.execute(Action.WITHDRAW, [key(BIKES, FIRST)], action_request(reason="wrong account"))
    del shown[BIKES, FIRST]
    record_verdict(ledger, rejection(registered_runs(ledger, key(BIKES, ACKNOWLEDGED), "r1")[0], REASON))
    known = action_request("known", reason="shop closed")
    ledger.actions.execute(Action.ACKNOWLEDGE, [key(BIKES, ACKNOWLEDGED)], known)
    clock.now = NOW - timedelta(hours=1)
    registered_runs(ledger, key(FLOWERS, LAST), "r2")
    return shown


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the deployment, as a file."""
    home = tmp_path_factory.mktemp("manager")
    settings, clock = read_settings({"ADS_PIPELINE_HOME": str(home)}), FakeClock()
    with Ledger.opened(settings.database_url, clock=clock) as ledger:
        shown = fill(ledger, clock)
        rules = DayRules.read(ledger, settings, now=NOW)
        reader = ReportReader(
            ledger=ledger,
            source="google_ads",
            rules=replace(rules, due_after={QUERY: rules.due_after[QUERY]}),
            retry_policy=settings.retry_policy,
            sum_per_day=lambda _query, _column, _since, _until: shown,
            currency_of=lambda _key: "",
        )
        page = render(reader.read(since=FIRST, until=LAST))
    path = home / "report.html"
    path.write_text(page)
    return path


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with open_browser() as opened:
        opened.clock.set_fixed_time(NOW + timedelta(minutes=5))
        yield opened


def test_manager_with_the_report_alone(report: Path, page: Page) -> None:
    """Which days of a named client are missing and why, what changed in last month's cost, what to do about a day."""
    journey = Journey("a manager with the report alone")
    journey.watch(page)
    with journey.step("open the file"):
        page.goto(report.as_uri())
        page.get_by_role("heading", name="days need you").wait_for()
        assert page.locator("#summary").inner_text().endswith("as of 2026-03-10 13:00 UTC.")
    with journey.step("which days of Nordwind are missing, and why"):
        page.get_by_role("combobox", name="Customer").fill("nordwind")
        work = page.locator("#work-list tbody")
        page.get_by_role("heading", name="3 days need you").wait_for()
        rows = [" ".join(row.split()) for row in work.locator("tr").all_inner_texts()]
        days = zip(rows, ("Rejected", "Missing", "Late"), (REJECTED, MISSING, LATE), strict=True)
        assert all(row.startswith(condition) and str(day) in row for row, condition, day in days)
        assert REASON in rows[0]
        assert "no run arrived" in rows[1]
    with journey.step("what changed in last month's cost"):
        title, summary = page.locator("#changes-title"), page.locator("#change-summary")
        assert title.inner_text() == "Changes of cost in 2026-02, by campaign_daily"
        assert "changed by +200.00 EUR on 2 days" in summary.inner_text()
        assert "JPY" not in page.locator("#changes").inner_text()
    with journey.step("what to do about the red day"):
        page.get_by_role("button", name=str(REJECTED)).click()
        details = page.locator("#details")
        assert REASON in details.inner_text()
        assert f"ads-pipeline state retry {SHOES}/{QUERY}/{REJECTED} --reason TEXT" in " ".join(
            details.inner_text().split()
        )
        details.get_by_role("button", name="Copy").first.click()
        details.get_by_text("Copied").or_(details.get_by_text("Ctrl+C copies")).wait_for()


def test_currencies_are_never_added_or_compared(report: Path, page: Page) -> None:
    """Each currency has its total, and its customers below it."""
    page.goto(report.as_uri())
    page.get_by_role("button", name="Show all").click()
    page.locator("#change-list tbody tr").first.wait_for()
    first_cells = page.locator("#change-list tbody tr td:first-child").all_inner_texts()
    assert [" ".join(each.split())[:12] for each in first_cells] == [
        "All in EUR",
        "Nordwind Sch",
        "Fahrrad Fran",
        "All in JPY",
        "東京フラワー株式会社 4",
    ]
    assert "+200.00 EUR on 2 days, +80,000.00 JPY on 2 days" in page.locator("#change-summary").inner_text()


def test_days_that_need_nobody_are_listed_apart(report: Path, page: Page) -> None:
    """An acknowledged and a hidden day, with reason and operator."""
    page.goto(report.as_uri())
    page.get_by_role("button", name="Show all").click()
    page.get_by_role("combobox", name="Customer").fill("franz")
    page.get_by_role("heading", name="No day needs you").wait_for()
    page.get_by_role("heading", name="2 more days are not readable and need nobody").wait_for()
    acknowledged, hidden = (" ".join(row.split()) for row in page.locator("#other-list tbody tr").all_inner_texts())
    assert acknowledged.startswith("Acknowledged")
    assert "shop closed" in acknowledged
    assert str(ACKNOWLEDGED) in acknowledged
    assert "withdrawn by ada: wrong account" in hidden


@pytest.mark.parametrize("width", [420, 1_500])
def test_page_is_never_wider_than_the_screen(report: Path, page: Page, width: int) -> None:
    """Tables and names are wrapped or shortened; only maps are scrolled."""
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(report.as_uri())
    page.get_by_role("heading", name="days need you").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(WIDEST) <= width


def test_old_page_says_how_old_it_is(report: Path, page: Page) -> None:
    """A mailed file shows nothing that happened later."""
    page.clock.set_fixed_time(NOW + timedelta(days=3))
    page.goto(report.as_uri())
    page.get_by_text("This page is 3 days old").wait_for()
    page.clock.set_fixed_time(NOW + timedelta(hours=25))
    page.goto(report.as_uri())
    assert not page.get_by_text("This page is").is_visible()
