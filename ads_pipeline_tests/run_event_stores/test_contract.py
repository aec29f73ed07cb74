"""The version of the run-event contract: a recorded contract, and the rule that a change raises the version."""

import inspect
from dataclasses import MISSING, dataclass, fields, replace
from typing import Final

import pytest

from ads_pipeline.domain.run_events import CONTRACT_VERSION, REPEATABLE, RUN_TYPES, STEP_TYPES, Event, idempotency_key
from ads_pipeline.domain.run_snapshots import RunEventStore

OPERATIONS: Final = ("append", "append_many", "fetch", "get_snapshot", "project_snapshot")


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What producers, readers and stores of run events rely on."""

    required: frozenset[str]  # fields of an event, and parameters of operations
    optional: frozenset[str]
    event_types: frozenset[str]
    key: str  # the idempotency key of one event


RECORDED_VERSION: Final = "1.0"
REQUIRED: Final = """
    engine_run_id event_type plan_version emitted_at append(event) append_many(events) fetch(engine_run_id)
    get_snapshot(engine_run_id) project_snapshot(engine_run_id)
"""
OPTIONAL: Final = """
    step_id logical_attempt_id engine_attempt_id event_data event_id adapter_version engine_run_ref
    caused_by_signal_id parent_event_id fetch(after_seq) fetch(limit)
"""
EVENT_TYPES: Final = """
    RunStarted RunPaused RunResumed RunCompleted RunFailed RunCancelled SignalAccepted SignalRejected
    StepStarted StepCompleted StepFailed StepCancelled StepSkipped RawSealed VerdictAccepted
    VerdictRejected DemotionBegun PartitionLoaded LoadFailed PartitionEnqueued PartitionRequeued
    WithdrawalBegun PartitionWithdrawn ReprocessRequested TerminalMarked TerminalCleared FetchFailed PartitionRestated
    DayAcknowledged
"""
RECORDED: Final = Contract(
    required=frozenset(REQUIRED.split()),
    optional=frozenset(OPTIONAL.split()),
    event_types=frozenset(EVENT_TYPES.split()),
    key="8c133f8c31cbc72eea79df01f48e576699e7aa3a63d69c266a287c9ad436512f",
)


def read_contract() -> Contract:
    """The contract as the code has it now."""
    given = [each for each in fields(Event) if each.init]
    required = {each.name for each in given if each.default is MISSING and each.default_factory is MISSING}
    optional = {each.name for each in given} - required
    for name in OPERATIONS:
        _, *parameters = inspect.signature(getattr(RunEventStore, name)).parameters.values()
        for each in parameters:
            (required if each.default is each.empty else optional).add(f"{name}({each.name})")
    return Contract(
        required=frozenset(required),
        optional=frozenset(optional),
        event_types=frozenset(RUN_TYPES | REPEATABLE | STEP_TYPES),
        key=idempotency_key(
            engine_run_id="r", step_id=None, logical_attempt_id=1, event_type="RunStarted", plan_version="p"
        ),
    )


def next_version(version: str, before: Contract, after: Contract) -> str:
    """The least version that the contract must have after a change."""
    major, minor = map(int, version.split("."))
    if after == before:
        return version
    kept = before.optional <= after.optional and before.event_types <= after.event_types
    if kept and (before.required, before.key) == (after.required, after.key):
        return f"{major}.{minor + 1}"
    return f"{major + 1}.0"


def test_contract_has_the_version_that_its_changes_require() -> None:
    """A changed contract needs a new version and a new record of it."""
    assert next_version(RECORDED_VERSION, RECORDED, read_contract()) == CONTRACT_VERSION


@pytest.mark.parametrize(
    ("change", "version"),
    [
        ({}, "1.0"),
        ({"optional": RECORDED.optional | {"trace_id"}}, "1.1"),
        ({"optional": RECORDED.optional | {"fetch(before_seq)"}}, "1.1"),
        ({"event_types": RECORDED.event_types | {"RunResized"}}, "1.1"),
        ({"required": RECORDED.required | {"trace_id"}}, "2.0"),
        ({"required": RECORDED.required - {"plan_version"}}, "2.0"),
        ({"optional": RECORDED.optional - {"engine_run_ref"}}, "2.0"),
        ({"event_types": RECORDED.event_types - {"RunPaused"}}, "2.0"),
        ({"key": "another"}, "2.0"),
    ],
)
def test_additions_are_minor_and_other_changes_major(change: dict[str, frozenset[str]], version: str) -> None:
    """Readers may ignore an addition. Everything else breaks a producer, a reader or a store."""
    assert next_version("1.0", RECORDED, replace(RECORDED, **change)) == version  # type: ignore[arg-type]
