"""Event logs for tests of the ledger."""

from collections.abc import Iterator

import pytest

from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline_tests.ledger.builders import FakeClock, open_part


@pytest.fixture
def log(url: str) -> Iterator[EventLog]:
    with open_part(EventLog, url) as opened:
        yield opened


@pytest.fixture
def timed_log(url: str, clock: FakeClock) -> Iterator[EventLog]:
    with open_part(EventLog, url, clock=clock) as opened:
        yield opened
