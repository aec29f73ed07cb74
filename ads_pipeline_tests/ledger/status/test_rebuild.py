"""Tests the rebuild of status rows from the logs: after damage, after a crash, and during other writes."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.days.materialization_status import CodeVersion, Staleness, StaleReason
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.pipeline.days.staleness import StalenessCalculator
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    keys,
    open_part,
    publish_runs,
    rejection,
    run,
    sealed_runs,
    set_on_exit,
)
from ads_pipeline_tests.ledger.status.builders import create_all_conditions
from ads_pipeline_tests.ledger.status.finished_attempts import read_statuses
from ads_pipeline_tests.processes import run_script

STALE = Staleness(since=datetime(2026, 3, 1, tzinfo=UTC), reason=StaleReason.CODE_CHANGED, reasons=())


def open_table(ledger: Ledger) -> StatusTable:
    return StatusTable(ledger.engine)


@pytest.mark.invariant("P10")
def test_rebuild_restores_damaged_rows(timed_ledger: Ledger, clock: FakeClock, backdoor: sa.Engine) -> None:
    """After rows are deleted, changed or invented, a rebuild restores the original rows."""
    create_all_conditions(timed_ledger, clock)
    table = open_table(timed_ledger)
    before = read_statuses(table)
    damages = [
        "DELETE FROM partition_status",
        "UPDATE partition_status SET last_attempt_run_id = 'r9', row_version = '7ZZZZZZZZZZZZZZZZZZZZZZZZZ'",
        "UPDATE partition_status SET partition_key = '1|2020-01-01' WHERE partition_key = '1234567890|2026-02-01'",
    ]
    for damage in damages:
        database.transact(backdoor, lambda connection, text=damage: connection.exec_driver_sql(text))  # type: ignore[misc]
        assert read_statuses(table) != before
        assert table.rebuild() == len(before) == 8
        assert read_statuses(table) == before


def test_rebuild_of_an_empty_ledger_writes_no_rows(ledger: Ledger) -> None:
    """A ledger without finished attempts has no status rows, and its rebuild succeeds."""
    assert (open_table(ledger).rebuild(), read_statuses(open_table(ledger))) == (0, {})


def test_rebuild_and_sweep_write_in_batches(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more rows than one batch, each row is written once."""
    monkeypatch.setattr("ads_pipeline.ledger.status.status_table.ROWS_PER_BATCH", 3)
    monkeypatch.setattr("ads_pipeline.pipeline.days.staleness.ROWS_PER_UPDATE", 2)
    accepted_runs(ledger, keys(7))
    table = open_table(ledger)
    before = read_statuses(table)
    assert len(before) == 7
    code = StalenessCalculator({}, {"raw/campaign_daily": CodeVersion(version="2", since=STALE.since)})
    assert code.store_changes(table, now=datetime.now(UTC)) == 7
    assert all(row.stale_since for row in table.read_all())
    assert table.rebuild() == 7
    assert read_statuses(table) == before


# Rebuilds the rows, and kills itself at the n-th SQL event.
CRASHING_REBUILD = """
import os, signal, sys
import sqlalchemy as sa
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline_tests.ledger.builders import open_part

moments = int(sys.argv[2])
def moment(*_):
    global moments
    moments -= 1
    if moments == 0:
        os.kill(os.getpid(), signal.SIGKILL)

with open_part(StatusTable, sys.argv[1]) as table:
    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        sa.event.listen(table._engine, name, moment)
    table.rebuild()
    moment()
"""


@pytest.mark.invariant("P10")
def test_crash_during_rebuild_leaves_old_or_new_rows(timed_ledger: Ledger, clock: FakeClock, url: str) -> None:
    """After a kill at any moment, all rows are the old ones with their staleness, or all are rebuilt."""
    create_all_conditions(timed_ledger, clock)
    table = open_table(timed_ledger)
    rebuilt = read_statuses(table)
    table.store_staleness([(row, STALE) for row in table.read_all() if row.last_materialization_at])
    stale = read_statuses(table)
    outcomes = [read_statuses(table) for moment in (1, 3, 4, 6, 8, 9, 10, 11, 12, 13) if _crash_at(url, moment)]
    assert len(outcomes) >= 6, "too few crashes"
    assert outcomes[0] == stale
    assert all(rows in (stale, rebuilt) for rows in outcomes)
    table.rebuild()
    assert read_statuses(table) == rebuilt


def _crash_at(url: str, moment: int) -> bool:
    child = run_script(CRASHING_REBUILD, url, str(moment))
    assert child.returncode in (0, -9), child.stderr
    return child.returncode == -9


@pytest.mark.invariant("P10")
def test_rebuild_includes_concurrent_writes(url: str) -> None:
    """Verdicts and loads that are recorded during a rebuild are in the rows."""
    contested, max_runs = keys(4), 150
    done = threading.Event()
    rebuilt: list[int] = []

    def rebuild() -> None:
        with open_part(StatusTable, url) as table:
            while not done.is_set():
                rebuilt.append(table.rebuild())

    with Ledger.opened(url) as ledger, ThreadPoolExecutor(1) as pool:
        ledger.registrations.register(
            sealed_runs(*(run(each, f"r{number}") for each in contested for number in range(max_runs)))
        )
        rebuilding = pool.submit(rebuild)
        with set_on_exit(done):
            for number in range(max_runs):
                runs = [run(each, f"r{number}") for each in contested]
                ledger.verdicts.record([rejection(each) if number % 3 == 1 else acceptance(each) for each in runs])
                publish_runs(ledger, *runs)
                if number >= 10 and len(rebuilt) > 1:
                    break
                time.sleep(0.12 if number % 2 else 0)  # SQLite retries a busy lock every 0.1 s
        rebuilding.result()
        assert rebuilt[-1] > 0
        live = read_statuses(open_table(ledger))
        open_table(ledger).rebuild()
        assert read_statuses(open_table(ledger)) == live
