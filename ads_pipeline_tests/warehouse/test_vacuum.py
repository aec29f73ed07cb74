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

from ads_pipeline.domain.partition import Run
from ads_pipeline.errors import WarehouseUnavailable
from ads_pipeline.warehouse import staging
from ads_pipeline.warehouse.publication import Warehouse
from ads_pipeline_tests.warehouse.builders import (
    key,
    list_data_files,
    list_version_files,
    make_loads,
    make_older,
    publish,
    read_sorted_rows,
    read_with_duckdb,
    replace_partitions,
    table_path,
    vacuum,
)

HOUR = timedelta(hours=1)


def create_old_file(path: Path, days: float) -> Path:
    """Create an empty file that was last written this many days ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (time.time() - days * 86400,) * 2)
    return path


@pytest.mark.invariant("W17")
def test_versions_within_the_retention_stay_readable(spark: SparkSession, root: Path) -> None:
    """The version that was newest when the retention began keeps its files. Files that it replaced are removed."""
    first = publish(spark, root, "r1", (1, 2))
    second = publish(spark, root, "r2", (1, 2))
    make_older(root, 8)
    publish(spark, root, "r3", (1, 2))
    expected = read_sorted_rows(root, second)
    assert vacuum(root) == tuple(list_version_files(root, first))
    assert read_sorted_rows(root, second) == expected
    assert read_with_duckdb(root) == {key(1): ({"r3"}, 3), key(2): ({"r3"}, 3)}
    assert vacuum(root) == ()


@pytest.mark.invariant("W17")
def test_vacuum_keeps_files_whose_removal_a_checkpoint_dropped(spark: SparkSession, root: Path) -> None:
    """A checkpoint drops removals older than 7 days. With a longer retention, vacuum still finds them in the log."""
    first = publish(spark, root, "r1", (1, 2))
    make_older(root, 10)
    publish(spark, root, "r2", (1, 2))
    make_older(root, 10)
    for entry in (table_path(root) / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            action.get("remove", {})["deletionTimestamp"] = int(entry.stat().st_mtime * 1000)
        written = entry.stat().st_mtime
        entry.write_text("".join(json.dumps(action) + "\n" for action in actions))
        os.utime(entry, (written, written))
    DeltaTable(str(table_path(root))).create_checkpoint()
    removed_by_deltalake = DeltaTable(str(table_path(root))).vacuum(15 * 24, full=True)
    assert set(removed_by_deltalake) == list_version_files(root, first), (
        "deltalake has fixed its vacuum; consider using it"
    )
    expected = read_sorted_rows(root, first)
    assert vacuum(root, retention=timedelta(days=15)) == ()
    assert read_sorted_rows(root, first) == expected


@pytest.mark.invariant("W17")
def test_vacuum_keeps_all_files_when_the_log_is_too_short(spark: SparkSession, root: Path) -> None:
    """When log entries within the retention are missing, vacuum removes no data file."""
    publish(spark, root, "r1", (1,))
    make_older(root, 30)
    publish(spark, root, "r2", (1,))
    make_older(root, 10)
    DeltaTable(str(table_path(root))).create_checkpoint()
    for version in (0, 1):
        (table_path(root) / "_delta_log" / f"{version:020}.json").unlink()
    before = list_data_files(root)
    assert vacuum(root, retention=timedelta(days=15)) == ()
    assert list_data_files(root) == before
    assert len(vacuum(root)) == 1


@pytest.mark.invariant("W17")
def test_vacuum_keeps_the_files_of_a_running_load(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vacuum during a load removes old leftovers and no file of the load."""
    publish(spark, root, "r1", (1,))
    verify = staging._verify
    removed: list[tuple[str, ...]] = []

    def run_vacuum() -> None:
        orphan = create_old_file(table_path(root) / "logical_date=2026-01-01" / f"{len(removed)}.parquet", 1)
        leftover = create_old_file(orphan.with_name("_tmp.dead.parquet.1.00"), 1)
        removed.append(vacuum(root, retention=HOUR))
        assert removed[-1] == (f"{orphan.parent.name}/{orphan.name}",)
        assert not leftover.exists()

    def vacuum_and_verify(*args: Any, **kwargs: Any) -> None:
        run_vacuum()
        verify(*args, **kwargs)

    def vacuum_and_keep_all(runs: Sequence[Run]) -> Collection[Run]:
        run_vacuum()
        return runs

    monkeypatch.setattr(staging, "_verify", vacuum_and_verify)
    loads = make_loads("r2", (1,))
    replace_partitions(spark, root, loads, is_publishable=vacuum_and_keep_all)
    assert len(removed) == 2
    assert read_with_duckdb(root) == {key(1): ({"r2"}, 3)}


