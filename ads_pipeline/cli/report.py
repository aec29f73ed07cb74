"""The command `ads-pipeline report`: writes the report of which days are safe to read."""

from datetime import UTC, datetime
from pathlib import Path

from ads_pipeline.cli.output import OutputConsole, count_of
from ads_pipeline.cli.parsing import make_readers, open_ledger
from ads_pipeline.domain.readability import CONDITIONS
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.report.writing import REPORT_FILE, ReportWriter
from ads_pipeline.settings import Settings


def write_report(settings: Settings, output: Path | None) -> None:
    """Write the file and print its path and the number of days in each condition."""
    path, source = output or settings.home / REPORT_FILE, settings.google_apis.source
    with open_ledger(settings) as ledger:
        writer = ReportWriter(
            ledger=ledger,
            readers=make_readers(settings, ledger),
            raw=RawRuns(settings.raw_root, is_in_use=lambda: False),  # only currencies come from raw
            source=source,
            start_date=settings.google_apis.start_date,
        )
        content = writer.write(path, sorted(settings.google_apis.queries), now=datetime.now(UTC))
    console = OutputConsole()
    for condition, number in content.counts.items():
        if number:
            console.print(f"{count_of(number, 'day'):>14}  {CONDITIONS[condition].label.lower()}")
    console.print(f"wrote {path}", soft_wrap=True)
