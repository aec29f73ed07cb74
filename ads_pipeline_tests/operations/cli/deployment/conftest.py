"""Fixtures: a command line and its event log, on each database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline_tests.ledger.builders import open_part
from ads_pipeline_tests.operations.cli.running import CommandLine


@pytest.fixture
def cli(url: str, tmp_path: Path) -> CommandLine:
    """An empty ledger, once on each database."""
    return CommandLine(
        home=tmp_path / "home", more={} if url.startswith("sqlite") else {"ADS_PIPELINE_DATABASE_URL": url}
    )


@pytest.fixture
def log(url: str) -> Iterator[EventLog]:
    with open_part(EventLog, url) as opened:
        yield opened
