"""Tests that a change of the ledger and its events are stored together: after refusals, lost commits and crashes."""

from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, Final

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.days.materialization_status import RAW, WAREHOUSE, AttemptOutcome
from ads_pipeline.domain.errors import LedgerRefused
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import ActionResult
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    action_request,
    keys,
    open_part,
    record_verdict,
    registered_runs,
    rejection,
    run,
    sealed_runs,
)
from ads_pipeline_tests.ledger.events.test_ledger_events import ORIGIN, R1, K, read_events
from ads_pipeline_tests.ledger.state.test_crashes import lose_one_commit
from ads_pipeline_tests.ledger.test_database_constraints import read_all_tables
from ads_pipeline_tests.processes import run_script

PARTITIONS: Final = keys(3)
RUNS: Final = tuple(run(partition, "r1") for partition in PARTITIONS)


class LedgerChange:
    """A change that emits one event per partition, and the preparation that it needs."""

    def __init__(self, prepare: Callable[[Ledger], object], apply: Callable[[Ledger], object]) -> None:
        self.prepare, self.apply = prepare, apply


def _accept_all(ledger: Ledger) -> object:
    return ledger.verdicts.record([acceptance(each) for each in RUNS])


def _withdraw(ledger: Ledger) -> ActionResult:
    return ledger.actions.execute(Action.WITHDRAW, PARTITIONS, action_request("act-1"))


def _begin_withdrawals(ledger: Ledger) -> ActionResult:
    return ledger.withdrawals.begin(PARTITIONS, action_request("act-2"))


def _publish(ledger: Ledger) -> object:
    return ledger.loads.publish(RUNS, table_version=3)


CHANGES: Final[Mapping[str, LedgerChange]] = {
    "record_verdicts": LedgerChange(lambda ledger: ledger.registrations.register(sealed_runs(*RUNS)), _accept_all),
    "publish": LedgerChange(lambda ledger: accepted_runs(ledger, PARTITIONS), _publish),
    "execute": LedgerChange(lambda ledger: (accepted_runs(ledger, PARTITIONS), _publish(ledger)), _withdraw),
    "begin_withdrawals": LedgerChange(lambda ledger: accepted_runs(ledger, PARTITIONS, "r2"), _begin_withdrawals),
    "finish_withdrawals": LedgerChange(
        lambda ledger: (accepted_runs(ledger, PARTITIONS, "r2"), _begin_withdrawals(ledger)),
        lambda ledger: ledger.withdrawals.finish([run(each, "r2") for each in PARTITIONS], action_request("act-2")),
    ),
}


def test_change_without_its_event_is_rolled_back(url: str, backdoor: sa.Engine) -> None:
    """If the origin's run has another plan or is retired, every change of the ledger is refused."""
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, [K])
        registered_runs(ledger, K, "r2")
    with open_part(EventLog, url) as log:
        log.append(
            EventOrigin(engine_run_id="other-plan", plan_version="p1").make_event("RunStarted", at=FakeClock()())
        )
        log.append(EventOrigin(engine_run_id="retired", plan_version="p2").make_event("RunFailed", at=FakeClock()()))
        Follower(log).catch_up()
        log.retire("retired")
    before = read_all_tables(backdoor)
    for engine_run_id in ("other-plan", "retired"):
        with Ledger.opened(url, origin=EventOrigin(engine_run_id=engine_run_id, plan_version="p2")) as ledger:
            for change in (
                lambda ledger: ledger.registrations.register(sealed_runs(run(K, "r3"))),
                lambda ledger: record_verdict(ledger, acceptance(run(K, "r2"))),
                lambda ledger: ledger.verdicts.begin_demotions([rejection(R1, validation_id="v2")]),
                lambda ledger: ledger.withdrawals.begin([K], action_request()),
                lambda ledger: ledger.loads.publish([R1], table_version=0),
                lambda ledger: ledger.loads.record_failed({R1: "disk full"}),
                lambda ledger: ledger.actions.execute(Action.WITHDRAW, [K], action_request()),
            ):
                with pytest.raises(LedgerRefused):
                    change(ledger)
    assert read_all_tables(backdoor) == before


