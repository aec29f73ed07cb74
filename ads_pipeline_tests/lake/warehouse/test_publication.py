"""Publishing runs and removing partitions, on real Delta tables that independent readers read back."""

import multiprocessing
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ads_pipeline.domain.errors import SchemaConflict, StagingDamaged
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.lake.warehouse import delta_commits, staging
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.lake.warehouse.table_values import HeldPartition, StagedFile, WarehouseTable
from ads_pipeline_tests.lake.warehouse.builders import (
    COLUMNS,
    key,
    list_data_files,
    list_table,
    list_version_files,
    make_load,
    make_loads,
    make_older,
    publish,
    publish_loads,
    read_all_versions,
    read_file,
    read_rows,
    read_with_duckdb,
    replace_partitions,
    run_and_kill,
    stage,
    table_uri,
    write_file,
    write_rows,
)


def read_held(root: str) -> Mapping[PartitionKey, HeldPartition]:
    return Warehouse(root).read_held_partitions(source="google_ads", query_name="campaign_daily").partitions


@pytest.mark.invariant("W1", "W13", "W16")
def test_replacing_partitions_keeps_the_others_unchanged(spark: SparkSession, core_root: str) -> None:
    """Partitions that share a file with a replaced one are carried over. Readers see one run in each partition."""
    publish(spark, core_root, "r1", range(1, 6), days=(1, 2))
    publish(spark, core_root, "r2", (2, 4))
    expected = {
        key(customer, day): ({"r2" if day == 1 and customer in (2, 4) else "r1"}, 3)
        for customer in range(1, 6)
        for day in (1, 2)
    }
    assert read_with_duckdb(core_root) == expected
    assert read_all_versions(core_root)[-1] == expected
    assert {partition: (held.run_id, held.rows) for partition, held in read_held(core_root).items()} == {
        partition: (next(iter(runs)), rows) for partition, (runs, rows) in expected.items()
    }
    assert all(len(runs) == 1 for version in read_all_versions(core_root) for runs, _rows in version.values())


@pytest.mark.invariant("W6")
def test_loading_the_same_run_again_commits_nothing(spark: SparkSession, core_root: str) -> None:
    """The table's version and all of its files stay unchanged."""
    version = publish(spark, core_root, "r1", (1, 2))
    before = list_table(core_root)
    assert publish(spark, core_root, "r1", (1, 2)) == version
    assert list_table(core_root) == before


@pytest.mark.invariant("W15")
def test_empty_run_replaces_the_old_rows(spark: SparkSession, core_root: str) -> None:
    """Publishing a run without rows empties its partition only. Publishing it again commits nothing."""
    publish(spark, core_root, "r1", (1, 2))
    empty = [make_load("r2", key(1), rows=0)]
    version = publish_loads(spark, core_root, empty)
    assert read_with_duckdb(core_root) == {key(2): ({"r1"}, 3)}
    assert publish_loads(spark, core_root, empty) == version


def test_removal_is_one_commit(spark: SparkSession, root: str) -> None:
    """Removal deletes only the given partitions, and of these only those whose run `is_removable` returns."""
    version = publish(spark, root, "r1", (1, 2, 3, 4))
    kept = Run(key=key(4), run_id="r1")
    keys = [key(1), key(3), key(4)]
    removed = Warehouse(root).remove(
        lambda: spark, keys, is_removable=lambda runs: [run for run in runs if run != kept]
    )
    assert removed == version + 1
    assert read_with_duckdb(root) == {key(2): ({"r1"}, 3), key(4): ({"r1"}, 3)}


@pytest.mark.invariant("W4")
def test_load_staged_before_a_removal_checks_its_runs_again(spark: SparkSession, core_root: str) -> None:
    """A removal commits even without rows to remove, so that a load staged before it must check its runs again."""
    publish(spark, core_root, "r1", (2,))
    loads = make_loads("r1", (1,))
    answers = iter([[loads[0].run], []])

    def demote_after_first_check(_runs: Sequence[Run]) -> list[Run]:
        """Return the run and remove its partition, which has no rows. Return no run in the second call."""
        answer = next(answers)
        if answer:
            Warehouse(core_root).remove(lambda: spark, [key(1)], is_removable=lambda runs: runs)
        return answer

    result = replace_partitions(spark, core_root, loads, is_publishable=demote_after_first_check)
    assert result.superseded == (loads[0].run,)
    assert read_with_duckdb(core_root) == {key(2): ({"r1"}, 3)}


