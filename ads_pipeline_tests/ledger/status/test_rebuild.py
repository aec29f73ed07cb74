"""The rows made anew from the logs: after damage, after death, and while others write."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.freshness import CodeVersion, Staleness, StaleReason
from ads_pipeline.ledger import database
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.pipeline.staleness import StalenessCalculator
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    keys,
    publish_runs,
    rejection,
    run,
    sealed_runs,
    set_on_exit,
)
from ads_pipeline_tests.ledger.status.builders import lived_in
from ads_pipeline_tests.ledger.status.finishes import listed

STALE = Staleness(since=datetime(2026, 3, 1, tzinfo=UTC), reason=StaleReason.CODE_CHANGED, reasons=())


def book_of(ledger: Ledger) -> StatusTable:
    return StatusTable(ledger._engine)


@pytest.mark.invariant("P10")
def test_rows_that_are_gone_are_made_anew(timed_ledger: Ledger, clock: FakeClock, backdoor: sa.Engine) -> None:
    """With every row deleted, changed or invented, the logs give back the rows that were."""
    lived_in(timed_ledger, clock)
    book = book_of(timed_ledger)
    before = listed(book)
    damages = [
        "DELETE FROM partition_status",
        "UPDATE partition_status SET last_attempt_run_id = 'r9', row_version = '7ZZZZZZZZZZZZZZZZZZZZZZZZZ'",
        "UPDATE partition_status SET partition_key = '1|2020-01-01' WHERE partition_key = '1234567890|2026-02-01'",
    ]
    for damage in damages:
        database.transact(backdoor, lambda connection, text=damage: connection.exec_driver_sql(text))  # type: ignore[misc]
        assert listed(book) != before
        assert book.rebuild() == len(before) == 8
        assert listed(book) == before


def test_an_empty_ledger_has_no_rows_to_make(ledger: Ledger) -> None:
    """Where nothing was finished there is nothing to make, and that is no failure."""
    assert (book_of(ledger).rebuild(), listed(book_of(ledger))) == (0, {})


def test_rows_are_made_in_portions(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows there are, each is made once."""
    monkeypatch.setattr("ads_pipeline.ledger.status.status_table.ROWS_PER_BATCH", 3)
    monkeypatch.setattr("ads_pipeline.pipeline.staleness.ROWS_PER_UPDATE", 2)
    accepted_runs(ledger, keys(7))
    book = book_of(ledger)
    before = listed(book)
    assert len(before) == 7
    code = StalenessCalculator({}, {"raw/campaign_daily": CodeVersion(version="2", since=STALE.since)})
    assert code.store_changes(book, now=datetime.now(UTC)) == 7
    assert all(row.stale_since for row in book.read_all())
    assert book.rebuild() == 7
    assert listed(book) == before


# Makes the rows anew, and kills itself at the n-th moment.
DYING = """
import os, signal, sys
import sqlalchemy as sa
from ads_pipeline.ledger.status.status_table import StatusBook

moments = int(sys.argv[2])
def moment(*_):
    global moments
    moments -= 1
    if moments == 0:
        os.kill(os.getpid(), signal.SIGKILL)

with StatusBook.opened(sys.argv[1]) as book:
    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        sa.event.listen(book._engine, name, moment)
    book.rebuild()
    moment()
"""


@pytest.mark.invariant("P10")
def test_a_crash_while_rows_are_made_leaves_the_old_ones(timed_ledger: Ledger, clock: FakeClock, url: str) -> None:
    """Killed at any moment, the rows are all as they were with their marks, or all made anew."""
    lived_in(timed_ledger, clock)
    book = book_of(timed_ledger)
    bare = listed(book)
    book.store_staleness([(row, STALE) for row in book.read_all() if row.last_materialization_at])
    marked = listed(book)
    outcomes = [listed(book) for moment in (1, 3, 4, 6, 8, 9, 10, 11, 12, 13) if _die_at(url, moment)]
    assert len(outcomes) >= 6, "the making was hardly interrupted"
    assert outcomes[0] == marked
    assert all(rows in (marked, bare) for rows in outcomes)
    book.rebuild()
    assert listed(book) == bare


def _die_at(url: str, moment: int) -> bool:
    child = subprocess.run(
        [sys.executable, "-c", DYING, url, str(moment)], capture_output=True, text=True, check=False, timeout=60
    )
    assert child.returncode in (0, -9), child.stderr
    return child.returncode == -9


@pytest.mark.invariant("P10")
def test_rows_are_made_while_others_write(url: str) -> None:
    """Verdicts and loads that come while the rows are made anew are in them, whoever is first."""
    contested, most = keys(4), 150
    done = threading.Event()
    rebuilt: list[int] = []

    def rebuild() -> None:
        with StatusTable.opened(url) as book:
            while not done.is_set():
                rebuilt.append(book.rebuild())

    with Ledger.opened(url) as ledger, ThreadPoolExecutor(1) as pool:
        ledger.register(sealed_runs(*(run(each, f"r{number}") for each in contested for number in range(most))))
        rebuilding = pool.submit(rebuild)
        with set_on_exit(done):
            for number in range(most):
                runs = [run(each, f"r{number}") for each in contested]
                ledger.record_verdicts([rejection(each) if number % 3 == 1 else acceptance(each) for each in runs])
                publish_runs(ledger, *runs)
                if number >= 10 and len(rebuilt) > 1:
                    break
                time.sleep(0.12 if number % 2 else 0)  # SQLite's waiters look each 0.1 s
        rebuilding.result()
        assert rebuilt[-1] > 0
        live = listed(book_of(ledger))
        book_of(ledger).rebuild()
        assert listed(book_of(ledger)) == live
