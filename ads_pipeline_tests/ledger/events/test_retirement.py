"""Tests the constraints of the event tables and the retirement of ended runs."""

from datetime import timedelta

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.errors import EventsNotFound, LedgerRefused, RunClosed, RunOpen
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import run_events
from ads_pipeline.ledger.write_steps.audit_log import AuditLog
from ads_pipeline.testing.event_strategies import make_completions, make_event
from ads_pipeline_tests.ledger.builders import FakeClock, accepted_runs, action_request, key, run
from ads_pipeline_tests.ledger.events.builders import complete_run, stored_steps
from ads_pipeline_tests.ledger.test_database_constraints import assert_refused, read_all_tables

COLUMNS = ", ".join(column.name for column in run_events.c)


# Constraints of the tables.


@pytest.mark.invariant("E1")
@pytest.mark.parametrize(
    ("column", "other"), [("idempotency_key", f"'{'0' * 64}'"), ("run_seq", "run_seq + 10")], ids=["run_seq", "key"]
)
def test_run_seq_and_idempotency_key_are_unique(log: EventLog, backdoor: sa.Engine, column: str, other: str) -> None:
    """A second row with the same `run_seq` or the same key is refused. A row with both different is accepted."""
    log.append_many(make_completions("r", 2))
    changed = COLUMNS.replace(column, other)
    copied = f"INSERT INTO run_events ({COLUMNS}) SELECT {{}} FROM run_events WHERE run_seq = 1"
    assert_refused(backdoor, copied.format(changed))
    both = changed.replace("idempotency_key", f"'{'0' * 64}'").replace("run_seq,", "run_seq + 10,")
    database.transact(backdoor, lambda connection: connection.exec_driver_sql(copied.format(both)))


@pytest.mark.invariant("E6")
@pytest.mark.parametrize("table", ["run_events", "finished_attempts", "run_head"])
def test_logs_are_append_only(url: str, backdoor: sa.Engine, table: str) -> None:
    """No connection can change or delete events and finished attempts, or delete heads."""
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, [key()])
        ledger.loads.publish([run(key(), "r1")], table_version=0)
    assert read_all_tables(backdoor)[table]
    column = "last_seq = last_seq - 1" if table == "run_head" else "engine_run_id = engine_run_id"
    assert_refused(backdoor, f"UPDATE {table} SET {column}")
    assert_refused(backdoor, f"DELETE FROM {table}")
    if backdoor.dialect.name == "postgresql":
        assert_refused(backdoor, f"TRUNCATE {table} CASCADE")


@pytest.mark.invariant("E6")
@pytest.mark.parametrize(
    "assignment",
    [
        "last_seq = 4",
        "last_seq = 6",  # a retired run accepts no event
        "projected_seq = 4",
        "last_at = '2000-01-01T00:00:00.000000Z'",
        "opened_at = '2000-01-01T00:00:00.000000Z'",
        "plan_version = 'other'",
        "engine_run_id = 'other'",
        "retired_at = NULL",
        "retired_at = '2999-01-01T00:00:00.000000Z'",
    ],
)
def test_head_of_a_retired_run_is_immutable(log: EventLog, backdoor: sa.Engine, assignment: str) -> None:
    """The head of a retired run cannot be changed or deleted."""
    complete_run(log)
    log.retire("over")
    assert_refused(backdoor, f"UPDATE run_head SET {assignment}")
    assert_refused(backdoor, "DELETE FROM run_head")


@pytest.mark.invariant("E6")
def test_only_events_of_a_retired_run_may_be_deleted(log: EventLog, backdoor: sa.Engine) -> None:
    """Events of other runs, ended or open, cannot be deleted."""
    for engine_run_id in ("over", "also-over"):
        complete_run(log, engine_run_id)
    log.append(make_event("open", "RunStarted"))
    log.retire("over")
    for engine_run_id in ("also-over", "open"):
        assert_refused(backdoor, f"DELETE FROM run_events WHERE engine_run_id = '{engine_run_id}'")


@pytest.mark.invariant("E10")
def test_snapshot_cannot_go_back(log: EventLog, backdoor: sa.Engine) -> None:
    """The database refuses to lower a snapshot's `projected_seq` or to change its run."""
    complete_run(log)
    assert_refused(backdoor, "UPDATE run_head SET projected_seq = projected_seq - 1")
    assert_refused(backdoor, "UPDATE run_head SET engine_run_id = 'other'")


# Retiring.


