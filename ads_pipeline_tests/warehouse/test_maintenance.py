"""Packing small files and removing dead ones, on real tables whose files are made old."""

import json
import os
import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import Run
from ads_pipeline.errors import StagingDamaged, TableContended, WarehouseUnavailable
from ads_pipeline.warehouse import delta_commits, maintenance, publication, staging
from ads_pipeline.warehouse.publication import WEEK, Warehouse
from ads_pipeline_tests.warehouse.builders import (
    by_duckdb,
    die_at,
    key,
    loads,
    publish,
    rows_of,
    table_path,
    versions,
)

HOUR = timedelta(hours=1)


def optimize(spark: SparkSession, root: Path) -> int | None:
    return Warehouse(root).optimize(spark, source="google_ads", query_name="campaign_daily")


def vacuum(root: Path, retention: timedelta = WEEK) -> tuple[str, ...]:
    """What was planned and then removed, which must be the same."""
    planned = Warehouse(root).plan_vacuum(source="google_ads", query_name="campaign_daily", retention=retention)
    assert all((table_path(root) / path).exists() for path in planned)
    removed = Warehouse(root).vacuum(source="google_ads", query_name="campaign_daily", retention=retention)
    assert not any((table_path(root) / path).exists() for path in planned)
    assert removed == planned
    return removed


def scatter(spark: SparkSession, root: Path) -> None:
    """Two days, each in three files."""
    for customers in ((5, 6), (1, 2), (3,)):
        publish(spark, root, f"r{customers[0]}", customers, days=(1, 2))


SCATTERED = {
    key(customer, day): ({run_id}, 3)
    for customer, run_id in {1: "r1", 2: "r1", 3: "r3", 5: "r5", 6: "r5"}.items()
    for day in (1, 2)
}


def files(root: Path) -> list[str]:
    """Every data file below the table, named by a version or not."""
    return sorted(str(path.relative_to(table_path(root))) for path in table_path(root).glob("*=*/*.parquet"))


def named(root: Path, version: int | None = None) -> set[str]:
    """The data files of one version."""
    table = DeltaTable(str(table_path(root)), version=version)
    return set(pa.table(table.get_add_actions(flatten=True))["path"].to_pylist())


def rows(root: Path, version: int | None = None) -> list[tuple[Any, ...]]:
    table = DeltaTable(str(table_path(root)), version=version).to_pyarrow_table()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def age(root: Path, days: float) -> None:
    """Make all that lies in the table so much older."""
    for path in table_path(root).rglob("*"):
        written = path.lstat().st_mtime - days * 86400
        os.utime(path, (written, written), follow_symlinks=False)


def plant(path: Path, days: float) -> Path:
    """A file that was last written so long ago, and nothing in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (time.time() - days * 86400,) * 2)
    return path


@pytest.mark.invariant("W1", "W13", "W16")
def test_packing_changes_no_row(spark: SparkSession, root: Path) -> None:
    """Each day lies in one file, sorted by customer; every reader sees the rows it saw, of one run a partition."""
    scatter(spark, root)
    version, before = len(versions(root)) - 1, rows(root)
    assert optimize(spark, root) == version + 1
    assert rows(root) == before
    assert by_duckdb(root) == versions(root)[-1] == versions(root)[-2] == SCATTERED
    assert all(len(runs) == 1 for each in versions(root) for runs, _rows in each.values())
    assert len(named(root)) == 2
    for path in named(root):
        customers = pq.read_table(table_path(root) / path, partitioning=None)["customer_id"].to_pylist()
        assert customers == sorted(customers)


def test_packing_is_told_to_be_no_change_of_data(spark: SparkSession, root: Path) -> None:
    """Followers of the table's changes hear from the commit's own words that there is nothing new to read."""
    scatter(spark, root)
    version = optimize(spark, root)
    entry = (table_path(root) / "_delta_log" / f"{version:020}.json").read_text()
    actions = [action for line in entry.splitlines() for action in json.loads(line).items()]
    changes = [told["dataChange"] for kind, told in actions if kind in {"add", "remove"}]
    assert changes == [False] * 8


def test_packing_again_is_no_commit(spark: SparkSession, root: Path) -> None:
    """A table that lies well is left alone to the byte; one that is not there is none to pack."""
    assert optimize(spark, root) is None
    scatter(spark, root)
    optimize(spark, root)
    before = {path: path.stat().st_mtime_ns for path in table_path(root).rglob("*")}
    assert optimize(spark, root) is None
    assert {path: path.stat().st_mtime_ns for path in table_path(root).rglob("*")} == before


def test_files_are_packed_only_up_to_their_full_size(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full files stay as they are, and small ones go together as far as they fit, until no two neighbours would."""
    for customer in range(1, 6):
        publish(spark, root, "r1", (customer,))
    before, sizes = rows(root), [(table_path(root) / path).stat().st_size for path in named(root)]
    monkeypatch.setattr(maintenance, "FULL_FILE", min(sizes))
    assert optimize(spark, root) is None
    monkeypatch.setattr(maintenance, "FULL_FILE", 2 * max(sizes))
    optimize(spark, root)
    assert len(named(root)) == 3
    assert rows(root) == before
    assert by_duckdb(root) == {key(customer): ({"r1"}, 3) for customer in range(1, 6)}


