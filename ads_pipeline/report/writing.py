"""Builds the report of a deployment and writes it to a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.pipeline.readers import Readers
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import Seal
from ads_pipeline.report.content import ReportContent, ReportReader
from ads_pipeline.report.document import render
from ads_pipeline.storage.durable_files import atomic_write

REPORT_FILE: Final = "report.html"
MAX_DAYS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportWriter:
    """Writes the report of one deployment."""

    ledger: LedgerReader
    readers: Readers
    raw: RawRuns
    source: str
    start_date: date

    def write(self, path: Path, query_names: Sequence[str], *, now: datetime) -> ReportContent:
        """Replace the file atomically, and return what it shows."""
        reader = ReportReader(
            ledger=self.ledger,
            source=self.source,
            sum_per_day=self._sum_per_day,
            currency_of=self._find_currency,
        )
        until = now.astimezone(UTC).date() - timedelta(days=1)
        since = max(self.start_date, until - timedelta(days=MAX_DAYS - 1))
        content = reader.read(query_names, since=since, until=until, now=now)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(render(content).encode())
        return content

    def _sum_per_day(self, query_name: str, column: str, since: date, until: date) -> Mapping[tuple[str, date], int]:
        sums = self.readers.sum_per_partition(query_name, column, since=since, until=until)
        return {(key.customer_id, key.logical_date): total for key, total in sums.items()}

    def _find_currency(self, key: PartitionKey) -> str:
        currencies = (each.facts.currency_code for each in self.raw.list_runs(key) if isinstance(each, Seal))
        return next(filter(None, currencies), "")
