"""Statistics of columns are removed from a table's log, once, without harm to readers and other writers."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ads_pipeline.domain.log_lines import LogEvent
from ads_pipeline.lake.warehouse import delta_commits, log_statistics
from ads_pipeline.lake.warehouse.delta_commits import open_table
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.lake.warehouse.table_values import WarehouseTable
from ads_pipeline_tests.lake.warehouse.builders import (
    SMALL_FILE_PARTITIONS,
    give_customer_bounds,
    keep_all_runs,
    key,
    list_version_files,
    optimize,
    publish,
    publish_small_files,
    read_all_versions,
    read_with_duckdb,
    run_and_kill,
    table_uri,
)

NAMES = {"source": "google_ads", "query_name": "campaign_daily"}


def count_rows_with_cost(root: str) -> int:
    """A filter of a column that has no statistics in the logs of earlier releases."""
    return len(DeltaTable(table_uri(root)).to_pandas(filters=[("cost", ">=", 0.0)]))


def list_bounds(root: str) -> set[tuple[str | None, str | None]]:
    snapshot = open_table(WarehouseTable(location=root, **NAMES))
    assert snapshot is not None
    return {(file.min_customer_id, file.max_customer_id) for file in snapshot.files}


def test_readers_drop_rows_with_statistics_of_some_columns(spark: SparkSession, disk_root: str) -> None:
    """The reason of it all: deltalake finds no row of files whose log entries describe another column only."""
    publish_small_files(spark, disk_root)
    give_customer_bounds(disk_root)
    assert count_rows_with_cost(disk_root) == 0, "deltalake has fixed its readers; statistics may be used again"


def load_again(spark: SparkSession, root: str) -> None:
    publish(spark, root, "r9", (1,))


def compact(spark: SparkSession, root: str) -> None:
    optimize(spark, root)


def remove(spark: SparkSession, root: str) -> None:
    Warehouse(root).remove(lambda: spark, [key(9)], is_removable=keep_all_runs)


@pytest.mark.invariant("W16")
@pytest.mark.parametrize("write", [load_again, compact, remove])
def test_every_write_removes_the_statistics_first(
    spark: SparkSession, core_root: str, write: Callable[[SparkSession, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The first write to a table of an earlier release replaces all its entries, in one commit, and says so once."""
    publish_small_files(spark, core_root)
    give_customer_bounds(core_root)
    held, files = DeltaTable(table_uri(core_root)), list_version_files(core_root)
    before = read_all_versions(core_root)
    with caplog.at_level(logging.WARNING):
        write(spark, core_root)
        write(spark, core_root)
    versions = read_all_versions(core_root)
    assert versions[: len(before) + 1] == [*before, before[-1]], "the first commit changed no row"
    assert list_version_files(core_root, len(before)) == files
    said = [record for record in caplog.records if getattr(record, "event", "") == LogEvent.STATISTICS_REMOVED]
    assert [record.fields["files"] for record in said] == [len(files)]  # type: ignore[attr-defined]
    assert Warehouse(core_root).count_column_statistics(**NAMES) == 0
    assert count_rows_with_cost(core_root) == sum(rows for _runs, rows in versions[-1].values())
    assert held.to_pyarrow_table().num_rows == sum(rows for _runs, rows in before[-1].values())
    held.update_incremental()
    assert held.to_pyarrow_table().num_rows == sum(rows for _runs, rows in versions[-1].values())


@pytest.mark.invariant("W16")
def test_checkpoints_and_other_readers_take_the_newest_entry(spark: SparkSession, core_root: str) -> None:
    """A checkpoint of an earlier release holds the statistics; without a newer checkpoint readers ignore them too."""
    publish_small_files(spark, core_root)
    give_customer_bounds(core_root)
    DeltaTable(table_uri(core_root)).create_checkpoint()
    assert Warehouse(core_root).remove_column_statistics(**NAMES) == 6
    assert Warehouse(core_root).remove_column_statistics(**NAMES) == 0
    assert count_rows_with_cost(core_root) == 30
    assert read_with_duckdb(core_root) == SMALL_FILE_PARTITIONS
    for name in delta_commits._list_log(WarehouseTable(location=core_root, **NAMES)):
        if name == "_last_checkpoint" or name.endswith("4.checkpoint.parquet"):
            WarehouseTable(location=core_root, **NAMES).store.delete(f"google_ads/campaign_daily/_delta_log/{name}")
    assert count_rows_with_cost(core_root) == 30
    assert read_with_duckdb(core_root) == SMALL_FILE_PARTITIONS


@pytest.mark.invariant("W2")
def test_two_writers_remove_the_statistics_once(
    spark: SparkSession, core_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two writers at once, one replaces the entries. The other one opens the table again and finds none."""
    publish_small_files(spark, core_root)
    give_customer_bounds(core_root)
    before, races = len(read_all_versions(core_root)), iter([True])
    counts: list[int] = []

    def commit_second(*args: Any, **kwargs: Any) -> Any:
        if next(races, False):
            counts.append(Warehouse(core_root).remove_column_statistics(**NAMES))
        return delta_commits.commit_files(*args, **kwargs)

    monkeypatch.setattr(log_statistics, "commit_files", commit_second)
    counts.append(Warehouse(core_root).remove_column_statistics(**NAMES))
    assert counts == [6, 0]
    assert len(read_all_versions(core_root)) == before + 1
    assert read_with_duckdb(core_root) == SMALL_FILE_PARTITIONS


@pytest.mark.invariant("W13")
@pytest.mark.parametrize("moment", ["log_statistics.commit_files.before", "log_statistics.commit_files.after"])
def test_killed_removal_changes_no_row(spark: SparkSession, spark_server: str, root: str, moment: str) -> None:
    """Killed before or after its commit, the removal leaves the same rows, and the next writer completes it."""
    publish_small_files(spark, root)
    give_customer_bounds(root)
    call = 'Warehouse(root).remove_column_statistics(source="google_ads", query_name="campaign_daily")'
    run_and_kill(moment, call, root, spark_server)
    assert read_with_duckdb(root) == SMALL_FILE_PARTITIONS
    left = Warehouse(root).remove_column_statistics(**NAMES)
    assert left == (6 if moment.endswith("before") else 0)
    assert count_rows_with_cost(root) == 30
    assert read_with_duckdb(root) == SMALL_FILE_PARTITIONS


def test_other_writers_add_no_statistics_of_columns(spark: SparkSession, disk_root: str) -> None:
    """A table tells other writers to leave the statistics out, so a compaction by deltalake hides no row."""
    publish_small_files(spark, disk_root)
    DeltaTable(table_uri(disk_root)).optimize.compact()
    assert len(list_version_files(disk_root)) == 2
    assert count_rows_with_cost(disk_root) == 30


def test_files_name_their_customers_for_ever(spark: SparkSession, core_root: str) -> None:
    """The bounds of customers survive replacement, compaction and checkpoints, because they stand in the names."""
    publish_small_files(spark, core_root)
    assert list_bounds(core_root) == {("1", "2"), ("3", "3"), ("5", "6")}
    publish(spark, core_root, "r9", (2,))
    DeltaTable(table_uri(core_root)).create_checkpoint()
    assert list_bounds(core_root) == {("1", "2"), ("3", "3"), ("5", "6")}
    optimize(spark, core_root)
    assert list_bounds(core_root) == {("1", "6")}
