"""Tests the events that the ledger emits: each once, in the run of its origin, in the transaction of the change."""

import json
from collections.abc import Callable
from typing import Final

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.errors import RunChanged, VerdictsRefused
from ads_pipeline.domain.run_events import EventOrigin, LoggedEvent
from ads_pipeline.domain.run_snapshots import RunStatus, StepStatus
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.events.event_log import PLAN_VERSION, EventLog
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.builders import (
    ROWS,
    FakeClock,
    acceptance,
    accepted_runs,
    action_request,
    key,
    open_part,
    record_verdict,
    registered_runs,
    rejection,
    run,
    sealed_runs,
)
from ads_pipeline_tests.ledger.events.builders import stored_steps
from ads_pipeline_tests.ledger.test_database_constraints import read_all_tables

K: Final = key()
R1: Final = run(K, "r1")
ORIGIN: Final = EventOrigin(
    engine_run_id="dagster-run-1",
    plan_version="plan-1",
    engine_attempt_id=2,
    adapter_version="dagster-1",
    engine_run_ref={"job": "daily"},
)


def read_events(ledger: Ledger, *, after: int = 0) -> list[LoggedEvent]:
    return EventReader(ledger.engine).fetch(ledger.origin.engine_run_id, after_seq=after)


def read_event_keys(ledger: Ledger, *, after: int = 0) -> list[tuple[str, str, int | None]]:
    """Return type, step and attempt number of the emitted events after a sequence number."""
    return [
        (each.event.event_type, str(each.event.step_id), each.event.logical_attempt_id)
        for each in read_events(ledger, after=after)
    ]


def check_no_events(ledger: Ledger, action: Callable[[], object]) -> None:
    """Check that the action emits no event in any run."""
    before = read_all_tables(ledger.engine)
    action()
    after = read_all_tables(ledger.engine)
    assert [after[table] for table in ("run_events", "run_head")] == [
        before[table] for table in ("run_events", "run_head")
    ]


# Each method of the ledger.


def test_registered_runs_emit_raw_sealed(ledger: Ledger) -> None:
    """Each new run emits one RawSealed with its ordinal. Known and refused runs emit nothing."""
    first, second, other = run(K, "r1"), run(K, "r2"), run(key("2"), "r1")
    ledger.registrations.register(sealed_runs(first, other))
    ledger.registrations.register(sealed_runs(first, second, second, other))
    assert read_event_keys(ledger) == [
        ("RawSealed", str(K), 1),
        ("RawSealed", str(key("2")), 1),
        ("RawSealed", str(K), 2),
    ]
    assert read_events(ledger)[2].event.event_data == {"run_id": "r2", "schema_version": "1", "record_count": ROWS}

    def change() -> None:
        with pytest.raises(RunChanged):
            ledger.registrations.register(sealed_runs(run(K, "r3"), first, schema_version="9"))

    check_no_events(ledger, change)
    check_no_events(ledger, lambda: ledger.registrations.register(sealed_runs(first, other)))
    check_no_events(ledger, lambda: ledger.registrations.insert_pending([key("3")]))


def test_verdicts_emit_events_with_their_attempt_number(url: str, ledger: Ledger) -> None:
    """Each recorded verdict emits one event with its effect. A redelivered verdict emits nothing."""
    first, second = registered_runs(ledger, K, "r1", "r2")
    verdicts = [acceptance(first), rejection(second, "torn"), acceptance(first, "v2")]
    ledger.verdicts.record(verdicts)
    assert read_event_keys(ledger, after=2) == [
        ("VerdictAccepted", str(K), 1),
        ("VerdictRejected", str(K), 2),
        ("VerdictAccepted", str(K), 3),
    ]
    assert [each.event.event_data["effect"] for each in read_events(ledger, after=2)] == [
        "promoted",
        "set_aside",
        "confirmed",
    ]
    reason = verdicts[1].reason
    assert reason is not None
    assert read_events(ledger)[3].event.event_data == {
        "run_id": "r2",
        "effect": "set_aside",
        "rows_read": ROWS,
        "rows_failed": 1,
        "error_class": "row_contract",
        "error_message": "r2: torn in 1 row",
        "reason": json.loads(reason.json),
    }
    check_no_events(ledger, lambda: ledger.verdicts.record(verdicts))
    with Ledger.opened(url, origin=ORIGIN) as other:
        check_no_events(other, lambda: other.verdicts.record(verdicts[::-1]))


