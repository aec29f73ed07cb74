"""The part of `queries check` that asks Google, for one operation a query."""

from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from ads_pipeline.domain.partition import validate_name
from ads_pipeline.operations.cli.google_ads.extraction_opening import open_extraction
from ads_pipeline.settings.environment import Settings

REFUSED: Final = 1
_SOME_DAYS_AGO: Final = timedelta(days=7)


def check_online(settings: Settings, customer_id: str) -> None:
    """Print which queries Google accepts for this account. Exits with 1 when it refuses one."""
    validate_name("customer_id", customer_id)
    with open_extraction(settings) as extraction:
        faults = extraction.validate_queries(customer_id, datetime.now(UTC).date() - _SOME_DAYS_AGO)
    for name, fault in faults.items():
        typer.echo(f"{name}: " + ("accepted by Google" if fault is None else f"{fault.error_class}: {fault.message}"))
    if left := [name for name in settings.google_apis.queries if name not in faults]:
        typer.echo(f"not asked, because the answer would be the same: {', '.join(left)}")
    if any(fault is not None for fault in faults.values()):
        raise typer.Exit(REFUSED)
