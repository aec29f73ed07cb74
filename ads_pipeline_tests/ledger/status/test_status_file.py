"""Tests `partition_status.parquet` with DuckDB as its reader: its columns, its rows and its atomic replacement."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ads_pipeline.domain.days.materialization_status import AttemptOutcome, PartitionStatus, Staleness, StaleReason
from ads_pipeline.domain.errors import LedgerUnavailable, StatusFileUnavailable
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.status import status_file
from ads_pipeline.ledger.status.status_file import write_status_file
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    accepted_runs,
    key,
    keys,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
    run,
    set_on_exit,
)

COLUMNS = {
    "tenant_id": "VARCHAR",
    "workspace_id": "VARCHAR",
    "asset_key": "VARCHAR",
    "partition_key": "VARCHAR",
    "last_materialization_run_id": "VARCHAR",
    "last_materialization_at": "TIMESTAMP WITH TIME ZONE",
    "last_materialization_code_version": "VARCHAR",
    "last_attempt_run_id": "VARCHAR",
    "last_attempt_at": "TIMESTAMP WITH TIME ZONE",
    "last_attempt_outcome": "VARCHAR",
    "stale_since": "TIMESTAMP WITH TIME ZONE",
    "stale_reason_code": "VARCHAR",
    "partition_values": "MAP(VARCHAR, VARCHAR)",
    "row_version": "VARCHAR",
}
INSTANTS = [name for name, kind in COLUMNS.items() if kind.startswith("TIMESTAMP")]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def ledger(sqlite_url: str) -> Iterator[Ledger]:
    with Ledger.opened(sqlite_url) as opened:
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "published" / "partition_status.parquet"


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(sql.format(file=f"read_parquet('{path}')")).fetchall()


def read_types(path: Path) -> dict[str, str]:
    return {name: kind for name, kind, *_ in query(path, "DESCRIBE SELECT * FROM {file}")}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows as DuckDB reads them. Instants are microseconds, which need no time zone library."""
    names = [f"epoch_us({name})" if name in INSTANTS else name for name in COLUMNS]
    return [dict(zip(COLUMNS, row, strict=True)) for row in query(path, f"SELECT {', '.join(names)} FROM {{file}}")]


def expected_row(status: PartitionStatus) -> dict[str, Any]:
    row = {name: getattr(status, name) for name in COLUMNS}
    for name in INSTANTS:
        row[name] = None if row[name] is None else (row[name] - EPOCH) // timedelta(microseconds=1)
    return row


def make_rows(generation: str, count: int) -> Iterator[PartitionStatus]:
    """Yield rows whose run id names the written generation."""
    for number in range(count):
        yield PartitionStatus(
            tenant_id="default",
            workspace_id="google_ads",
            asset_key="raw/campaign_daily",
            partition_key=f"{number}|2026-02-01",
            last_attempt_run_id=generation,
            last_attempt_at=datetime(2026, 3, 1, tzinfo=UTC),
            last_attempt_outcome=AttemptOutcome.FAILED,
            partition_values={"customer": str(number), "date": "2026-02-01"},
            row_version="0" * 26,
        )


def test_file_has_the_rows_of_the_table(ledger: Ledger, path: Path) -> None:
    """The file has the fourteen ADR-026 columns with their types in order, and every value of every row."""
    accepted_runs(ledger, keys(3))
    publish_runs(ledger, run(keys(3)[0], "r1"))
    (failed,) = registered_runs(ledger, key("9"), "r1")
    record_verdict(ledger, rejection(failed))
    table = StatusTable(ledger.engine)
    stale = Staleness(since=datetime(2026, 3, 1, 1, 2, 3, 4, tzinfo=UTC), reason=StaleReason.CODE_CHANGED, reasons=())
    table.store_staleness([(next(iter(table.read_all())), stale)])
    rows = list(table.read_all())
    assert write_status_file(rows, path) == 5
    assert list(read_types(path).items()) == list(COLUMNS.items())
    assert read_rows(path) == [expected_row(row) for row in rows]
    assert read_rows(path)[0]["stale_reason_code"] == "CODE_CHANGED"
    assert list(path.parent.iterdir()) == [path]


def test_partition_values_can_be_queried(ledger: Ledger, path: Path) -> None:
    """The dimensions are a map, and instants compare with `now()`."""
    accepted_runs(ledger, [key(day=1), key(day=2)])
    write_status_file(StatusTable(ledger.engine).read_all(), path)
    sql = "SELECT partition_values['customer'] FROM {file} WHERE partition_values['date'] = '2026-02-02'"
    assert query(path, f"{sql} AND last_attempt_at <= now()") == [("1234567890",)]


def test_empty_table_is_a_file_with_columns(ledger: Ledger, path: Path) -> None:
    """A file of an empty table has all columns and no rows."""
    assert write_status_file(StatusTable(ledger.engine).read_all(), path) == 0
    assert read_types(path) == COLUMNS
    assert read_rows(path) == []


