"""Publishing runs and taking partitions out, on real tables read back by others."""

import multiprocessing
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import Run
from ads_pipeline.errors import SchemaConflict, StagingDamaged
from ads_pipeline.warehouse import delta_commits, staging
from ads_pipeline.warehouse.publication import Warehouse
from ads_pipeline.warehouse.values import HeldPartition, Table
from ads_pipeline_tests.warehouse.builders import (
    SCHEMA,
    by_duckdb,
    die_at,
    everyone,
    key,
    load,
    loads,
    publish,
    rows_of,
    table_path,
    versions,
)


def held(root: Path) -> dict[Any, HeldPartition]:
    return Warehouse(root).held(source="google_ads", query_name="campaign_daily")


@pytest.mark.invariant("W1", "W13", "W16")
def test_replacing_some_partitions_leaves_the_others_as_they_were(spark: SparkSession, root: Path) -> None:
    """Partitions that share a file with a replaced one are carried over; independent readers see one run in each."""
    publish(spark, root, "r1", range(1, 6), days=(1, 2))
    publish(spark, root, "r2", (2, 4))
    expected = {
        key(customer, day): ({"r2" if day == 1 and customer in (2, 4) else "r1"}, 3)
        for customer in range(1, 6)
        for day in (1, 2)
    }
    assert by_duckdb(root) == expected
    assert versions(root)[-1] == expected
    assert {partition: (each.run_id, each.rows) for partition, each in held(root).items()} == {
        partition: (next(iter(runs)), rows) for partition, (runs, rows) in expected.items()
    }
    assert all(len(runs) == 1 for version in versions(root) for runs, _rows in version.values())


@pytest.mark.invariant("W6")
def test_loading_the_same_run_again_is_no_commit(spark: SparkSession, root: Path) -> None:
    """The table's version and every one of its files stay what they were."""
    version = publish(spark, root, "r1", (1, 2))
    before = {path: path.stat().st_mtime_ns for path in table_path(root).rglob("*")}
    assert publish(spark, root, "r1", (1, 2)) == version
    assert {path: path.stat().st_mtime_ns for path in table_path(root).rglob("*")} == before


@pytest.mark.invariant("W15")
def test_a_run_of_no_rows_takes_the_old_rows_away(spark: SparkSession, root: Path) -> None:
    """An empty day is published: the partition holds nothing, its neighbours what they held; again is no commit."""
    publish(spark, root, "r1", (1, 2))
    empty = [load("r2", key(1), rows=0)]
    version = Warehouse(root).replace(spark, rows_of(spark, empty), empty, still=everyone).table_version
    assert by_duckdb(root) == {key(2): ({"r1"}, 3)}
    assert Warehouse(root).replace(spark, rows_of(spark, empty), empty, still=everyone).table_version == version


def test_removed_partitions_are_gone_by_one_commit(spark: SparkSession, root: Path) -> None:
    """Only the named partitions lose their rows, and of these only the ones whose held run is doomed."""
    version = publish(spark, root, "r1", (1, 2, 3, 4))
    spared = Run(key=key(4), run_id="r1")
    asked = [key(1), key(3), key(4)]
    removed = Warehouse(root).remove(spark, asked, doomed=lambda runs: [run for run in runs if run != spared])
    assert removed == version + 1
    assert by_duckdb(root) == {key(2): ({"r1"}, 3), key(4): ({"r1"}, 3)}


@pytest.mark.invariant("W4")
def test_a_load_planned_before_a_removal_cannot_follow_it(spark: SparkSession, root: Path) -> None:
    """Also when there is nothing to remove: a load that had already asked for leave must plan and ask again."""
    publish(spark, root, "r1", (2,))
    load = loads("r1", (1,))
    answers = iter([load, []])

    def still(_runs: Sequence[Run]) -> list[Run]:
        """Yes; then the run is found bad and its rows are removed, of which there are none; then no."""
        answer = [each.run for each in next(answers)]
        if answer:
            Warehouse(root).remove(spark, [key(1)], doomed=lambda runs: runs)
        return answer

    loaded = Warehouse(root).replace(spark, rows_of(spark, load), load, still=still)
    assert loaded.outdated == (load[0].run,)
    assert by_duckdb(root) == {key(2): ({"r1"}, 3)}


