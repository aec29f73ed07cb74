"""Removal of unused files and old log entries, on real Delta tables with aged files."""

import json
import os
import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ads_pipeline.domain.errors import WarehouseUnavailable
from ads_pipeline.domain.partition import Run
from ads_pipeline.lake.storage.open_store import open_store
from ads_pipeline.lake.warehouse import staging
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline_tests.lake.warehouse.builders import (
    TABLE,
    create_old_file,
    entry_path,
    key,
    list_data_files,
    list_log_versions,
    list_table,
    list_version_files,
    make_loads,
    make_older,
    publish,
    read_sorted_rows,
    read_with_duckdb,
    replace_partitions,
    stage,
    table_path,
    table_uri,
    vacuum,
)

HOUR = timedelta(hours=1)


@pytest.mark.invariant("W17")
def test_versions_within_the_retention_stay_readable(spark: SparkSession, core_root: str) -> None:
    """The version that was newest when the retention began keeps its files. Files that it replaced are removed."""
    first = publish(spark, core_root, "r1", (1, 2))
    second = publish(spark, core_root, "r2", (1, 2))
    make_older(core_root, 8)
    publish(spark, core_root, "r3", (1, 2))
    expected = read_sorted_rows(core_root, second)
    assert vacuum(core_root) == tuple(list_version_files(core_root, first))
    assert read_sorted_rows(core_root, second) == expected
    assert read_with_duckdb(core_root) == {key(1): ({"r3"}, 3), key(2): ({"r3"}, 3)}
    assert vacuum(core_root) == ()


