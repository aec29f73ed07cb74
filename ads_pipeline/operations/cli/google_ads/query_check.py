"""The part of `queries check` that asks Google, for one operation a query."""

import os
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from ads_pipeline.domain.errors import BadSettings, Mistake
from ads_pipeline.domain.partition import validate_name
from ads_pipeline.google_ads.configuration import VARIABLE, check_installation, read_configuration
from ads_pipeline.operations.cli.command_line.parsing import open_ledger_for_writing
from ads_pipeline.pipeline.extraction.google_ads_extraction import Extraction
from ads_pipeline.settings.environment import Settings

REFUSED: Final = 1
_SOME_DAYS_AGO: Final = timedelta(days=7)


def check_online(settings: Settings, customer_id: str) -> None:
    """Print which queries Google accepts for this account. Exits with 1 when it refuses one."""
    validate_name("customer_id", customer_id)
    if settings.google_ads is None:
        problem = "is off: set it to env or to the path of a google-ads.yaml"
        raise BadSettings((Mistake(location=VARIABLE, problem=problem),))
    apis = settings.google_apis
    check_installation(apis.api_version, f"{settings.queries_file}: api_version")
    configuration = read_configuration(settings.google_ads, os.environ)
    with open_ledger_for_writing(settings) as ledger:
        extraction = Extraction(apis=apis, configuration=configuration, ledger=ledger)
        faults = extraction.validate_queries(customer_id, datetime.now(UTC).date() - _SOME_DAYS_AGO)
    for name, fault in faults.items():
        typer.echo(f"{name}: " + ("accepted by Google" if fault is None else f"{fault.error_class}: {fault.message}"))
    if left := [name for name in apis.queries if name not in faults]:
        typer.echo(f"not asked, because the answer would be the same: {', '.join(left)}")
    if any(fault is not None for fault in faults.values()):
        raise typer.Exit(REFUSED)