def test_refused_verdicts_emit_no_events(ledger: Ledger) -> None:
    """Valid verdicts in a call with refused ones are recorded and emit events."""
    (first,) = registered_runs(ledger, K, "r1")
    with pytest.raises(VerdictsRefused):
        ledger.verdicts.record([acceptance(run(key("9"), "unknown")), acceptance(first), rejection(first)])
    assert read_event_keys(ledger, after=1) == [("VerdictAccepted", str(K), 1)]


def test_demotion_emits_events_at_begin_and_verdict(ledger: Ledger) -> None:
    """DemotionBegun is emitted once and has the number of the attempt that the verdict will get."""
    accepted_runs(ledger, [K])
    verdict = rejection(R1, validation_id="v2")
    ledger.verdicts.begin_demotions([verdict, verdict])
    check_no_events(ledger, lambda: ledger.verdicts.begin_demotions([verdict]))
    record_verdict(ledger, verdict)
    check_no_events(ledger, lambda: ledger.verdicts.begin_demotions([verdict]))
    assert read_event_keys(ledger, after=2) == [("DemotionBegun", str(K), 2), ("VerdictRejected", str(K), 2)]
    assert verdict.reason is not None
    assert read_events(ledger)[2].event.event_data == {
        "run_id": "r1",
        "error_message": "r1: bad in 1 row",
        "reason": json.loads(verdict.reason.json),
    }


def test_withdrawal_emits_events_at_begin_and_end(ledger: Ledger) -> None:
    """Each is emitted once, with the operator, the reason and the number of the coming attempt."""
    accepted_runs(ledger, [K])
    ledger.withdrawals.begin([K], action_request("act-1", reason="wrong account"))
    check_no_events(ledger, lambda: ledger.withdrawals.begin([K], action_request("act-2")))
    assert ledger.withdrawals.finish([R1], action_request("act-1", reason="wrong account")) == [K]
    check_no_events(ledger, lambda: ledger.withdrawals.finish([R1], action_request("act-2")))
    assert read_event_keys(ledger, after=2) == [("WithdrawalBegun", str(K), 2), ("PartitionWithdrawn", str(K), 2)]
    begun, ended = (each.event for each in read_events(ledger, after=2))
    assert begun.event_data == {"operator": "ada", "reason": "wrong account", "run_id": "r1"}
    assert ended.event_data == {"operator": "ada", "reason": "wrong account"}
    assert begun.caused_by_signal_id == ended.caused_by_signal_id == "act-1"


def test_loads_emit_numbered_events(ledger: Ledger) -> None:
    """Every failed load and every publication emits one event. A repeated or refused publication emits nothing."""
    accepted_runs(ledger, [K, key("2")])
    other = run(key("2"), "r1")
    ledger.loads.record_failed({R1: "disk\nfull", other: "disk full"})
    ledger.loads.record_failed({R1: "disk full"})
    assert ledger.loads.publish([R1], table_version=7).published == (R1,)
    assert read_event_keys(ledger, after=4) == [
        ("LoadFailed", str(K), 1),
        ("LoadFailed", str(key("2")), 1),
        ("LoadFailed", str(K), 2),
        ("PartitionLoaded", str(K), 3),
    ]
    events = [each.event.event_data for each in read_events(ledger, after=4)]
    assert events[0] == {"run_id": "r1", "error_message": r"disk\nfull"}
    assert events[3] == {"run_id": "r1", "schema_version": "1", "record_count": ROWS, "table_version": 7}
    check_no_events(ledger, lambda: ledger.loads.publish([R1], table_version=8))
    check_no_events(ledger, lambda: ledger.loads.publish([run(K, "unknown")], table_version=8))
    check_no_events(ledger, lambda: ledger.loads.record_failed({}))