def test_removal_creates_no_table(spark: SparkSession, root: str) -> None:
    """Removing partitions of a missing table returns None and creates nothing."""
    assert Warehouse(root).remove(lambda: spark, [key(1)], is_removable=lambda runs: runs) is None
    assert list_table(root) == {}


@pytest.mark.invariant("W10")
def test_other_schema_version_of_a_held_run_is_loaded(spark: SparkSession, root: str) -> None:
    """A partition is rewritten when the schema version differs, even if the run is the same."""
    version = publish(spark, root, "r1", (1,))
    other = make_load("r1", key(1), schema_version="2")
    assert publish_loads(spark, root, [other]) > version
    assert read_held(root)[key(1)].schema_version == "2"


@pytest.mark.invariant("W11")
def test_new_column_is_added_and_changed_type_is_refused(spark: SparkSession, core_root: str) -> None:
    """Older partitions have null in a new column. A changed column type is refused by name and nothing is written."""
    publish(spark, core_root, "r1", (1, 2))
    loads = make_loads("r2", (1,))
    with_share = COLUMNS | {"share": "double"}
    publish_loads(spark, core_root, loads, staged=stage(core_root, loads, share=0.5), columns=with_share)
    shares = DeltaTable(table_uri(core_root)).to_pyarrow_table().to_pylist()
    assert {(row["customer_id"], row["share"]) for row in shares} == {("1", 0.5), ("2", None)}
    before = read_all_versions(core_root)
    loads = make_loads("r3", (1,))
    columns = COLUMNS | {"cost": "string"}
    with pytest.raises(SchemaConflict, match="column cost is double, new rows have string"):
        publish_loads(spark, core_root, loads, staged=stage(core_root, loads, cost="x"), columns=columns)
    assert read_all_versions(core_root) == before


@pytest.mark.invariant("W7")
def test_rows_that_differ_from_the_seal_are_not_published(spark: SparkSession, root: str) -> None:
    """A load with too few rows, or with rows of another run, fails. The earlier run stays unchanged."""
    publish(spark, root, "r1", (1, 2))
    before = read_all_versions(root)
    with pytest.raises(StagingDamaged, match="r2 has 3 rows, its seal says 4"):
        publish_loads(spark, root, [make_load("r2", key(1), rows=4)], staged=stage(root, make_loads("r2", (1,))))
    (wrong,) = stage(root, make_loads("r2", (1,)))
    (right,) = stage(root, make_loads("r3", (1,)))
    mislabelled = replace(wrong, runs=right.runs)
    with pytest.raises(StagingDamaged, match="r3 is not among the staged rows"):
        publish_loads(spark, root, make_loads("r3", (1,)), staged=[mislabelled])
    assert read_all_versions(root) == before


@pytest.mark.invariant("W7")
def test_changed_file_of_a_whole_day_is_not_published(spark: SparkSession, core_root: str) -> None:
    """A staged file that a table could adopt as it is, is read back before the commit."""
    staged = stage(core_root, make_loads("r1", (1, 2)))
    (other,) = stage(core_root, make_loads("r2", (1, 2)))
    write_file(core_root, staged[0].path, read_file(core_root, other.path))
    with pytest.raises(StagingDamaged, match="came with rows of another run"):
        publish_loads(spark, core_root, make_loads("r1", (1, 2)), staged=staged)


def test_run_that_cannot_be_read_again_is_left_out(spark: SparkSession, root: str) -> None:
    """Runs that are not staged are staged before the commit. One that cannot be read leaves the others alone."""
    publish(spark, root, "r1", (1, 2))
    loads = make_loads("r2", (1, 2))
    result = Warehouse(root).replace(
        lambda: spark,
        loads,
        [],
        stage=lambda missing: stage(root, [load for load in missing if load.run.key == key(2)]),
        columns=COLUMNS,
        is_publishable=lambda runs: runs,
    )
    assert [load.run.key for load in result.runs] == [key(2)]
    assert read_with_duckdb(root) == {key(1): ({"r1"}, 3), key(2): ({"r2"}, 3)}


