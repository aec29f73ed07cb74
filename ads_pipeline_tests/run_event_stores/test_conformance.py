"""Holds each store of run events to the published conformance suite."""

from dataclasses import replace

import pytest

from ads_pipeline.domain.run_events import AppendResult, Event
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.testing.memory_store import MemoryEventStore
from ads_pipeline.testing.run_event_stores import CHECKS, Check, check_store
from ads_pipeline_tests.ledger.builders import open_part

each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@each_check
def test_event_log_conforms(check: Check, url: str) -> None:
    """The ledger's event log keeps every rule of the suite, on SQLite and Postgres."""
    with open_part(EventLog, url) as log:
        check(log)


@each_check
def test_memory_store_conforms(check: Check) -> None:
    """The store in memory keeps every rule, so the suite needs no database."""
    check(MemoryEventStore())


def test_suite_runs_without_pytest() -> None:
    """`check_store` runs every check and raises for a store that breaks a rule."""
    check_store(MemoryEventStore)

    class Lossy(MemoryEventStore):
        def append(self, event: Event) -> AppendResult:
            return replace(super().append(event), idempotent=False)

    with pytest.raises(AssertionError):
        check_store(Lossy)
