"""Writes `partition_status.parquet` for the commands `state publish` and `reconcile`."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ads_pipeline.domain.quoting import count_of
from ads_pipeline.settings.environment import Settings

if TYPE_CHECKING:
    from ads_pipeline.ledger.ledger import Ledger


def publish_statuses(settings: Settings, ledger: "Ledger") -> str:
    """Write the file, and return a sentence with its number of rows and its path."""
    from ads_pipeline.pipeline.days.staleness import StalenessCalculator  # noqa: PLC0415 - it loads SQLAlchemy

    now = datetime.now(UTC)
    calculator = StalenessCalculator.of_ledger(ledger, settings.google_apis, now=now)
    published = calculator.publish(ledger.statuses, settings.status_file, now=now)
    rows = count_of(published.rows, "row")
    return f"{rows} in {settings.status_file}; {published.changed:,} changed since the last sweep"