@pytest.mark.invariant("W17")
def test_old_staged_file_is_written_anew(spark: SparkSession, root: str) -> None:
    """A file that was staged long before the commit might be removed by vacuum at the same time."""
    (old,) = stage(root, make_loads("r1", (1, 2)))
    old = replace(old, written_at=old.written_at - 31 * 60 * 1000)
    publish_loads(spark, root, make_loads("r1", (1, 2)), staged=[old])
    assert read_with_duckdb(root) == {key(1): ({"r1"}, 3), key(2): ({"r1"}, 3)}
    assert old.path not in list_version_files(root)
    assert set(list_data_files(root)) == list_version_files(root)


def test_staged_files_that_are_not_published_are_deleted(spark: SparkSession, root: str) -> None:
    """Of a file that also holds rows of other runs, the wanted rows are merged into a new file."""
    loads = make_loads("r1", (1, 2, 3))
    publish_loads(spark, root, loads[:2], staged=stage(root, loads))
    assert read_with_duckdb(root) == {key(1): ({"r1"}, 3), key(2): ({"r1"}, 3)}
    assert set(list_data_files(root)) == list_version_files(root)


@pytest.mark.invariant("W13")
def test_lost_row_of_a_carried_over_partition_is_not_published(
    spark: SparkSession, core_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows carried over to a new file must match those of the replaced file."""
    publish(spark, core_root, "r1", (1, 2))
    merge = staging.run_merges

    def merge_and_drop_row(*args: Any) -> list[StagedFile]:
        (merged,) = merge(*args)
        table = read_rows(core_root, merged.path)
        write_rows(core_root, merged.path, table.slice(0, table.num_rows - 1))
        return [merged]

    monkeypatch.setattr(staging, "run_merges", merge_and_drop_row)
    with pytest.raises(StagingDamaged, match="differs from the rows it had"):
        publish(spark, core_root, "r2", (1,))
    assert read_with_duckdb(core_root) == {key(1): ({"r1"}, 3), key(2): ({"r1"}, 3)}


def test_run_that_lost_its_authority_is_not_published(spark: SparkSession, root: str) -> None:
    """`is_publishable` is called right before the commit, and runs that it does not return are skipped."""
    publish(spark, root, "r1", (1, 2))
    loads = make_loads("r2", (1, 2))

    def refuse_first_customer(runs: Sequence[Run]) -> Collection[Run]:
        return [run for run in runs if run.key != key(1)]

    result = replace_partitions(spark, root, loads, is_publishable=refuse_first_customer)
    assert [load.run.key for load in result.runs] == [key(2)]
    assert [run.key for run in result.superseded] == [key(1)]
    assert read_with_duckdb(root) == {key(1): ({"r1"}, 3), key(2): ({"r2"}, 3)}


@pytest.mark.invariant("W18")
@pytest.mark.parametrize("committed", [True, False])
def test_outcome_of_a_failed_commit_is_read_from_the_log(
    spark: SparkSession, core_root: str, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """An error after the commit is ignored, and one before it is retried. No row is published twice."""
    version = publish(spark, core_root, "r1", (1, 2))
    commit, failures = DeltaTable.create_write_transaction, iter([True])

    def commit_and_fail(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        fails = next(failures, False)
        if committed or not fails:
            commit(self, *args, **kwargs)
        if fails:
            raise OSError("connection lost")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_and_fail)
    assert publish(spark, core_root, "r2", (1,)) == version + 1
    assert read_with_duckdb(core_root) == {key(1): ({"r2"}, 3), key(2): ({"r1"}, 3)}


def record_synced_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files and folders that are synced from now on, in their order."""
    synced: list[str] = []
    fsync = os.fsync

    def record_and_sync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_and_sync)
    return synced