def test_nothing_is_removed_from_a_table_that_is_not_there(spark: SparkSession, root: Path) -> None:
    """A removal makes no table."""
    assert Warehouse(root).remove(spark, [key(1)], doomed=lambda runs: runs) is None
    assert not root.exists()


@pytest.mark.invariant("W10")
def test_another_schema_version_of_the_same_run_is_another_load(spark: SparkSession, root: Path) -> None:
    """What is held is compared by run and by schema version."""
    version = publish(spark, root, "r1", (1,))
    other = [type(each)(run=each.run, schema_version="2", record_count=3) for each in loads("r1", (1,))]
    assert Warehouse(root).replace(spark, rows_of(spark, other), other, still=everyone).table_version > version
    assert held(root)[key(1)].schema_version == "2"


@pytest.mark.invariant("W11")
def test_a_new_column_is_added_and_a_changed_one_refused(spark: SparkSession, root: Path) -> None:
    """Old partitions read null in a column they never had; a column of another type is refused by name, unwritten."""
    publish(spark, root, "r1", (1, 2))
    wider = loads("r2", (1,))
    frame = rows_of(spark, wider, SCHEMA + ", share double", share=0.5)
    Warehouse(root).replace(spark, frame, wider, still=everyone)
    shares = DeltaTable(str(table_path(root))).to_pyarrow_table().to_pylist()
    assert {(row["customer_id"], row["share"]) for row in shares} == {("1", 0.5), ("2", None)}
    before = versions(root)
    changed = loads("r3", (1,))
    with pytest.raises(SchemaConflict, match="column cost holds double, the new rows bring string"):
        Warehouse(root).replace(
            spark, rows_of(spark, changed).selectExpr("* except (cost)", "'x' AS cost"), changed, still=everyone
        )
    assert versions(root) == before


@pytest.mark.invariant("W7")
def test_rows_that_are_not_what_was_counted_are_never_published(spark: SparkSession, root: Path) -> None:
    """Too few rows, or rows of another run, fail the load; the earlier run stays, to the byte."""
    publish(spark, root, "r1", (1, 2))
    before = versions(root)
    claimed = [load("r2", key(1), rows=4)]
    with pytest.raises(StagingDamaged, match="r2 has 3 rows, its seal says 4"):
        Warehouse(root).replace(spark, rows_of(spark, loads("r2", (1,))), claimed, still=everyone)
    with pytest.raises(StagingDamaged, match="r3 is not among the staged rows"):
        Warehouse(root).replace(spark, rows_of(spark, loads("r2", (1,))), loads("r3", (1,)), still=everyone)
    assert versions(root) == before


