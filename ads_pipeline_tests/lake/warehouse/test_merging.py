"""Merges of small files run in this process and those of large files in Spark, with equal results."""

from dataclasses import dataclass

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.errors import FilesDamaged
from ads_pipeline.lake.warehouse import staging
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline_tests.lake.warehouse.builders import (
    COLUMNS,
    SMALL_FILE_PARTITIONS,
    keep_all_runs,
    key,
    list_version_files,
    make_loads,
    publish,
    publish_small_files,
    read_with_duckdb,
    stage,
    write_file,
)


@dataclass(slots=True, kw_only=True)
class Sessions:
    """Starts Spark, and counts how often."""

    spark: SparkSession
    started: int = 0

    def start(self) -> SparkSession:
        self.started += 1
        return self.spark


@pytest.fixture(params=[True, False], ids=["in_process", "in_spark"])
def in_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the files of the test are small."""
    if not request.param:
        monkeypatch.setattr(staging, "MAX_BYTES_IN_PROCESS", 0)
    return bool(request.param)


@pytest.mark.invariant("W13")
def test_removal_replacement_and_compaction_keep_other_rows(
    spark: SparkSession, core_root: str, in_process: bool
) -> None:
    """The rows of other customers are carried over. Spark starts for large files alone."""
    publish_small_files(spark, core_root)
    sessions, warehouse = Sessions(spark=spark), Warehouse(core_root)
    warehouse.optimize(sessions.start, source="google_ads", query_name="campaign_daily")
    assert read_with_duckdb(core_root) == SMALL_FILE_PARTITIONS
    assert len(list_version_files(core_root)) == 2
    warehouse.remove(sessions.start, [key(1), key(5)], is_removable=keep_all_runs)
    left = {each: content for each, content in SMALL_FILE_PARTITIONS.items() if each not in (key(1), key(5))}
    assert read_with_duckdb(core_root) == left
    loads = make_loads("r9", (2,))
    warehouse.replace(
        sessions.start,
        loads,
        stage(core_root, loads),
        stage=lambda _missing: [],
        columns=COLUMNS,
        is_publishable=keep_all_runs,
    )
    assert read_with_duckdb(core_root) == left | {key(2): ({"r9"}, 3)}
    assert sessions.started == (0 if in_process else 3)


def test_damaged_file_of_a_removal_is_named(spark: SparkSession, core_root: str, in_process: bool) -> None:
    """A file that is cut while it is merged is named with its customers, and the table keeps its rows."""
    publish(spark, core_root, "r1", (1, 2))
    (path,) = list_version_files(core_root)
    sessions = Sessions(spark=spark)

    def cut_file(runs: object) -> object:
        write_file(core_root, path, b"PAR1")
        return runs

    with pytest.raises(FilesDamaged, match="customers 1 to 2"):
        Warehouse(core_root).remove(sessions.start, [key(1)], is_removable=cut_file)  # type: ignore[arg-type]
    assert list_version_files(core_root) == {path}
    assert sessions.started == (0 if in_process else 1)