@pytest.mark.parametrize(
    ("action", "event_type"),
    [
        (Action.ENQUEUE, "PartitionEnqueued"),
        (Action.REQUEUE, "PartitionRequeued"),
        (Action.WITHDRAW, "PartitionWithdrawn"),
        (Action.REPROCESS, "ReprocessRequested"),
    ],
    ids=str,
)
def test_control_actions_emit_an_event_per_changed_partition(ledger: Ledger, action: Action, event_type: str) -> None:
    """The event has the operator, the reason, the action id and the next attempt number. A repeat emits nothing."""
    accepted_runs(ledger, [key("1")])
    (failed,) = registered_runs(ledger, key("2"), "r1")
    record_verdict(ledger, rejection(failed))
    before = len(read_events(ledger))
    partitions = [key("1"), key("2"), key("3")]
    result = ledger.actions.execute(action, partitions, action_request("act-7", reason="wrong\taccount"))
    assert result.changed
    assert read_event_keys(ledger, after=before) == [
        (event_type, str(state.key), state.attempt_count + 1) for state in result.changed
    ]
    for each in read_events(ledger, after=before):
        assert each.event.caused_by_signal_id == "act-7"
        assert each.event.event_data == {"operator": "ada", "reason": r"wrong\taccount"}
    check_no_events(ledger, lambda: ledger.actions.execute(action, partitions, action_request("act-7")))
    check_no_events(ledger, lambda: ledger.actions.execute(action, partitions, action_request("act-8")))


def test_open_reprocess_request_is_not_emitted_again(ledger: Ledger) -> None:
    """A second reprocess request emits nothing until a verdict closes the first one."""
    accepted_runs(ledger, [K])
    ledger.actions.execute(Action.REPROCESS, [K], action_request("act-1"))
    check_no_events(ledger, lambda: ledger.actions.execute(Action.REPROCESS, [K], action_request("act-2")))
    (bad,) = registered_runs(ledger, K, "r2")
    record_verdict(ledger, rejection(bad))
    assert ledger.actions.execute(Action.REPROCESS, [K], action_request("act-3")).changed


# All event types.


def emit_every_type(ledger: Ledger) -> list[str]:
    """Make every change that emits events, and return the expected event types in order."""
    registered_runs(ledger, K, "r1")
    record_verdict(ledger, acceptance(R1))
    ledger.loads.record_failed({R1: "x" * 3_000})
    ledger.loads.publish([R1], table_version=0)
    ledger.verdicts.begin_demotions([rejection(R1, "ungültig", validation_id="v2")])
    record_verdict(ledger, rejection(R1, "ungültig", validation_id="v2"))
    ledger.actions.execute(Action.REQUEUE, [K], action_request("act-1"))
    ledger.actions.execute(Action.ENQUEUE, [key("2")], action_request("act-2"))
    record_verdict(ledger, acceptance(R1, "v3"))
    ledger.withdrawals.begin([K], action_request("act-3"))
    ledger.withdrawals.finish([R1], action_request("act-3"))
    return [
        "RawSealed",
        "VerdictAccepted",
        "LoadFailed",
        "PartitionLoaded",
        "DemotionBegun",
        "VerdictRejected",
        "PartitionRequeued",
        "PartitionEnqueued",
        "VerdictAccepted",
        "WithdrawalBegun",
        "PartitionWithdrawn",
    ]


@pytest.mark.invariant("E16", "E18")
def test_ledger_events_follow_the_event_contract(url: str, backdoor: sa.Engine) -> None:
    """Ledger events have the origin's run, plan and engine fields, the standard key and the canonical payload."""
    with Ledger.opened(url, origin=ORIGIN) as ledger:
        types = emit_every_type(ledger)
        logged = read_events(ledger)
    assert [each.event.event_type for each in logged] == types
    assert [each.run_seq for each in logged] == list(range(1, len(types) + 1))
    texts = {row.run_seq: (row.event_data, row.engine_run_ref) for row in read_all_tables(backdoor)["run_events"]}
    for each in logged:
        event = each.event
        assert (event.engine_run_id, event.plan_version, event.engine_attempt_id) == ("dagster-run-1", "plan-1", 2)
        assert (event.adapter_version, event.engine_run_ref) == ("dagster-1", {"job": "daily"})
        assert event.step_id in {str(K), str(key("2"))}
        assert each.idempotency_key == event.idempotency_key
        assert texts[each.run_seq] == (event.payload, event.engine_run_json)