@pytest.mark.invariant("W13")
def test_a_staged_file_that_lost_a_neighbours_row_is_never_published(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is carried over is held against what it was, row for row."""
    publish(spark, root, "r1", (1, 2))
    write = staging._write

    def write_and_damage(frames: Any, place: Path) -> None:
        write(frames, place)
        (file,) = place.glob("*/*.parquet")
        table = pq.read_table(file, partitioning=None)
        pq.write_table(table.slice(0, table.num_rows - 1), file)

    monkeypatch.setattr(staging, "_write", write_and_damage)
    with pytest.raises(StagingDamaged, match="did not come over as it was"):
        publish(spark, root, "r2", (1,))
    assert by_duckdb(root) == {key(1): ({"r1"}, 3), key(2): ({"r1"}, 3)}


def test_a_run_that_lost_its_authority_meanwhile_is_left_out(spark: SparkSession, root: Path) -> None:
    """The caller is asked again right before the commit; whom it no longer names is not published."""
    publish(spark, root, "r1", (1, 2))
    wanted = loads("r2", (1, 2))

    def still(runs: Sequence[Run]) -> Collection[Run]:
        return [run for run in runs if run.key != key(1)]

    loaded = Warehouse(root).replace(spark, rows_of(spark, wanted), wanted, still=still)
    assert [each.run.key for each in loaded.loads] == [key(2)]
    assert [run.key for run in loaded.outdated] == [key(1)]
    assert by_duckdb(root) == {key(1): ({"r1"}, 3), key(2): ({"r2"}, 3)}


@pytest.mark.invariant("W18")
@pytest.mark.parametrize("took_place", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_up(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch, took_place: bool
) -> None:
    """An error after the commit took place is no failure, one before it is tried again; no row is there twice."""
    version = publish(spark, root, "r1", (1, 2))
    commit, failures = DeltaTable.create_write_transaction, iter([True])

    def commit_and_fail(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        fails = next(failures, False)
        if took_place or not fails:
            commit(self, *args, **kwargs)
        if fails:
            raise OSError("the answer was lost")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_and_fail)
    assert publish(spark, root, "r2", (1,)) == version + 1
    assert by_duckdb(root) == {key(1): ({"r2"}, 3), key(2): ({"r1"}, 3)}


def test_the_log_entry_is_forced_to_disk(spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are forced before the commit that names them, and the entry that names them after it."""
    forced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        forced.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    version = publish(spark, root, "r1", (1,))
    entry = f"{version:020}.json"
    assert entry in forced
    data = [place for place, name in enumerate(forced) if name.endswith(".parquet")]
    assert data
    assert max(data) < forced.index(entry)
    assert "_delta_log" in forced[forced.index(entry) :]


ROUNDS, LOADERS = 4, 3


def keep_loading(root: Path, loader: int) -> None:
    """Replaces overlapping partitions again and again, as one of several loaders."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    for number in range(ROUNDS):
        wanted = loads(f"l{loader}-{number}", [1 + loader, 2 + loader, 9])
        Warehouse(root).replace(session, rows_of(session, wanted), wanted, still=everyone)
    session.stop()


@pytest.mark.invariant("W1", "W2")
def test_racing_loaders_never_mix_runs(root: Path) -> None:
    """Loaders in several processes replace the same partitions: at each version of the log each has one whole run."""
    context = multiprocessing.get_context("spawn")
    loaders = [context.Process(target=keep_loading, args=(root, loader)) for loader in range(LOADERS)]
    for process in loaders:
        process.start()
    for process in loaders:
        process.join()
    assert [process.exitcode for process in loaders] == [0] * LOADERS
    walked = versions(root)
    assert len(walked) == LOADERS * ROUNDS + 1
    for version in walked:
        assert all(len(runs) == 1 and rows == 3 for runs, rows in version.values())
    for loader in range(LOADERS):
        seen = [next(iter(version[key(9)][0])) for version in walked if key(9) in version]
        own = [run_id for run_id in dict.fromkeys(seen) if run_id.startswith(f"l{loader}-")]
        assert own == sorted(own), "a loader's earlier run came back"


@pytest.mark.invariant("W7")
@pytest.mark.parametrize(
    ("moment", "published"),
    [
        ("staging._write.after", False),
        ("staging._move.after", False),
        ("publication.commit_files.before", False),
        ("publication.commit_files.after", True),
    ],
)
def test_a_loader_killed_in_the_middle_leaves_old_or_new(
    spark: SparkSession, root: Path, moment: str, published: bool
) -> None:
    """Whenever the loader dies readers see a whole run, and the next loader gets its own way."""
    publish(spark, root, "r1", (1, 2))
    die_at(moment, "replace(spark, rows_of(spark, wanted), wanted, still=everyone)", root)
    assert by_duckdb(root) == {key(1): ({"r2" if published else "r1"}, 3), key(2): ({"r1"}, 3)}
    publish(spark, root, "r2", (1,))
    assert by_duckdb(root)[key(1)] == ({"r2"}, 3)


def test_the_log_names_only_one_application(spark: SparkSession, root: Path) -> None:
    """Every commit carries the same application's next transaction, so that no two can follow one snapshot."""
    publish(spark, root, "r1", (1,))
    publish(spark, root, "r2", (1,))
    snapshot = delta_commits.open_table(Table(root=root, source="google_ads", query_name="campaign_daily"))
    assert snapshot is not None
    transactions = [
        action["txn"]["version"]
        for version in range(snapshot.version + 1)
        for action in delta_commits.read_entry(snapshot.table, version) or []
        if "txn" in action
    ]
    assert transactions == list(range(1, snapshot.version + 2))