@pytest.mark.invariant("W17")
def test_vacuum_keeps_files_whose_removal_a_checkpoint_dropped(spark: SparkSession, disk_root: str) -> None:
    """A checkpoint drops removals older than 7 days. With a longer retention, vacuum still finds them in the log."""
    first = publish(spark, disk_root, "r1", (1, 2))
    make_older(disk_root, 10)
    publish(spark, disk_root, "r2", (1, 2))
    make_older(disk_root, 10)
    for entry in (table_path(disk_root) / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            action.get("remove", {})["deletionTimestamp"] = int(entry.stat().st_mtime * 1000)
        written = entry.stat().st_mtime
        entry.write_text("".join(json.dumps(action) + "\n" for action in actions))
        os.utime(entry, (written, written))
    DeltaTable(table_uri(disk_root)).create_checkpoint()
    removed_by_deltalake = DeltaTable(table_uri(disk_root)).vacuum(15 * 24, full=True)
    assert set(removed_by_deltalake) == list_version_files(disk_root, first), (
        "deltalake has fixed its vacuum; consider using it"
    )
    expected = read_sorted_rows(disk_root, first)
    assert vacuum(disk_root, retention=timedelta(days=15)) == ()
    assert read_sorted_rows(disk_root, first) == expected


@pytest.mark.invariant("W17")
def test_vacuum_keeps_all_files_when_the_log_is_too_short(spark: SparkSession, root: str) -> None:
    """When log entries within the retention are missing, vacuum removes no data file."""
    publish(spark, root, "r1", (1,))
    make_older(root, 30)
    publish(spark, root, "r2", (1,))
    make_older(root, 10)
    DeltaTable(table_uri(root)).create_checkpoint()
    for version in (0, 1):
        open_store(root).delete(f"{TABLE}/{entry_path(version)}")
    before = list_data_files(root)
    assert vacuum(root, retention=timedelta(days=15)) == ()
    assert list_data_files(root) == before
    assert len(vacuum(root)) == 1


@pytest.mark.invariant("W17")
def test_vacuum_keeps_the_files_of_a_running_load(
    spark: SparkSession, core_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vacuum during a load removes old leftovers and no file of the load."""
    publish(spark, core_root, "r1", (1,))
    verify = staging._verify
    removed: list[tuple[str, ...]] = []

    def run_vacuum() -> None:
        orphan = create_old_file(core_root, f"logical_date=2026-01-01/{len(removed)}.parquet", 1)
        removed.append(vacuum(core_root, retention=HOUR))
        assert removed[-1] == (orphan,)

    def vacuum_and_verify(*args: Any, **kwargs: Any) -> None:
        run_vacuum()
        verify(*args, **kwargs)

    def vacuum_and_keep_all(runs: Sequence[Run]) -> Collection[Run]:
        run_vacuum()
        return runs

    monkeypatch.setattr(staging, "_verify", vacuum_and_verify)
    loads = make_loads("r2", (1,))
    replace_partitions(spark, core_root, loads, is_publishable=vacuum_and_keep_all)
    assert len(removed) == 2
    assert read_with_duckdb(core_root) == {key(1): ({"r2"}, 3)}


@pytest.mark.invariant("W17")
@pytest.mark.parametrize("days", [8, -8])
def test_ages_are_those_of_the_stores_clock(
    spark: SparkSession, core_root: str, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """Vacuum on a machine whose clock is days ahead keeps the files of a running load. One days behind removes old
    files all the same, and a load adopts its files in either case."""
    publish(spark, core_root, "r1", (1,))
    orphan = create_old_file(core_root, "logical_date=2026-01-01/orphan.parquet", 7.5)
    read_clock = time.time
    monkeypatch.setattr(time, "time", lambda: read_clock() + days * 86400)
    loads = make_loads("r2", (2,), days=(2,))
    staged = stage(core_root, loads)
    assert vacuum(core_root) == (orphan,)
    replace_partitions(spark, core_root, loads, staged=staged)
    assert {file.path for file in staged} <= list_version_files(core_root)
    assert read_with_duckdb(core_root) == {key(1): ({"r1"}, 3), key(2, 2): ({"r2"}, 3)}


def test_vacuum_removes_no_foreign_files(spark: SparkSession, root: str) -> None:
    """Vacuum keeps files that no loader creates."""
    publish(spark, root, "r1", (1,))
    names = ("a.parquet", "logical_date=2026-01-01/notes.txt", "_change_data/a.parquet")
    foreign = [create_old_file(root, name, 99) for name in names]
    make_older(root, 99)
    orphan = create_old_file(root, "logical_date=2026-01-01/orphan.parquet", 99)
    assert vacuum(root) == (orphan,)
    assert vacuum(root) == ()
    assert set(foreign) < set(list_table(root))


def test_vacuum_follows_no_links(spark: SparkSession, disk_root: str, tmp_path: Path) -> None:
    """Vacuum neither follows nor removes links."""
    publish(spark, disk_root, "r1", (1,))
    table, outside = table_path(disk_root), tmp_path / "outside" / "logical_date=2026-01-09"
    outside.mkdir(parents=True)
    kept = outside / "a.parquet"
    kept.touch()
    (table / outside.name).symlink_to(outside)
    (table / "logical_date=2026-01-01" / "b.parquet").symlink_to(kept)
    make_older(disk_root, 99)
    os.utime(kept, (0, 0))
    assert vacuum(disk_root) == ()
    assert kept.is_file()
    assert (table / "logical_date=2026-01-01" / "b.parquet").is_symlink()


def test_vacuum_removes_what_dead_writers_left_on_a_disk(spark: SparkSession, disk_root: str) -> None:
    """A file that was never given its name is removed once it exceeds the retention."""
    publish(spark, disk_root, "r1", (1,))
    leftover = create_old_file(disk_root, "logical_date=2026-01-01/_tmp.dead.parquet.1.00", 1)
    path = table_path(disk_root) / leftover
    assert vacuum(disk_root, retention=timedelta(days=2)) == ()
    assert path.exists()
    assert vacuum(disk_root, retention=HOUR) == ()
    assert not path.exists()


@pytest.mark.parametrize("retention", [timedelta(minutes=59), timedelta(0), timedelta(days=-1)])
def test_retention_under_one_hour_is_refused(spark: SparkSession, root: str, retention: timedelta) -> None:
    """A too short retention raises ValueError, because running loads and readers would lose files."""
    publish(spark, root, "r1", (1,))
    create_old_file(root, "logical_date=2026-01-01/orphan.parquet", 1)
    before = list_data_files(root)
    with pytest.raises(ValueError, match=r"google_ads/campaign_daily: .* need at least 1:00:00"):
        Warehouse(root).vacuum(source="google_ads", query_name="campaign_daily", retention=retention)
    assert list_data_files(root) == before


def test_vacuum_of_a_missing_table_does_nothing(root: str) -> None:
    """Without a table, vacuum removes no file and creates none."""
    assert vacuum(root) == ()
    stray = create_old_file(root, "logical_date=2026-01-01/a.parquet", 99)
    assert vacuum(root) == ()
    assert list(list_table(root)) == [stray]


@pytest.mark.invariant("W17")
@pytest.mark.parametrize("checkpointed", [False, True])
def test_vacuum_deletes_old_log_entries_that_a_checkpoint_replaces(
    spark: SparkSession, core_root: str, checkpointed: bool
) -> None:
    """Log entries older than 30 days are deleted. Versions within the retention stay readable, and loads work."""
    for number in range(1, 4):
        publish(spark, core_root, f"r{number}", (1, 2))
    if checkpointed:
        DeltaTable(table_uri(core_root)).create_checkpoint()
    make_older(core_root, 40)
    newest = publish(spark, core_root, "r4", (1,))
    if checkpointed:
        DeltaTable(table_uri(core_root)).create_checkpoint()
    assert len(vacuum(core_root, retention=timedelta(days=31))) == 2
    assert list_log_versions(core_root) == list(range(newest + 1)), "a longer retention needs the log"
    expected = read_sorted_rows(core_root, newest - 1)
    assert vacuum(core_root) == vacuum(core_root) == ()
    assert list_log_versions(core_root) == [newest - 1, newest]
    assert read_sorted_rows(core_root, newest - 1) == expected
    assert publish(spark, core_root, "r5", (2,)) == newest + 1
    assert read_with_duckdb(core_root) == {key(1): ({"r4"}, 3), key(2): ({"r5"}, 3)}
    handle = DeltaTable(table_uri(core_root))
    assert handle.transaction_version("ads_pipeline") == newest + 2
    make_older(core_root, 8)
    assert len(vacuum(core_root)) == 2


def test_disk_error_raises_warehouse_unavailable(
    spark: SparkSession, disk_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk error raises the transient WarehouseUnavailable, and the next vacuum removes the rest."""
    publish(spark, disk_root, "r1", (1,))
    create_old_file(disk_root, "logical_date=2026-01-01/orphan.parquet", 99)

    def fail(self: Path, *, missing_ok: bool = False) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(WarehouseUnavailable, match=r"google_ads/campaign_daily: storage .* Input/output error"):
        Warehouse(disk_root).vacuum(source="google_ads", query_name="campaign_daily")
    monkeypatch.undo()
    assert len(vacuum(disk_root)) == 1