def test_snapshot_of_ledger_events_has_a_step_per_partition(url: str) -> None:
    """Each partition is a step with the status of its last event. No ledger event is inconsistent."""
    with Ledger.opened(url, origin=ORIGIN) as ledger:
        emit_every_type(ledger)
        accepted_runs(ledger, [key("3")])
        registered_runs(ledger, key("4"), "r1")
    with open_part(EventLog, url) as log:
        Follower(log).catch_up()
        snapshot = log.get_snapshot(ORIGIN.engine_run_id)
        assert snapshot == log.project_snapshot(ORIGIN.engine_run_id)
        assert (snapshot.status, snapshot.inconsistencies) == (RunStatus.RUNNING, 0)
        assert stored_steps(log, ORIGIN.engine_run_id) == {
            str(K): StepStatus.SUCCEEDED,
            str(key("3")): StepStatus.SUCCEEDED,
            str(key("4")): StepStatus.RUNNING,
        }


def test_event_has_the_time_of_its_change(timed_ledger: Ledger, clock: FakeClock) -> None:
    """`persisted_at` and `emitted_at` equal the time of the verdict, by the ledger's clock."""
    (first,) = registered_runs(timed_ledger, K, "r1")
    clock.tick()
    record_verdict(timed_ledger, acceptance(first))
    (event,) = read_events(timed_ledger, after=1)
    judged_at = timed_ledger.runs.attempts(K)[0].judged_at
    assert event.persisted_at == judged_at == clock.now
    assert event.event.emitted_at == "2026-03-01T00:00:01.000000Z"


# Completion of the run.


def test_ledger_without_origin_completes_its_run(url: str) -> None:
    """A ledger without an origin emits events in a new run, which completes at the end of the block."""
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, [K])
        engine_run_id = ledger.origin.engine_run_id
    with Ledger.opened(url) as other:
        assert other.origin.engine_run_id != engine_run_id
    with open_part(EventReader, url) as reader:
        assert [each.event.event_type for each in reader.fetch(engine_run_id)] == [
            "RawSealed",
            "VerdictAccepted",
            "RunCompleted",
        ]
        assert {each.event.plan_version for each in reader.fetch(engine_run_id)} == {PLAN_VERSION}
        assert reader.project_snapshot(engine_run_id).status is RunStatus.COMPLETED
        assert [head.engine_run_id for head, _snapshot in reader.list_newest_runs()] == [engine_run_id]


def test_exception_fails_the_run(url: str) -> None:
    """An exception in the block fails the run, keeps earlier events and is raised unchanged."""
    opened: list[Ledger] = []

    def fail() -> None:
        with Ledger.opened(url) as ledger:
            opened.append(ledger)
            accepted_runs(ledger, [K])
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    with open_part(EventReader, url) as reader:
        snapshot = reader.project_snapshot(opened[0].origin.engine_run_id)
    assert (snapshot.status, snapshot.last_event_seq) == (RunStatus.FAILED, 3)


def test_block_without_changes_emits_no_events(url: str, backdoor: sa.Engine) -> None:
    """A block that only reads or repeats known changes creates no run, even if it raises."""
    with Ledger.opened(url, origin=ORIGIN) as ledger:
        accepted_runs(ledger, [K])
    before = read_all_tables(backdoor)

    def fail() -> None:
        with Ledger.opened(url) as ledger:
            accepted_runs(ledger, [K])
            raise KeyError("mine")

    with pytest.raises(KeyError):
        fail()
    with Ledger.opened(url) as ledger:
        assert ledger.states.get(K).attempt_count == 1
        accepted_runs(ledger, [K])
    assert read_all_tables(backdoor) == before


def test_ledger_does_not_complete_the_run_of_its_origin(url: str) -> None:
    """The ledger emits no RunCompleted or RunFailed for a given origin, even if the block raises."""

    def fail() -> None:
        with Ledger.opened(url, origin=ORIGIN) as ledger:
            accepted_runs(ledger, [K])
            raise KeyError("mine")

    with pytest.raises(KeyError):
        fail()
    with Ledger.opened(url, origin=ORIGIN) as ledger:
        accepted_runs(ledger, [key("2")])
        assert [each.event.event_type for each in read_events(ledger)] == ["RawSealed", "VerdictAccepted"] * 2