def test_data_files_are_synced_before_the_commit_and_the_log_entry_after_it(
    spark: SparkSession, disk_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data files are synced before the log entry that names them; the entry and its directory are synced after it."""
    synced = record_synced_names(monkeypatch)
    version = publish(spark, disk_root, "r1", (1,))
    entry = f"{version:020}.json"
    assert entry in synced
    data = [position for position, name in enumerate(synced) if ".parquet" in name]
    assert data
    assert max(data) < synced.index(entry)
    assert "_delta_log" in synced[synced.index(entry) :]


@pytest.mark.invariant("W13")
def test_log_entry_of_a_dead_writer_is_synced_before_anything_depends_on_it(
    spark: SparkSession, disk_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer may die between its commit and the sync of its entry. The next commit, and vacuum before it deletes,
    sync that entry first: after a power cut, no later entry stands without it, and no file of it is gone."""
    first = publish(spark, disk_root, "r1", (1,))
    first_entry, second_entry = (f"{version:020}.json" for version in (first, first + 1))
    synced = record_synced_names(monkeypatch)
    assert publish(spark, disk_root, "r2", (1,)) == first + 1
    assert "_delta_log" in synced[synced.index(first_entry) : synced.index(second_entry)]
    make_older(disk_root, 9)
    synced.clear()
    assert Warehouse(disk_root).vacuum(source="google_ads", query_name="campaign_daily")
    assert "_delta_log" in synced[synced.index(second_entry) :]


ROUNDS, LOADERS = 4, 3


def load_repeatedly(root: str, loader: int, spark_server: str) -> None:
    """Replace overlapping partitions several times, as one of several loaders."""
    session = SparkSession.builder.remote(spark_server).getOrCreate()
    for number in range(ROUNDS):
        publish(session, root, f"l{loader}-{number}", [1 + loader, 2 + loader, 9])
    session.stop()


@pytest.mark.invariant("W1", "W2")
def test_racing_loaders_never_mix_runs(core_root: str, spark_server: str) -> None:
    """When several processes replace the same partitions, each partition has one whole run in every version."""
    context = multiprocessing.get_context("spawn")
    loaders = [
        context.Process(target=load_repeatedly, args=(core_root, loader, spark_server)) for loader in range(LOADERS)
    ]
    for process in loaders:
        process.start()
    for process in loaders:
        process.join()
    assert [process.exitcode for process in loaders] == [0] * LOADERS
    versions = read_all_versions(core_root)
    assert len(versions) == LOADERS * ROUNDS + 1
    for version in versions:
        assert all(len(runs) == 1 and rows == 3 for runs, rows in version.values())
    for loader in range(LOADERS):
        seen = [next(iter(version[key(9)][0])) for version in versions if key(9) in version]
        own = [run_id for run_id in dict.fromkeys(seen) if run_id.startswith(f"l{loader}-")]
        assert own == sorted(own), "a loader's earlier run came back"


@pytest.mark.invariant("W7")
@pytest.mark.parametrize(
    ("moment", "published"),
    [
        ("staging.run_merges.after", False),
        ("replacement.prepare_replacement.after", False),
        ("replacement.commit_files.before", False),
        ("replacement.commit_files.after", True),
    ],
)
def test_killed_loader_leaves_the_old_or_the_new_run(
    spark: SparkSession, spark_server: str, root: str, moment: str, published: bool
) -> None:
    """Whenever a loader is killed, readers see one whole run, and the next load succeeds."""
    publish(spark, root, "r1", (1, 2))
    run_and_kill(moment, "replace_partitions(spark, root, loads)", root, spark_server)
    assert read_with_duckdb(root) == {key(1): ({"r2" if published else "r1"}, 3), key(2): ({"r1"}, 3)}
    publish(spark, root, "r2", (1,))
    assert read_with_duckdb(root)[key(1)] == ({"r2"}, 3)


def test_every_commit_has_the_next_application_transaction(spark: SparkSession, core_root: str) -> None:
    """Each commit has the next transaction number of one application, so that no two can follow one snapshot."""
    publish(spark, core_root, "r1", (1,))
    publish(spark, core_root, "r2", (1,))
    snapshot = delta_commits.open_table(
        WarehouseTable(location=core_root, source="google_ads", query_name="campaign_daily")
    )
    assert snapshot is not None
    transactions = [
        action["txn"]["version"]
        for version in range(snapshot.version + 1)
        for action in delta_commits.read_log_entry(snapshot.table, version) or []
        if "txn" in action
    ]
    assert transactions == list(range(1, snapshot.version + 2))