@pytest.mark.invariant("W13")
def test_packed_rows_that_differ_in_one_value_are_never_published(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is packed is held against what it was, value for value."""
    scatter(spark, root)
    before, write = versions(root), staging._write

    def write_and_damage(frames: Any, place: Path) -> None:
        write(frames, place)
        file = min(place.glob("*/*.parquet"))
        table = pq.read_table(file, partitioning=None)
        cost = table.schema.get_field_index("cost")
        pq.write_table(table.set_column(cost, "cost", pc.add(table["cost"], 1.0)), file)

    monkeypatch.setattr(staging, "_write", write_and_damage)
    with pytest.raises(StagingDamaged, match="did not come over as it was"):
        optimize(spark, root)
    assert versions(root) == before


@pytest.mark.invariant("W1", "W2")
def test_a_load_that_comes_first_is_packed_with_the_rest(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load committed after the files were staged wins: the packing is done again, on what it left."""
    scatter(spark, root)
    races = iter([True])

    def late_commit(*args: Any, **kwargs: Any) -> Any:
        if next(races, False):
            publish(spark, root, "r9", (1,))
        return delta_commits.commit_files(*args, **kwargs)

    monkeypatch.setattr(publication, "commit_files", late_commit)
    version = len(versions(root)) - 1
    assert optimize(spark, root) == version + 2
    assert by_duckdb(root) == versions(root)[version + 1] == SCATTERED | {key(1): ({"r9"}, 3)}
    assert len(named(root)) == 2


def test_packing_gives_way_to_loads_that_never_end(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When others always come first it gives up, and leaves no file that no version names."""
    scatter(spark, root)
    loading: list[str] = []

    def late_commit(*args: Any, **kwargs: Any) -> Any:
        if len(loading) % 2 == 0:
            loading.append("begun")
            publish(spark, root, f"r{len(loading)}0", (1,))
            loading.append("done")
        return delta_commits.commit_files(*args, **kwargs)

    monkeypatch.setattr(publication, "MOST_TRIES", 2)
    monkeypatch.setattr(publication, "commit_files", late_commit)
    with pytest.raises(TableContended):
        optimize(spark, root)
    walked = versions(root)
    assert walked[-1] == SCATTERED | {key(1): ({"r30"}, 3)}
    assert set(files(root)) == {path for version in range(len(walked)) for path in named(root, version)}


@pytest.mark.invariant("W13", "W17")
@pytest.mark.parametrize(
    ("moment", "packed"),
    [
        ("staging._write.after", False),
        ("staging._move.after", False),
        ("publication.commit_files.before", False),
        ("publication.commit_files.after", True),
    ],
)
def test_packing_killed_in_the_middle_leaves_the_rows_and_its_files_for_a_while(
    spark: SparkSession, root: Path, moment: str, packed: bool
) -> None:
    """Whenever it dies the rows are whole. What it left might be alive, so it goes once older than the retention."""
    scatter(spark, root)
    before = named(root)
    die_at(moment, 'optimize(spark, source="google_ads", query_name="campaign_daily")', root)
    assert by_duckdb(root) == SCATTERED
    assert (named(root) != before) == packed
    assert vacuum(root) == ()
    left = set(files(root)) - named(root)
    age(root, 8)
    removed = vacuum(root)
    assert {path for path in removed if not path.startswith("_staging/")} == left
    assert list((table_path(root) / "_staging").iterdir()) == []
    assert by_duckdb(root) == SCATTERED
    assert (optimize(spark, root) is None) == packed


@pytest.mark.invariant("W17")
def test_a_version_within_the_retention_can_still_be_read(spark: SparkSession, root: Path) -> None:
    """The version that was newest when the retention began keeps its files; only what it replaced is gone."""
    first = publish(spark, root, "r1", (1, 2))
    second = publish(spark, root, "r2", (1, 2))
    age(root, 8)
    publish(spark, root, "r3", (1, 2))
    seen = rows(root, second)
    assert vacuum(root) == tuple(named(root, first))
    assert rows(root, second) == seen
    assert by_duckdb(root) == {key(1): ({"r3"}, 3), key(2): ({"r3"}, 3)}
    assert vacuum(root) == ()


@pytest.mark.invariant("W17")
def test_what_a_checkpoint_forgot_is_kept(spark: SparkSession, root: Path) -> None:
    """A checkpoint drops removals older than 7 days; a longer retention still finds them in the log."""
    first = publish(spark, root, "r1", (1, 2))
    age(root, 10)
    publish(spark, root, "r2", (1, 2))
    age(root, 10)
    for entry in (table_path(root) / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            action.get("remove", {})["deletionTimestamp"] = int(entry.stat().st_mtime * 1000)
        written = entry.stat().st_mtime
        entry.write_text("".join(json.dumps(action) + "\n" for action in actions))
        os.utime(entry, (written, written))
    DeltaTable(str(table_path(root))).create_checkpoint()
    library = DeltaTable(str(table_path(root))).vacuum(15 * 24, full=True)
    assert set(library) == named(root, first), "the library has been mended; it may do now"
    seen = rows(root, first)
    assert vacuum(root, retention=timedelta(days=15)) == ()
    assert rows(root, first) == seen


@pytest.mark.invariant("W17")
def test_a_log_that_does_not_go_back_so_far_protects_every_file(spark: SparkSession, root: Path) -> None:
    """What older versions named cannot be known, so a file that might be theirs is left."""
    publish(spark, root, "r1", (1,))
    age(root, 30)
    publish(spark, root, "r2", (1,))
    age(root, 10)
    DeltaTable(str(table_path(root))).create_checkpoint()
    for version in (0, 1):
        (table_path(root) / "_delta_log" / f"{version:020}.json").unlink()
    before = files(root)
    assert vacuum(root, retention=timedelta(days=15)) == ()
    assert files(root) == before
    assert len(vacuum(root)) == 1


@pytest.mark.invariant("W17")
def test_a_load_that_is_alive_keeps_what_it_staged_and_moved(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vacuum at any moment of a load takes what died long ago and nothing of the load."""
    publish(spark, root, "r1", (1,))
    verify = staging._verify
    removed: list[tuple[str, ...]] = []

    def vacuumed() -> None:
        dead = plant(table_path(root) / "logical_date=2026-01-01" / f"{len(removed)}.parquet", 1)
        plant(table_path(root) / "_staging" / "dead" / "part.parquet", 1)
        os.utime(table_path(root) / "_staging" / "dead", (0, 0))
        removed.append(vacuum(root, retention=HOUR))
        assert removed[-1] == ("_staging/dead", f"{dead.parent.name}/{dead.name}")

    def verify_later(*args: Any, **kwargs: Any) -> None:
        vacuumed()
        verify(*args, **kwargs)

    def still(runs: Sequence[Run]) -> Collection[Run]:
        vacuumed()
        return runs

    monkeypatch.setattr(staging, "_verify", verify_later)
    wanted = loads("r2", (1,))
    Warehouse(root).replace(spark, rows_of(spark, wanted), wanted, still=still)
    assert len(removed) == 2
    assert by_duckdb(root) == {key(1): ({"r2"}, 3)}


@pytest.mark.invariant("W17")
def test_one_young_file_keeps_a_whole_attempt(spark: SparkSession, root: Path) -> None:
    """A staging directory is as old as the youngest of what lies in it, however deep."""
    publish(spark, root, "r1", (1,))
    attempt = table_path(root) / "_staging" / "attempt"
    young = plant(attempt / "_temporary" / "0" / "part.parquet", 0.5)
    for path in (attempt, attempt / "_temporary", attempt / "_temporary" / "0"):
        os.utime(path, (0, 0))
    assert vacuum(root, retention=timedelta(days=1)) == ()
    assert young.exists()
    assert vacuum(root, retention=timedelta(hours=6)) == ("_staging/attempt",)


def test_nothing_outside_the_table_or_of_others_is_removed(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    """Links are neither followed nor taken, and what a loader does not leave behind is not ours to remove."""
    publish(spark, root, "r1", (1,))
    table, outside = table_path(root), tmp_path / "outside"
    kept = [
        plant(outside / "logical_date=2026-01-09" / "a.parquet", 99),
        plant(outside / "attempt" / "part.parquet", 99),
        plant(table / "a.parquet", 99),
        plant(table / "logical_date=2026-01-01" / "notes.txt", 99),
        plant(table / "_change_data" / "a.parquet", 99),
    ]
    (table / "logical_date=2026-01-09").symlink_to(outside / "logical_date=2026-01-09")
    (table / "logical_date=2026-01-01" / "b.parquet").symlink_to(kept[0])
    (table / "_staging" / "link").symlink_to(outside / "attempt")
    age(root, 99)
    for path in outside.iterdir():
        os.utime(path, (0, 0))
    orphan = plant(table / "logical_date=2026-01-01" / "orphan.parquet", 99)
    assert vacuum(root) == (str(orphan.relative_to(table)),)
    (table / "_staging" / "link").unlink()
    (table / "_staging").rmdir()
    (table / "_staging").symlink_to(outside)
    assert vacuum(root) == ()
    assert all(path.is_file() for path in kept)


@pytest.mark.parametrize("retention", [timedelta(minutes=59), timedelta(0), timedelta(days=-1)])
def test_a_retention_under_one_hour_is_refused(spark: SparkSession, root: Path, retention: timedelta) -> None:
    """Files of loads and readers that run now are not put at risk by a slip of the unit."""
    publish(spark, root, "r1", (1,))
    plant(table_path(root) / "logical_date=2026-01-01" / "orphan.parquet", 1)
    before = files(root)
    for verb in (Warehouse(root).plan_vacuum, Warehouse(root).vacuum):
        with pytest.raises(ValueError, match=r"google_ads/campaign_daily: .* give an hour"):
            verb(source="google_ads", query_name="campaign_daily", retention=retention)
    assert files(root) == before


def test_where_there_is_no_table_nothing_is_made_or_removed(root: Path) -> None:
    """A table that no load has made yet is clean, and stays unmade."""
    assert vacuum(root) == ()
    stray = plant(table_path(root) / "logical_date=2026-01-01" / "a.parquet", 99)
    assert vacuum(root) == ()
    assert [path for path in root.rglob("*") if path.is_file()] == [stray]


def entries(root: Path) -> list[int]:
    return sorted(int(path.stem) for path in (table_path(root) / "_delta_log").glob("*.json"))


@pytest.mark.invariant("W17")
@pytest.mark.parametrize("checkpointed", [False, True])
def test_old_log_entries_go_when_a_checkpoint_stands_for_them(
    spark: SparkSession, root: Path, checkpointed: bool
) -> None:
    """Entries of more than 30 days go; versions within the retention open, and loads go on as if nothing was."""
    for number in range(1, 4):
        publish(spark, root, f"r{number}", (1, 2))
    if checkpointed:
        DeltaTable(str(table_path(root))).create_checkpoint()
    age(root, 40)
    newest = publish(spark, root, "r4", (1,))
    if checkpointed:
        DeltaTable(str(table_path(root))).create_checkpoint()
    assert len(vacuum(root, retention=timedelta(days=31))) == 2
    assert entries(root) == list(range(newest + 1)), "a longer retention needs the log"
    seen = rows(root, newest - 1)
    assert vacuum(root) == vacuum(root) == ()
    assert entries(root) == [newest - 1, newest]
    assert rows(root, newest - 1) == seen
    assert publish(spark, root, "r5", (2,)) == newest + 1
    assert by_duckdb(root) == {key(1): ({"r4"}, 3), key(2): ({"r5"}, 3)}
    handle = DeltaTable(str(table_path(root)))
    assert handle.transaction_version("ads_pipeline") == newest + 2
    age(root, 8)
    assert len(vacuum(root)) == 2


def test_a_disk_that_fails_is_told_as_an_outage(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waiting may cure is said in the room's own words, and the next vacuum does the rest."""
    publish(spark, root, "r1", (1,))
    plant(table_path(root) / "logical_date=2026-01-01" / "orphan.parquet", 99)

    def failing(self: Path, *, missing_ok: bool = False) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "unlink", failing)
    with pytest.raises(WarehouseUnavailable, match=r"google_ads/campaign_daily: storage .* Input/output error"):
        Warehouse(root).vacuum(source="google_ads", query_name="campaign_daily")
    monkeypatch.undo()
    assert len(vacuum(root)) == 1