@pytest.mark.invariant("E6")
def test_retire_keeps_head_and_snapshot(log: EventLog, backdoor: sa.Engine) -> None:
    """Retiring a run deletes its events, and keeps its head with the snapshot, and other runs."""
    snapshot, other = complete_run(log), complete_run(log, "other")
    before = read_all_tables(backdoor)
    assert log.retire("over") == 5
    after = read_all_tables(backdoor)
    assert after["run_events"] == [row for row in before["run_events"] if row.engine_run_id == "other"]
    assert after["run_events"]
    assert (log.fetch("over"), log.get_snapshot("over"), log.get_current_snapshot("over")) == ([], snapshot, snapshot)
    assert (stored_steps(log, "over"), len(stored_steps(log, "other"))) == ({}, 3)
    assert log.project_snapshot("other") == other
    head = log.get_head("over")
    assert head is not None
    assert (head.last_seq, head.projected_seq, head.retired_at is not None) == (5, 5, True)


@pytest.mark.invariant("E6")
def test_retired_run_accepts_no_events(log: EventLog) -> None:
    """Known and new events are refused, alone and in a batch. Folding or retiring the run again does nothing."""
    snapshot = complete_run(log)
    log.retire("over")
    head = log.get_head("over")
    known, new = make_event("over", "RunStarted"), make_event("over", "RunPaused")
    for events in ([known], [new], [make_event("other", "RunStarted"), known]):
        with pytest.raises(RunClosed) as closed:
            log.append_many(events)
        assert closed.value.engine_run_id == "over"
    assert log.get_head("other") is None
    with pytest.raises(EventsNotFound, match="retired"):
        log.project_snapshot("over")
    follower = Follower(log)
    assert (
        follower.catch_up(),
        follower.fold_next_events("over").folded,
        follower.fold_next_events("over", resync=True).folded,
    ) == (0, 0, 0)
    assert log.retire("over") == 0
    assert (log.get_head("over"), log.get_snapshot("over")) == (head, snapshot)


@pytest.mark.invariant("E6")
def test_only_ended_and_folded_runs_are_retired(log: EventLog) -> None:
    """An unknown run, an open run and a run with unfolded events cannot be retired."""
    with pytest.raises(EventsNotFound):
        log.retire("never")
    follower = Follower(log)
    log.append(make_event("r", "RunStarted"))
    for event_type, status in ((None, "not folded"), ("StepStarted", "RUNNING"), ("RunFailed", "RUNNING")):
        if event_type:
            follower.catch_up()
            log.append(make_event("r", event_type, "s1" if event_type.startswith("Step") else None))
        with pytest.raises(RunOpen, match=status):
            log.retire("r")
    follower.catch_up()
    log.append(make_event("r", "NoteTaken"))
    with pytest.raises(RunOpen):
        log.retire("r")
    follower.catch_up()
    assert log.retire("r") == 4


@pytest.mark.invariant("E6")
def test_retire_before_uses_the_end_time(timed_log: EventLog, clock: FakeClock) -> None:
    """Runs that ended before the moment are retired once. Open, later and unfolded runs stay."""
    timed_log.append(make_event("open", "RunStarted"))
    for name in ("first", "second"):
        complete_run(timed_log, name)
        clock.tick()
    moment = clock.now
    complete_run(timed_log, "later")
    complete_run(timed_log, "unfolded")
    timed_log.append(make_event("unfolded", "NoteTaken"))
    assert timed_log.retire_before(moment) == ["first", "second"]
    assert timed_log.retire_before(moment) == []
    assert timed_log.retire_before(clock.now) == []
    assert timed_log.retire_before(clock.now + timedelta(microseconds=1)) == ["later"]
    head = timed_log.get_head("first")
    assert head is not None
    assert head.retired_at == moment + timedelta(0)


@pytest.mark.invariant("E6", "S16")
def test_retirement_by_an_operator_is_logged_or_does_not_happen(log: EventLog, backdoor: sa.Engine) -> None:
    """The log and the deletion are one transaction."""
    for engine_run_id in ("over", "other"):
        complete_run(log, engine_run_id)
    request = action_request()
    assert log.retire("over", request) == 5
    (logged,) = AuditLog(log.engine).parts(request.action_id)
    assert (logged.action, logged.operator, logged.reason) == ("retire_events", request.operator, request.reason)
    with pytest.raises(LedgerRefused):
        log.retire("other", request)  # its id is logged already
    assert len(log.fetch("other")) == 5
