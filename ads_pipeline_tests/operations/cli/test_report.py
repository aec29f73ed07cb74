"""The command `ads-pipeline report` on the demo's data."""

from pathlib import Path

from ads_pipeline_tests.operations.cli.running import CommandLine, DemoCommandLine
from ads_pipeline_tests.operations.report.test_document import unpack


def test_report_shows_the_demo_data(demo_cli: DemoCommandLine, tmp_path: Path) -> None:
    """It prints the number of days in each condition, and the page has rows, cost and currency of the real data."""
    path = tmp_path / "new" / "page.html"
    result = demo_cli.run("report", "--output", str(path))
    assert result.code == 0
    assert "2 days  rejected" in result.out
    assert f"wrote {path}" in result.out
    report = unpack(path.read_text())
    campaigns = next(query for query in report["queries"] if query["name"] == "campaign_daily")
    assert {each["currency"] for each in report["customers"]} > {"EUR", "USD"}
    assert any(value for value in campaigns["cost"][0])
    assert any("cost_micros must be at least 0" in reason for reason in report["texts"])
    assert "1 day  readable, restated" in result.out


def test_report_of_an_empty_ledger(empty_cli: CommandLine) -> None:
    """The default path is in the home, and nothing needs an operator."""
    result = empty_cli.run("report")
    assert result.code == 0
    assert "No day needs you" in (empty_cli.home / "report.html").read_text()
