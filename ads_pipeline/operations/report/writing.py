"""Builds the report of a deployment and writes it to a file."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.storage.durable_files import atomic_write
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.operations.report.content import ReportContent, ReportReader
from ads_pipeline.operations.report.document import render
from ads_pipeline.pipeline.days.day_conditions import DayRules
from ads_pipeline.settings.environment import Settings

if TYPE_CHECKING:
    from ads_pipeline.pipeline.readers import Readers

MAX_DAYS: Final = 400


def report_path(settings: Settings) -> Path:
    """The path of the report, unless somebody names another file."""
    return settings.home / "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportWriter:
    """Writes the report of one deployment, with all queries of its query file."""

    settings: Settings
    ledger: LedgerReader
    readers: "Readers"
    raw: RawRuns

    @classmethod
    def of_deployment(cls, settings: Settings, ledger: LedgerReader) -> Self:
        from ads_pipeline.pipeline.readers import Readers  # noqa: PLC0415 - loads Spark's client and Delta

        readers = Readers.of_deployment(ledger, settings)
        raw = RawRuns(settings.raw_location, is_in_use=lambda: False)  # only currencies come from raw
        return cls(settings=settings, ledger=ledger, readers=readers, raw=raw)

    def write(self, path: Path, *, now: datetime) -> ReportContent:
        """Replace the file atomically, and return what it shows."""
        apis = self.settings.google_apis
        rules = DayRules.read(self.ledger, self.settings, now=now)
        reader = ReportReader(
            ledger=self.ledger,
            source=apis.source,
            rules=replace(rules, due_after=dict(sorted(rules.due_after.items()))),
            retry_policy=self.settings.retry_policy,
            sum_per_day=self._sum_per_day,
            currency_of=self._find_currency,
            command=self.settings.command,
        )
        until = max(now.astimezone(UTC).date() - timedelta(days=1), rules.newest_due_day())
        since = max(apis.start_date, until - timedelta(days=MAX_DAYS - 1))
        content = reader.read(since=since, until=until)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(render(content).encode())
        return content

    def _sum_per_day(self, query_name: str, column: str, since: date, until: date) -> Mapping[tuple[str, date], int]:
        sums = self.readers.sum_per_partition(query_name, column, since=since, until=until)
        return {(key.customer_id, key.logical_date): total for key, total in sums.items()}

    def _find_currency(self, key: PartitionKey) -> str:
        currencies = (each.facts.currency_code for each in self.raw.list_runs(key) if isinstance(each, SealedRun))
        return next(filter(None, currencies), "")
