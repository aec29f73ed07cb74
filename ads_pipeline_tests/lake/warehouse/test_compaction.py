"""Compaction of small files, on real Delta tables."""

import json
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.errors import StagingDamaged, TableContended
from ads_pipeline.lake.warehouse import delta_commits, maintenance, replacement, staging
from ads_pipeline.lake.warehouse.table_values import StagedFile
from ads_pipeline_tests.lake.warehouse.builders import (
    SMALL_FILE_PARTITIONS,
    entry_path,
    key,
    list_data_files,
    list_table,
    list_version_files,
    make_older,
    optimize,
    publish,
    publish_small_files,
    read_all_versions,
    read_file,
    read_rows,
    read_sorted_rows,
    read_with_duckdb,
    run_and_kill,
    vacuum,
    write_rows,
)


@pytest.mark.invariant("W1", "W13", "W16")
def test_compaction_changes_no_row(spark: SparkSession, core_root: str) -> None:
    """After compaction each day is one file, sorted by customer, and readers see the same rows."""
    publish_small_files(spark, core_root)
    version, before = len(read_all_versions(core_root)) - 1, read_sorted_rows(core_root)
    assert optimize(spark, core_root) == version + 1
    assert read_sorted_rows(core_root) == before
    versions = read_all_versions(core_root)
    assert read_with_duckdb(core_root) == versions[-1] == versions[-2] == SMALL_FILE_PARTITIONS
    assert all(len(runs) == 1 for each in versions for runs, _rows in each.values())
    assert len(list_version_files(core_root)) == 2
    for path in list_version_files(core_root):
        customers = read_rows(core_root, path)["customer_id"].to_pylist()
        assert customers == sorted(customers)


def test_compaction_is_marked_as_changing_no_data(spark: SparkSession, root: str) -> None:
    """All actions of a compaction have dataChange=false, so that readers of changes skip them."""
    publish_small_files(spark, root)
    version = optimize(spark, root)
    assert version is not None
    entry = read_file(root, entry_path(version))
    actions = [item for line in entry.splitlines() for item in json.loads(line).items()]
    changes = [action["dataChange"] for kind, action in actions if kind in {"add", "remove"}]
    assert changes == [False] * 8


def test_compacting_again_commits_nothing(spark: SparkSession, root: str) -> None:
    """A compacted table stays unchanged, and a missing table is skipped."""
    assert optimize(spark, root) is None
    publish_small_files(spark, root)
    optimize(spark, root)
    before = list_table(root)
    assert optimize(spark, root) is None
    assert list_table(root) == before


def test_compacted_files_stay_within_the_target_size(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the target size are not rewritten. Smaller ones are combined while they fit into one target file."""
    for customer in range(1, 6):
        publish(spark, root, "r1", (customer,))
    before, sizes = (
        read_sorted_rows(root),
        [list_table(root)[path].size for path in list_version_files(root)],
    )
    monkeypatch.setattr(maintenance, "TARGET_FILE_BYTES", min(sizes))
    assert optimize(spark, root) is None
    monkeypatch.setattr(maintenance, "TARGET_FILE_BYTES", 2 * max(sizes))
    optimize(spark, root)
    assert len(list_version_files(root)) == 3
    assert read_sorted_rows(root) == before
    assert read_with_duckdb(root) == {key(customer): ({"r1"}, 3) for customer in range(1, 6)}


@pytest.mark.invariant("W13")
def test_compaction_that_changes_a_value_is_not_published(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compacted rows must match the old ones in every value."""
    publish_small_files(spark, root)
    before, merge = read_all_versions(root), staging.run_merges

    def merge_and_change_value(*args: Any) -> list[StagedFile]:
        merged = merge(*args)
        table = read_rows(root, merged[0].path)
        cost = table.schema.get_field_index("cost")
        write_rows(root, merged[0].path, table.set_column(cost, "cost", pc.add(table["cost"], 1.0)))
        return merged

    monkeypatch.setattr(staging, "run_merges", merge_and_change_value)
    with pytest.raises(StagingDamaged, match="differs from the rows it had"):
        optimize(spark, root)
    assert read_all_versions(root) == before


@pytest.mark.invariant("W1", "W2")
def test_compaction_repeats_after_a_load_that_committed_first(
    spark: SparkSession, core_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that commits after the files were staged wins, and compaction runs again on the new version."""
    publish_small_files(spark, core_root)
    races = iter([True])

    def commit_after_load(*args: Any, **kwargs: Any) -> Any:
        if next(races, False):
            publish(spark, core_root, "r9", (1,))
        return delta_commits.commit_files(*args, **kwargs)

    monkeypatch.setattr(replacement, "commit_files", commit_after_load)
    version = len(read_all_versions(core_root)) - 1
    assert optimize(spark, core_root) == version + 2
    assert (
        read_with_duckdb(core_root)
        == read_all_versions(core_root)[version + 1]
        == SMALL_FILE_PARTITIONS | {key(1): ({"r9"}, 3)}
    )
    assert len(list_version_files(core_root)) == 2


def test_compaction_gives_up_after_repeated_lost_races(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When loads always commit first, compaction raises TableContended and leaves no unreferenced file."""
    publish_small_files(spark, root)
    loads: list[str] = []

    def commit_after_load(*args: Any, **kwargs: Any) -> Any:
        if len(loads) % 2 == 0:
            loads.append("started")
            publish(spark, root, f"r{len(loads)}0", (1,))
            loads.append("done")
        return delta_commits.commit_files(*args, **kwargs)

    monkeypatch.setattr(replacement, "MAX_COMMIT_ATTEMPTS", 2)
    monkeypatch.setattr(replacement, "commit_files", commit_after_load)
    with pytest.raises(TableContended):
        optimize(spark, root)
    partitions = read_all_versions(root)
    assert partitions[-1] == SMALL_FILE_PARTITIONS | {key(1): ({"r30"}, 3)}
    assert set(list_data_files(root)) == {
        path for version in range(len(partitions)) for path in list_version_files(root, version)
    }


@pytest.mark.invariant("W13", "W17")
@pytest.mark.parametrize(
    ("moment", "compacted"),
    [
        ("staging.run_merges.after", False),
        ("replacement.prepare_compaction.after", False),
        ("replacement.commit_files.before", False),
        ("replacement.commit_files.after", True),
    ],
)
def test_killed_compaction_keeps_all_rows_and_vacuum_removes_its_files(
    spark: SparkSession, spark_server: str, root: str, moment: str, compacted: bool
) -> None:
    """Whenever compaction is killed, no row changes. Vacuum removes its files once they exceed the retention."""
    publish_small_files(spark, root)
    before = list_version_files(root)
    call = 'Warehouse(root).optimize(lambda: spark, source="google_ads", query_name="campaign_daily")'
    run_and_kill(moment, call, root, spark_server)
    assert read_with_duckdb(root) == SMALL_FILE_PARTITIONS
    assert (list_version_files(root) != before) == compacted
    assert vacuum(root) == ()
    left = set(list_data_files(root)) - list_version_files(root)
    make_older(root, 8)
    removed = vacuum(root)
    assert set(removed) == left
    assert read_with_duckdb(root) == SMALL_FILE_PARTITIONS
    assert (optimize(spark, root) is None) == compacted
