"""The example for authors of adapters keeps the contract, so the contract asks for no database."""

import pytest

from ads_pipeline_tests.run_event_stores.conformance import RunEventStoreConformance
from ads_pipeline_tests.run_event_stores.memory import MemoryEventStore


class TestMemoryEventStore(RunEventStoreConformance):
    @pytest.fixture
    def store(self) -> MemoryEventStore:
        return MemoryEventStore()