def test_rows_are_written_in_batches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more rows than one batch, each row is in the file once and in order."""
    monkeypatch.setattr(status_file, "ROWS_PER_BATCH", 7)
    assert write_status_file(make_rows("one", 50), path) == 50
    assert [row["partition_key"] for row in read_rows(path)] == [f"{number}|2026-02-01" for number in range(50)]


def test_unusual_values_are_preserved(path: Path) -> None:
    """Line breaks, quotes, control characters and instants before 1970 come back unchanged."""
    odd = replace(
        next(make_rows("one", 1)),
        last_attempt_run_id="a\"'\\\n\t,ü日😀",
        last_attempt_at=datetime(1, 1, 1, tzinfo=UTC),
        partition_values={"customer": "", "date": "'; --", "ü": "\x1b"},
    )
    write_status_file([odd], path)
    assert read_rows(path) == [expected_row(odd)]


@pytest.mark.invariant("P11")
def test_reader_always_finds_a_complete_file(path: Path) -> None:
    """While two threads replace the file repeatedly, each read finds all rows of one generation."""
    done = threading.Event()
    write_status_file(make_rows("first", 3_000), path)

    def write_repeatedly(name: str) -> int:
        number = 0
        while not done.is_set():
            number += 1
            write_status_file(make_rows(f"{name}-{number}", 3_000), path)
        return number

    seen = set()
    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(write_repeatedly, name) for name in ("a", "b")]
        with set_on_exit(done):
            for _ in range(60):
                sql = "SELECT count(*), count(DISTINCT last_attempt_run_id), min(last_attempt_run_id) FROM {file}"
                ((rows, generations, generation),) = query(path, sql)
                assert (rows, generations) == (3_000, 1)
                seen.add(generation)
        assert all(each.result() > 1 for each in writing)
    assert len(seen) > 2, "the file was not replaced between reads"
    assert list(path.parent.iterdir()) == [path]


# Writes other rows, and kills itself before the n-th row, or with 99 before the rename.
CRASHING_WRITE = """
import os, signal, sys
from pathlib import Path
from ads_pipeline.ledger.status import status_file
from ads_pipeline_tests.ledger.status.test_status_file import make_rows

status_file.ROWS_PER_BATCH = 10
path, moment = Path(sys.argv[1]), int(sys.argv[2])

def rows():
    for number, row in enumerate(make_rows("second", 40)):
        if number == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        yield row

def kill_at_rename(name, arguments):
    if name == "os.rename" and moment == 99:
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill_at_rename)
status_file.write_status_file(rows(), path)
"""


@pytest.mark.invariant("P11")
@pytest.mark.parametrize("moment", [0, 25, 39, 99, 100])
def test_crash_leaves_the_old_file(path: Path, moment: int) -> None:
    """A kill before the rename leaves the earlier file and one temporary file."""
    write_status_file(make_rows("first", 20), path)
    child = subprocess.run(
        [sys.executable, "-c", CRASHING_WRITE, str(path), str(moment)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    crashed = moment < 100
    assert child.returncode == (-signal.SIGKILL if crashed else 0), child.stderr
    assert {row["last_attempt_run_id"] for row in read_rows(path)} == {"first" if crashed else "second"}
    others = [each.name for each in path.parent.iterdir() if each != path]
    assert len(others) == crashed
    assert all(name.startswith("_tmp.partition_status.parquet.") for name in others)
    write_status_file(make_rows("third", 20), path)
    assert {row["last_attempt_run_id"] for row in read_rows(path)} == {"third"}


# Writes with a limit on the file size, as on a full disk.
WRITE_ON_FULL_DISK = """
import resource, sys
from pathlib import Path
from ads_pipeline.domain.errors import StatusFileUnavailable
from ads_pipeline.ledger.status.status_file import write_status_file
from ads_pipeline_tests.ledger.status.test_status_file import make_rows

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    write_status_file(make_rows("second", 5000), Path(sys.argv[1]))
except StatusFileUnavailable as error:
    print(error)
"""


@pytest.mark.invariant("P11")
@pytest.mark.parametrize("max_bytes", [0, 100, 4096])
def test_full_disk_leaves_the_old_file(path: Path, max_bytes: int) -> None:
    """The error names the file and the reason. No temporary file stays."""
    write_status_file(make_rows("first", 20), path)
    child = subprocess.run(
        [sys.executable, "-c", WRITE_ON_FULL_DISK, str(path), str(max_bytes)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (child.returncode, child.stdout) == (0, "partition_status.parquet: File too large\n"), child.stderr
    assert {row["last_attempt_run_id"] for row in read_rows(path)} == {"first"}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.invariant("P11")
def test_unwritable_path_raises_a_transient_error(path: Path, tmp_path: Path) -> None:
    """A path below a file, and a path that is a folder, raise StatusFileUnavailable without the full path."""
    (tmp_path / "in-the-way").touch()
    path.mkdir(parents=True)
    (path / "something").touch()
    for target in (tmp_path / "in-the-way" / "status.parquet", path):
        with pytest.raises(StatusFileUnavailable, match=target.name) as caught:
            write_status_file(make_rows("one", 3), target)
        assert caught.value.is_transient
        assert str(tmp_path) not in str(caught.value)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.invariant("P11")
def test_ledger_failure_leaves_the_old_file(path: Path) -> None:
    """An error of the row source is raised unchanged. The old file stays, without a temporary file."""

    def failing() -> Iterator[PartitionStatus]:
        yield from make_rows("second", 5)
        raise LedgerUnavailable("gone")

    write_status_file(make_rows("first", 3), path)
    with pytest.raises(LedgerUnavailable, match="gone"):
        write_status_file(failing(), path)
    assert {row["last_attempt_run_id"] for row in read_rows(path)} == {"first"}
    assert list(path.parent.iterdir()) == [path]


def test_file_is_a_consistent_snapshot(ledger: Ledger, path: Path) -> None:
    """A verdict that is recorded during the write is not in the file."""
    accepted_runs(ledger, keys(3))
    table = StatusTable(ledger.engine)

    def rows_with_concurrent_verdict() -> Iterator[PartitionStatus]:
        for number, row in enumerate(table.read_all()):
            if number == 0:
                (r2,) = registered_runs(ledger, keys(3)[2], "r2")
                record_verdict(ledger, acceptance(r2))
            yield row

    write_status_file(rows_with_concurrent_verdict(), path)
    assert {row["last_attempt_run_id"] for row in read_rows(path)} == {"r1"}
