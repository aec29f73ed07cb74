"""Opens the extraction for the commands that call Google."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ads_pipeline.domain.errors import BadSettings, Mistake
from ads_pipeline.google_ads.configuration import VARIABLE, check_installation, read_configuration
from ads_pipeline.operations.cli.command_line.parsing import open_ledger_for_writing
from ads_pipeline.settings.environment import Settings

if TYPE_CHECKING:
    from ads_pipeline.pipeline.extraction.google_ads_extraction import Extraction


@contextmanager
def open_extraction(settings: Settings) -> Iterator["Extraction"]:
    """Join the ledger and the client. Raises BadSettings when fetching is off, or the client or its settings fail."""
    if settings.google_ads is None:
        problem = "is off: set it to env or to the path of a google-ads.yaml"
        raise BadSettings((Mistake(location=VARIABLE, problem=problem),))
    check_installation(settings.google_apis.api_version, f"{settings.queries_file}: api_version")
    configuration = read_configuration(settings.google_ads, os.environ)
    from ads_pipeline.pipeline.extraction.google_ads_extraction import Extraction  # noqa: PLC0415 - imports the client

    with open_ledger_for_writing(settings) as ledger:
        yield Extraction(apis=settings.google_apis, configuration=configuration, ledger=ledger)