@pytest.mark.invariant("E4")
def test_lost_commit_acknowledgement_emits_events_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the acknowledgement of a commit is lost, the ledger retries by itself and emits no second event."""
    for number, change in enumerate(CHANGES.values()):
        change.prepare(ledger)
        before = len(read_events(ledger))
        with monkeypatch.context() as patch:
            losses = lose_one_commit(ledger.engine, patch)
            change.apply(ledger)
        assert losses == ["lost"], number
        assert len(read_events(ledger)) == before + len(PARTITIONS)
    check_agreement(ledger.engine)


# Applies a change and kills itself at the n-th point: before each statement, before the commit, and at the end.
CRASHING_CHANGE = """
import os, signal, sys
import sqlalchemy as sa
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.events.test_event_atomicity import CHANGES, ORIGIN

url, name, points = sys.argv[1], sys.argv[2], int(sys.argv[3])
def crash_point(*_):
    global points
    points -= 1
    if points == 0:
        os.kill(os.getpid(), signal.SIGKILL)

with Ledger.opened(url, origin=ORIGIN) as ledger:
    for event in ("before_cursor_execute", "commit"):
        sa.event.listen(ledger.engine, event, crash_point)
    CHANGES[name].apply(ledger)
    print("acknowledged", flush=True)
    crash_point()
"""


@pytest.mark.invariant("S21")
@pytest.mark.parametrize("name", CHANGES)
def test_crash_leaves_change_and_events_or_neither(url: str, backdoor: sa.Engine, name: str) -> None:
    """After a kill at any point, events and the other tables agree: the whole call is stored, or none of it."""
    with Ledger.opened(url) as ledger:
        CHANGES[name].prepare(ledger)
    untouched, point = read_all_tables(backdoor), 0
    while True:
        point += 1
        crashed, acknowledged = _crash_at(url, name, point)
        found = read_all_tables(backdoor)
        if found != untouched:
            break
        assert crashed
        assert not acknowledged
    assert point >= 4, "too few crash points"
    assert crashed, "the last crash point is after the commit"
    check_agreement(backdoor)
    with Ledger.opened(url, origin=ORIGIN) as ledger:
        assert len(read_events(ledger)) == len(PARTITIONS)
        CHANGES[name].apply(ledger)
    assert read_all_tables(backdoor) == found


def _crash_at(url: str, name: str, point: int) -> tuple[bool, bool]:
    child = run_script(CRASHING_CHANGE, url, name, str(point))
    assert child.returncode in (0, -9), child.stderr
    return child.returncode == -9, "acknowledged" in child.stdout


def check_agreement(engine: sa.Engine) -> None:
    """Check that the emitted events match the rows of the other tables."""
    tables = read_all_tables(engine)

    def events(*types: str) -> list[tuple[str, int]]:
        rows = [row for row in tables["run_events"] if row.event_type in types]
        return sorted((row.step_id, row.logical_attempt_id) for row in rows)

    def rows(table: str) -> list[tuple[str, Any]]:
        return [(str(_key_of(row)), row) for row in tables[table]]

    assert events("RawSealed") == sorted((step, row.ordinal) for step, row in rows("runs"))
    attempts = sorted((step, row.attempt_no) for step, row in rows("attempts"))
    assert events("VerdictAccepted", "VerdictRejected") == attempts
    assert {step: row.attempt_count for step, row in rows("partition_state")} == dict(attempts)
    loads = [step for step, row in rows("finished_attempts") if row.asset == WAREHOUSE]
    assert [step for step, _number in events("PartitionLoaded", "LoadFailed")] == sorted(loads)
    assert len(tables["load_records"]) == len(events("PartitionLoaded"))
    changed = [step for step, _row in rows("control_action_partitions")]
    assert [step for step, _number in events("PartitionWithdrawn", "PartitionRequeued")] == sorted(changed)
    heads = {row.engine_run_id: row.last_seq for row in tables["run_head"]}
    assert heads == {
        engine_run_id: len([row for row in tables["run_events"] if row.engine_run_id == engine_run_id])
        for engine_run_id in heads
    }
    ledger = Ledger(engine)
    for asset, known in ((RAW, {step for step, _row in rows("attempts")}), (WAREHOUSE, set(loads))):
        for partition, status in ledger.statuses.get_many(asset, PARTITIONS).items():
            assert (status is not None) == (str(partition) in known)
            assert status is None or status.last_attempt_outcome is AttemptOutcome.SUCCEEDED


def _key_of(row: Any) -> PartitionKey:
    day = date.fromisoformat(str(row.logical_date))  # SQLite's driver returns text
    return PartitionKey(source=row.source, customer_id=row.customer_id, query_name=row.query_name, logical_date=day)
