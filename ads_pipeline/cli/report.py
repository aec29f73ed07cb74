"""The command `ads-pipeline report`: writes the report of which days are safe to read."""

from datetime import UTC, datetime
from pathlib import Path

from ads_pipeline.cli.output import OutputConsole, count_of
from ads_pipeline.cli.parsing import open_ledger
from ads_pipeline.domain.readability import CONDITIONS
from ads_pipeline.report.writing import ReportWriter, report_path
from ads_pipeline.settings import Settings


def write_report(settings: Settings, output: Path | None) -> None:
    """Write the file and print its path and the number of days in each condition."""
    path = output or report_path(settings)
    with open_ledger(settings) as ledger:
        content = ReportWriter.of_deployment(settings, ledger).write(path, now=datetime.now(UTC))
    console = OutputConsole()
    for condition, number in content.counts.items():
        if number:
            console.print(f"{count_of(number, 'day'):>14}  {CONDITIONS[condition].label.lower()}")
    console.print(f"wrote {path}", soft_wrap=True)
