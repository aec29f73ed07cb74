"""Runs the conformance suite over the ledger's event log, on SQLite and Postgres."""

from collections.abc import Iterator

import pytest

from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline_tests.ledger.builders import open_part
from ads_pipeline_tests.run_event_stores.conformance import RunEventStoreConformance


class TestEventLog(RunEventStoreConformance):
    @pytest.fixture
    def store(self, url: str) -> Iterator[EventLog]:
        with open_part(EventLog, url) as log:
            yield log