def test_vacuum_removes_no_foreign_files_and_follows_no_links(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    """Vacuum neither follows nor removes links, and keeps files that no loader creates."""
    publish(spark, root, "r1", (1,))
    table, outside = table_path(root), tmp_path / "outside"
    kept = [
        create_old_file(outside / "logical_date=2026-01-09" / "a.parquet", 99),
        create_old_file(table / "a.parquet", 99),
        create_old_file(table / "logical_date=2026-01-01" / "notes.txt", 99),
        create_old_file(table / "_change_data" / "a.parquet", 99),
    ]
    (table / "logical_date=2026-01-09").symlink_to(outside / "logical_date=2026-01-09")
    (table / "logical_date=2026-01-01" / "b.parquet").symlink_to(kept[0])
    make_older(root, 99)
    for path in outside.iterdir():
        os.utime(path, (0, 0))
    orphan = create_old_file(table / "logical_date=2026-01-01" / "orphan.parquet", 99)
    assert vacuum(root) == (str(orphan.relative_to(table)),)
    assert vacuum(root) == ()
    assert all(path.is_file() for path in kept)


@pytest.mark.parametrize("retention", [timedelta(minutes=59), timedelta(0), timedelta(days=-1)])
def test_retention_under_one_hour_is_refused(spark: SparkSession, root: Path, retention: timedelta) -> None:
    """A too short retention raises ValueError, because running loads and readers would lose files."""
    publish(spark, root, "r1", (1,))
    create_old_file(table_path(root) / "logical_date=2026-01-01" / "orphan.parquet", 1)
    before = list_data_files(root)
    with pytest.raises(ValueError, match=r"google_ads/campaign_daily: .* need at least 1:00:00"):
        Warehouse(str(root)).vacuum(source="google_ads", query_name="campaign_daily", retention=retention)
    assert list_data_files(root) == before


def test_vacuum_of_a_missing_table_does_nothing(root: Path) -> None:
    """Without a table, vacuum removes no file and creates none."""
    assert vacuum(root) == ()
    stray = create_old_file(table_path(root) / "logical_date=2026-01-01" / "a.parquet", 99)
    assert vacuum(root) == ()
    assert [path for path in root.rglob("*") if path.is_file()] == [stray]


def list_log_versions(root: Path) -> list[int]:
    return sorted(int(path.stem) for path in (table_path(root) / "_delta_log").glob("*.json"))


@pytest.mark.invariant("W17")
@pytest.mark.parametrize("checkpointed", [False, True])
def test_vacuum_deletes_old_log_entries_that_a_checkpoint_replaces(
    spark: SparkSession, root: Path, checkpointed: bool
) -> None:
    """Log entries older than 30 days are deleted. Versions within the retention stay readable, and loads work."""
    for number in range(1, 4):
        publish(spark, root, f"r{number}", (1, 2))
    if checkpointed:
        DeltaTable(str(table_path(root))).create_checkpoint()
    make_older(root, 40)
    newest = publish(spark, root, "r4", (1,))
    if checkpointed:
        DeltaTable(str(table_path(root))).create_checkpoint()
    assert len(vacuum(root, retention=timedelta(days=31))) == 2
    assert list_log_versions(root) == list(range(newest + 1)), "a longer retention needs the log"
    expected = read_sorted_rows(root, newest - 1)
    assert vacuum(root) == vacuum(root) == ()
    assert list_log_versions(root) == [newest - 1, newest]
    assert read_sorted_rows(root, newest - 1) == expected
    assert publish(spark, root, "r5", (2,)) == newest + 1
    assert read_with_duckdb(root) == {key(1): ({"r4"}, 3), key(2): ({"r5"}, 3)}
    handle = DeltaTable(str(table_path(root)))
    assert handle.transaction_version("ads_pipeline") == newest + 2
    make_older(root, 8)
    assert len(vacuum(root)) == 2


def test_disk_error_raises_warehouse_unavailable(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk error raises the transient WarehouseUnavailable, and the next vacuum removes the rest."""
    publish(spark, root, "r1", (1,))
    create_old_file(table_path(root) / "logical_date=2026-01-01" / "orphan.parquet", 99)

    def fail(self: Path, *, missing_ok: bool = False) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(WarehouseUnavailable, match=r"google_ads/campaign_daily: storage .* Input/output error"):
        Warehouse(str(root)).vacuum(source="google_ads", query_name="campaign_daily")
    monkeypatch.undo()
    assert len(vacuum(root)) == 1
