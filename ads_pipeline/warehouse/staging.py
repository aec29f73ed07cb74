"""Writes and verifies the files of the next table version where no reader sees them.

A file holds many customers of one day, sorted by customer. When a partition is replaced, the other rows of its files
are carried over to the new files. They must match the old ones in count and digest.
"""

import json
import shutil
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ads_pipeline.errors import StagingDamaged
from ads_pipeline.storage.durable_files import make_durable_directories, sync_directory, sync_file
from ads_pipeline.warehouse.columns import TableColumn, to_spark_schema
from ads_pipeline.warehouse.delta_commits import TableSnapshot
from ads_pipeline.warehouse.file_contents import group_by_partition, read_parquet, read_slices
from ads_pipeline.warehouse.values import DATE_COLUMN, STAGING_DIRECTORY, DataFile, Load, Slice, WarehouseTable

Partitions = Collection[tuple[str, date]]  # customer and day


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles:
    """New files under their final names that no version refers to yet, and the files that they replace.

    In a rewrite both hold the same rows.
    """

    added: tuple[AddAction, ...]
    replaced: tuple[DataFile, ...]
    rewrite: bool


def find_affected_files(snapshot: TableSnapshot, partitions: Partitions) -> tuple[DataFile, ...]:
    """The files that may hold rows of these partitions, including files without recorded bounds."""
    customers: dict[date, list[str]] = {}
    for customer_id, day in partitions:
        customers.setdefault(day, []).append(customer_id)
    return tuple(file for file in snapshot.files if any(_may_hold(file, c) for c in customers.get(file.day, ())))


def stage_files(
    spark: SparkSession,
    snapshot: TableSnapshot,
    *,
    rows: DataFrame | None,
    loads: Sequence[Load],
    partitions: Partitions,
    replaced: tuple[DataFile, ...],
) -> StagedFiles:
    """Write the new rows and those carried over from replaced files, verify every file and give it its final name.

    Raises StagingDamaged when the written rows differ from the expected ones. Then no file remains.
    """
    table, columns = snapshot.table, snapshot.columns
    before = read_slices([table.absolute_path(file) for file in replaced], columns)
    carried = [part for part in before if (part.customer_id, part.day) not in partitions]
    directory = table.path / STAGING_DIRECTORY / uuid.uuid4().hex
    try:
        frames = [] if rows is None else [_select_columns(rows, columns)]
        if carried:
            frames.append(_read_carried_rows(spark, snapshot, replaced, partitions))
        if frames:
            _write(frames, directory)
        files = sorted(directory.glob(f"{DATE_COLUMN}=*/*.parquet"))
        _verify(table, files, carried=carried, loads=loads, columns=columns)
        added = tuple(_move(table, file) for file in files)
        return StagedFiles(added=added, replaced=replaced, rewrite=rows is None and not partitions)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def delete_staged(table: WarehouseTable, staged: StagedFiles) -> None:
    """Delete files that no version refers to. Call it only after their commit has certainly failed."""
    for action in staged.added:
        (table.path / action.path).unlink(missing_ok=True)


def _may_hold(file: DataFile, customer_id: str) -> bool:
    if file.min_customer_id is None or file.max_customer_id is None:
        return True
    return file.min_customer_id <= customer_id <= file.max_customer_id


def _select_columns(rows: DataFrame, columns: tuple[TableColumn, ...]) -> DataFrame:
    """The rows with the table's columns. Columns that the rows lack are null."""
    present = set(rows.columns)
    return rows.select(
        *(
            sf.col(f"`{field.name}`")
            if field.name in present
            else sf.lit(None).cast(field.dataType).alias(field.name)
            for field in to_spark_schema(columns)
        )
    )


def _read_carried_rows(
    spark: SparkSession, snapshot: TableSnapshot, files: Sequence[DataFile], partitions: Partitions
) -> DataFrame:
    table = snapshot.table
    paths = [table.absolute_path(file) for file in files]
    old = read_parquet(spark, table.path, paths, to_spark_schema(snapshot.columns))
    removed = spark.createDataFrame(sorted(partitions), f"customer_id string, {DATE_COLUMN} date")
    carried = old.join(sf.broadcast(removed), ["customer_id", DATE_COLUMN], "left_anti")
    return _select_columns(carried, snapshot.columns)


def _write(frames: list[DataFrame], directory: Path) -> None:
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionByName(frame)
    sorted_rows = rows.repartition(DATE_COLUMN).sortWithinPartitions(DATE_COLUMN, "customer_id")
    sorted_rows.write.partitionBy(DATE_COLUMN).parquet(str(directory))


def _verify(
    table: WarehouseTable,
    files: Sequence[Path],
    *,
    carried: Sequence[Slice],
    loads: Sequence[Load],
    columns: tuple[TableColumn, ...],
) -> None:
    for file in files:
        if file.is_symlink() or not file.is_file():
            raise StagingDamaged(str(table), f"{file.name} is not a regular file")
    staged = group_by_partition(read_slices([str(file) for file in files], columns))
    kept = group_by_partition(carried)
    new = {load.partition: load for load in loads}
    for partition, slices in staged.items():
        load = new.get(partition)
        if load is None and sorted(slices) != sorted(kept.get(partition, [])):
            key = table.partition_key(*partition)
            raise StagingDamaged(str(table), f"{key} differs from the rows it had before it was carried over")
        if load is not None:
            _verify_load(table, load, slices)
    missing = [load for partition, load in new.items() if load.record_count and partition not in staged]
    lost = kept.keys() - staged.keys()
    if missing or lost:
        absent = missing[0].run if missing else table.partition_key(*min(lost))
        raise StagingDamaged(str(table), f"{absent} is not among the staged rows")


def _verify_load(table: WarehouseTable, load: Load, slices: Sequence[Slice]) -> None:
    rows = sum(part.rows for part in slices)
    staged = {(part.run_id, part.schema_version) for part in slices}
    if staged != {(load.run.run_id, load.schema_version)}:
        raise StagingDamaged(str(table), f"{load.run} came with rows of another run or schema version")
    if rows != load.record_count:
        raise StagingDamaged(str(table), f"{load.run} has {rows} rows, its seal says {load.record_count}")


def _move(table: WarehouseTable, file: Path) -> AddAction:
    """Move a file to its final name and sync it, before any version refers to it."""
    day = file.parent.name.removeprefix(f"{DATE_COLUMN}=")
    path = f"{DATE_COLUMN}={day}/{uuid.uuid4().hex}.parquet"
    final = table.path / path
    make_durable_directories(final.parent)
    sync_file(file)
    file.rename(final)
    sync_directory(final.parent)
    metadata = pq.read_metadata(final)
    position = metadata.schema.names.index("customer_id")
    bounds = [metadata.row_group(n).column(position).statistics for n in range(metadata.num_row_groups)]
    stats = {
        "numRecords": metadata.num_rows,
        "minValues": {"customer_id": min(group.min for group in bounds)},
        "maxValues": {"customer_id": max(group.max for group in bounds)},
    }
    status = final.stat()
    return AddAction(path, status.st_size, {DATE_COLUMN: day}, int(status.st_mtime * 1000), True, json.dumps(stats))
