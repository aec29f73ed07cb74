"""Runs the conformance suite over the store in memory, so the suite needs no database."""

import pytest

from ads_pipeline_tests.run_event_stores.conformance import RunEventStoreConformance
from ads_pipeline_tests.run_event_stores.memory import MemoryEventStore


class TestMemoryEventStore(RunEventStoreConformance):
    @pytest.fixture
    def store(self) -> MemoryEventStore:
        return MemoryEventStore()
