"""`partition_status.parquet`, read by a tool that is not ours: its columns, and that it is whole at every moment."""

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

from ads_pipeline.domain.freshness import AttemptOutcome, PartitionStatus, Staleness, StaleReason
from ads_pipeline.errors import LedgerUnavailable, StatusFileUnavailable
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.status import status_file
from ads_pipeline.ledger.status.status_file import write_status_file
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline_tests.ledger.builders import acceptance, accepted_runs, key, keys, registered_runs, publish_runs, rejection, run, set_on_exit

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


def asked(path: Path, question: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(question.format(file=f"read_parquet('{path}')")).fetchall()


def types_of(path: Path) -> dict[str, str]:
    return {name: kind for name, kind, *_ in asked(path, "DESCRIBE SELECT * FROM {file}")}


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows as DuckDB reads them; its instants need no library of time zones as microseconds."""
    names = [f"epoch_us({name})" if name in INSTANTS else name for name in COLUMNS]
    return [dict(zip(COLUMNS, row, strict=True)) for row in asked(path, f"SELECT {', '.join(names)} FROM {{file}}")]


def expected_row(status: PartitionStatus) -> dict[str, Any]:
    row = {name: getattr(status, name) for name in COLUMNS}
    for name in INSTANTS:
        row[name] = None if row[name] is None else (row[name] - EPOCH) // timedelta(microseconds=1)
    return row


def some_rows(generation: str, count: int) -> Iterator[PartitionStatus]:
    """As many rows that all say which publication they are of."""
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


def test_the_file_holds_what_the_table_holds(ledger: Ledger, path: Path) -> None:
    """Fourteen columns of the decision's types in its order, and each row's every value."""
    accepted_runs(ledger, keys(3))
    publish_runs(ledger, run(keys(3)[0], "r1"))
    (failed,) = registered_runs(ledger, key("9"), "r1")
    ledger.record_verdict(rejection(failed))
    book = StatusTable(ledger._engine)
    stale = Staleness(since=datetime(2026, 3, 1, 1, 2, 3, 4, tzinfo=UTC), reason=StaleReason.CODE_CHANGED, reasons=())
    book.store_staleness([(next(iter(book.read_all())), stale)])
    rows = list(book.read_all())
    assert write_status_file(rows, path) == 5
    assert list(types_of(path).items()) == list(COLUMNS.items())
    assert rows_of(path) == [expected_row(row) for row in rows]
    assert rows_of(path)[0]["stale_reason_code"] == "CODE_CHANGED"
    assert list(path.parent.iterdir()) == [path]


def test_values_of_partitions_can_be_asked_for(ledger: Ledger, path: Path) -> None:
    """The dimensions are a map, and instants compare with other instants."""
    accepted_runs(ledger, [key(day=1), key(day=2)])
    write_status_file(StatusTable(ledger._engine).read_all(), path)
    question = "SELECT partition_values['customer'] FROM {file} WHERE partition_values['date'] = '2026-02-02'"
    assert asked(path, f"{question} AND last_attempt_at <= now()") == [("1234567890",)]


def test_a_table_without_rows_is_a_file_with_columns(ledger: Ledger, path: Path) -> None:
    """Whoever reads it first finds no rows, and the columns to come."""
    assert write_status_file(StatusTable(ledger._engine).read_all(), path) == 0
    assert types_of(path) == COLUMNS
    assert rows_of(path) == []


def test_many_rows_are_written_in_portions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows there are, each stands in the file once and in order."""
    monkeypatch.setattr(status_file, "ROWS_PER_BATCH", 7)
    assert write_status_file(some_rows("one", 50), path) == 50
    assert [row["partition_key"] for row in rows_of(path)] == [f"{number}|2026-02-01" for number in range(50)]


def test_values_of_any_content_are_kept(path: Path) -> None:
    """Text that would break a line or another format, and instants before the epoch, are what they were."""
    odd = replace(
        next(some_rows("one", 1)),
        last_attempt_run_id="a\"'\\\n\t,ü日😀",
        last_attempt_at=datetime(1, 1, 1, tzinfo=UTC),
        partition_values={"customer": "", "date": "'; --", "ü": "\x1b"},
    )
    write_status_file([odd], path)
    assert rows_of(path) == [expected_row(odd)]


@pytest.mark.invariant("P11")
def test_a_reader_always_finds_a_whole_file(path: Path) -> None:
    """While it is published again and again, by two at once, each look finds all rows of one publication."""
    done = threading.Event()
    write_status_file(some_rows("first", 3_000), path)

    def keep_publishing(name: str) -> int:
        number = 0
        while not done.is_set():
            number += 1
            write_status_file(some_rows(f"{name}-{number}", 3_000), path)
        return number

    seen = set()
    with ThreadPoolExecutor(2) as pool:
        publishing = [pool.submit(keep_publishing, name) for name in ("a", "b")]
        with set_on_exit(done):
            for _ in range(60):
                question = (
                    "SELECT count(*), count(DISTINCT last_attempt_run_id), min(last_attempt_run_id) FROM {file}"
                )
                ((rows, generations, generation),) = asked(path, question)
                assert (rows, generations) == (3_000, 1)
                seen.add(generation)
        assert all(each.result() > 1 for each in publishing)
    assert len(seen) > 2, "nothing was published meanwhile"
    assert list(path.parent.iterdir()) == [path]


# Publishes other rows, and kills itself before the n-th of them, or as it puts the file in its place.
DYING = """
import os, signal, sys
from pathlib import Path
from ads_pipeline import status_file
from ads_pipeline_tests.ledger.status.test_status_file import some_rows

status_file.AT_ONCE = 10
path, moment = Path(sys.argv[1]), int(sys.argv[2])

def rows():
    for number, row in enumerate(some_rows("second", 40)):
        if number == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        yield row

def replacing(name, arguments):
    if name == "os.rename" and moment == 99:
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(replacing)
status_file.publish(rows(), path)
"""


@pytest.mark.invariant("P11")
@pytest.mark.parametrize("moment", [0, 25, 39, 99, 100])
def test_a_death_leaves_the_old_file(path: Path, moment: int) -> None:
    """Killed while rows are written or put in place, the file is the earlier one; beside it lies one more."""
    write_status_file(some_rows("first", 20), path)
    child = subprocess.run(
        [sys.executable, "-c", DYING, str(path), str(moment)], capture_output=True, text=True, check=False, timeout=60
    )
    died = moment < 100
    assert child.returncode == (-signal.SIGKILL if died else 0), child.stderr
    assert {row["last_attempt_run_id"] for row in rows_of(path)} == {"first" if died else "second"}
    beside = [each.name for each in path.parent.iterdir() if each != path]
    assert len(beside) == died
    assert all(name.startswith("_tmp.partition_status.parquet.") for name in beside)
    write_status_file(some_rows("third", 20), path)
    assert {row["last_attempt_run_id"] for row in rows_of(path)} == {"third"}


# Publishes where no file may grow longer than some bytes, as on a full disk.
ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from ads_pipeline.errors import StatusFileUnavailable
from ads_pipeline.ledger.status.status_file import publish
from ads_pipeline_tests.ledger.status.test_status_file import some_rows

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    publish(some_rows("second", 5000), Path(sys.argv[1]))
except StatusFileUnavailable as error:
    print(error)
"""


@pytest.mark.invariant("P11")
@pytest.mark.parametrize("room", [0, 100, 4096])
def test_a_full_disk_leaves_the_old_file(path: Path, room: int) -> None:
    """The failure names the file and the reason, waiting may cure it, and nothing unfinished stays behind."""
    write_status_file(some_rows("first", 20), path)
    child = subprocess.run(
        [sys.executable, "-c", ON_A_FULL_DISK, str(path), str(room)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (child.returncode, child.stdout) == (0, "partition_status.parquet: File too large\n"), child.stderr
    assert {row["last_attempt_run_id"] for row in rows_of(path)} == {"first"}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.invariant("P11")
def test_a_place_that_cannot_be_written_is_an_outage(path: Path, tmp_path: Path) -> None:
    """A folder that cannot be made, or that stands in the way, is a failure that waiting may cure."""
    (tmp_path / "in-the-way").touch()
    path.mkdir(parents=True)
    (path / "something").touch()
    for place in (tmp_path / "in-the-way" / "status.parquet", path):
        with pytest.raises(StatusFileUnavailable, match=place.name) as caught:
            write_status_file(some_rows("one", 3), place)
        assert caught.value.is_transient
        assert str(tmp_path) not in str(caught.value)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.invariant("P11")
def test_a_ledger_that_fails_meanwhile_leaves_the_old_file(path: Path) -> None:
    """What goes wrong with the rows is told as it is, and nothing unfinished stays behind."""

    def failing() -> Iterator[PartitionStatus]:
        yield from some_rows("second", 5)
        raise LedgerUnavailable("gone")

    write_status_file(some_rows("first", 3), path)
    with pytest.raises(LedgerUnavailable, match="gone"):
        write_status_file(failing(), path)
    assert {row["last_attempt_run_id"] for row in rows_of(path)} == {"first"}
    assert list(path.parent.iterdir()) == [path]


def test_the_file_is_as_of_one_moment(ledger: Ledger, path: Path) -> None:
    """What is recorded while the rows are written is not in it."""
    accepted_runs(ledger, keys(3))
    book = StatusTable(ledger._engine)

    def meanwhile() -> Iterator[PartitionStatus]:
        for number, row in enumerate(book.read_all()):
            if number == 0:
                (r2,) = registered_runs(ledger, keys(3)[2], "r2")
                ledger.record_verdict(acceptance(r2))
            yield row

    write_status_file(meanwhile(), path)
    assert {row["last_attempt_run_id"] for row in rows_of(path)} == {"r1"}
