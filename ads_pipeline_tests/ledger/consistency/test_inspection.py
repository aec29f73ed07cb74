"""Inspection of a whole ledger: contradictions, runs, pointers and open engine runs."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.transitions import Action, Outcome
from ads_pipeline.ledger.consistency.copying import copy_ledger
from ads_pipeline.ledger.consistency.inspection import LedgerInspection
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.pipeline.progress import no_progress
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    action_request,
    key,
    keys,
    open_part,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
    run,
    sealed_runs,
    set_on_exit,
)
from ads_pipeline_tests.ledger.forging import forge
from ads_pipeline_tests.ledger.histories import SCRIPTED_HISTORY, apply_history


@pytest.mark.invariant("C3")
def test_state_that_does_not_follow_from_its_log_is_found(url: str) -> None:
    """States after a long history are all consistent. A row changed by plain SQL is reported with both states."""
    clock = FakeClock()
    with Ledger.opened(url, clock=clock) as ledger:
        apply_history(ledger, clock, SCRIPTED_HISTORY)
    with LedgerInspection.opened(url) as ledger:
        assert list(ledger.find_contradictions()) == []
    engine = database.open_engine(url)
    at = "2030-01-01T00:00:00.000000Z"
    corruption = f"UPDATE partition_state SET status = 'pending', updated_at = '{at}' WHERE customer_id = '6'"
    forge(engine, corruption)
    engine.dispose()
    with LedgerInspection.opened(url) as ledger:
        ((partition, problem),) = ledger.find_contradictions()
    assert partition == key("6")
    assert problem.startswith("its row says pending from r1 of 3 rows after 1 attempts at 2030-01-01 00:00:00+00:00")
    assert "its log says success from r1 of 3 rows after 1 attempts at 2026-" in problem


def test_runs_are_listed_in_path_order(ledger: Ledger, url: str) -> None:
    """Raw lists its directories in the same order, so that both lists can be merged."""
    partitions = [
        key(customer, query_name=name) for customer in ("10", "9", "100", "1") for name in ("a_b", "ab", "a")
    ]
    for partition in partitions:
        registered_runs(ledger, partition, "r2", "R1", "r10", "r-1", "r1")
    with LedgerInspection.opened(url) as inspection:
        paths = [inspected.registered.run.path for inspected in inspection.list_runs("google_ads")]
        assert inspection.list_sources() == ["google_ads"]
    assert paths == sorted(paths, key=lambda path: path.split("/"))
    assert len(paths) == 60


def test_run_is_listed_with_its_last_verdict(ledger: Ledger, url: str) -> None:
    """`is_current` is true only for the current run of a success, not for one of a withdrawn partition."""
    accepted_runs(ledger, keys(2))
    (newer,) = registered_runs(ledger, keys(1)[0], "r2")
    record_verdict(ledger, rejection(newer))
    ledger.actions.execute(Action.WITHDRAW, [keys(2)[1]], action_request())
    with LedgerInspection.opened(url) as inspection:
        inspected = list(inspection.list_runs("google_ads"))
        assert inspection.inspect_run(newer) == inspected[1]
        assert inspection.inspect_run(run(keys(1)[0], "r3")) is None
    assert [(each.registered.run.run_id, each.outcome, each.is_current) for each in inspected] == [
        ("r1", Outcome.ACCEPTED, True),
        ("r2", Outcome.REJECTED, False),
        ("r1", Outcome.ACCEPTED, False),
    ]


def test_misplaced_pointers_are_found(ledger: Ledger, url: str, backdoor: sa.Engine) -> None:
    """A pointer at an older run and one that differs from the registration are found. A withdrawn one is not."""
    first, second, third, fourth = keys(4)
    accepted_runs(ledger, keys(4))
    publish_runs(ledger, *(run(each, "r1") for each in keys(4)))
    accepted_runs(ledger, [second], "r2")
    ledger.actions.execute(Action.WITHDRAW, [third], action_request())
    corruption = f"UPDATE warehouse_pointer SET schema_version = '9' WHERE customer_id = '{fourth.customer_id}'"
    forge(backdoor, corruption)
    with LedgerInspection.opened(url) as inspection:
        found = {each.run.key: each for each in inspection.find_misplaced_pointers()}
    assert set(found) == {second, fourth}
    assert (found[second].current_run_id, found[second].outcome) == ("r2", Outcome.ACCEPTED)
    assert (found[second].differs_from_registration, found[fourth].differs_from_registration) == (False, True)
    assert first not in found


def test_open_runs_are_listed_with_their_lease(ledger: Ledger, url: str, backdoor: sa.Engine) -> None:
    """Each has the times of its last event and of its lease. Runs whose snapshot is behind are left out."""
    accepted_runs(ledger, keys(1))
    engine_run_id = ledger.origin.engine_run_id
    with LedgerInspection.opened(url) as inspection:
        assert inspection.list_open_runs() == []
        with open_part(EventLog, url) as log:
            Follower(log).catch_up()
        (found,) = inspection.list_open_runs()
        assert (found.engine_run_id, found.lease_expires_at) == (engine_run_id, None)
        assert abs(inspection.read_clock() - found.last_event_at) < timedelta(minutes=5)
        at = "2026-03-01T00:00:00.000000Z"
        lease = f"INSERT INTO leases VALUES ('{engine_run_id}', '{at}', '{at}', '{at}', NULL)"
        database.transact(backdoor, lambda connection: connection.exec_driver_sql(lease))
        (leased,) = inspection.list_open_runs()
        assert leased.lease_expires_at is not None


@pytest.mark.invariant("C1", "C3")
def test_concurrent_writes_cause_no_contradictions(url: str, tmp_path: Path) -> None:
    """While verdicts and actions are recorded, checks and copies of the ledger each see one moment."""
    contested, done = keys(5), threading.Event()
    copies: list[str] = []

    def check_and_copy() -> None:
        with LedgerInspection.opened(url) as inspection:
            while not done.is_set():
                assert list(inspection.find_contradictions()) == []
                copies.append(f"sqlite:///{tmp_path / f'copy-{len(copies)}.db'}")
                copy_ledger(url, copies[-1], progress=no_progress)

    with Ledger.opened(url) as ledger, ThreadPoolExecutor(1) as pool:
        ledger.registrations.register(
            sealed_runs(*(run(each, f"r{number}") for each in contested for number in range(80)))
        )
        checking = pool.submit(check_and_copy)
        with set_on_exit(done):
            for number in range(80):
                runs = [run(each, f"r{number}") for each in contested]
                ledger.verdicts.record([rejection(each) if number % 3 == 1 else acceptance(each) for each in runs])
                action = Action.REQUEUE if number % 2 else Action.WITHDRAW
                ledger.actions.execute(action, contested, action_request(f"action-{number}"))
                if number > 20 and len(copies) > 3:
                    break
                time.sleep(0.02)
        checking.result()
    assert len(copies) > 1
    for copy in copies:
        with LedgerInspection.opened(copy) as inspection:
            assert list(inspection.find_contradictions()) == []
