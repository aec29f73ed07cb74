"""Prepares the files of the next version out of readers' sight, and proves them before they are published.

A file holds many customers of one day, sorted by customer. What is replaced in it is left out; everything else is
carried over, and must come out as it went in.
"""

import json
import shutil
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ads_pipeline.errors import StagingDamaged
from ads_pipeline.warehouse.columns import TableColumn, spark_schema
from ads_pipeline.warehouse.delta_commits import Snapshot, force_directory, force_file, make_directories
from ads_pipeline.warehouse.file_contents import by_partition, read_contents
from ads_pipeline.warehouse.values import DATE, STAGING, Content, DataFile, Load, Slice, Table

Partitions = Collection[tuple[str, date]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Files that stand under their final names but in no version yet, and the files they stand for.

    In a rewrite both hold the same rows.
    """

    added: tuple[AddAction, ...]
    replaced: tuple[DataFile, ...]
    rewrite: bool


def affected_files(snapshot: Snapshot, partitions: Partitions) -> tuple[DataFile, ...]:
    """The files that may hold rows of these partitions; a file whose bounds are not told may hold any."""
    customers: dict[date, list[str]] = {}
    for customer_id, day in partitions:
        customers.setdefault(day, []).append(customer_id)
    return tuple(file for file in snapshot.files if any(_may_hold(file, c) for c in customers.get(file.day, ())))


def stage(
    spark: SparkSession,
    snapshot: Snapshot,
    *,
    rows: DataFrame | None,
    loads: Sequence[Load],
    partitions: Partitions,
    replaced: tuple[DataFile, ...],
) -> Staged:
    """Write the rows and what is carried over of the replaced files, verify every file, give each its final name.

    StagingDamaged when anything differs from what was counted; then nothing stays behind.
    """
    table, columns = snapshot.table, snapshot.columns
    before = read_contents([table.absolute(file) for file in replaced], columns)
    carried = {each: content for each, content in before.items() if (each.customer_id, each.day) not in partitions}
    place = table.path / STAGING / uuid.uuid4().hex
    try:
        frames = [] if rows is None else [_shaped(rows, columns)]
        if carried:
            frames.append(_carried(spark, snapshot, replaced, partitions))
        if frames:
            _write(frames, place)
        files = sorted(place.glob(f"{DATE}=*/*.parquet"))
        _verify(table, files, carried=carried, loads=loads, columns=columns)
        added = tuple(_move(table, file) for file in files)
        return Staged(added=added, replaced=replaced, rewrite=rows is None and not partitions)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def discard(table: Table, staged: Staged) -> None:
    """Remove files that certainly are in no version."""
    for action in staged.added:
        (table.path / action.path).unlink(missing_ok=True)


def _may_hold(file: DataFile, customer_id: str) -> bool:
    if file.lowest is None or file.highest is None:
        return True
    return file.lowest <= customer_id <= file.highest


def _shaped(rows: DataFrame, columns: tuple[TableColumn, ...]) -> DataFrame:
    """The rows in the table's columns; those they lack are null."""
    present = set(rows.columns)
    return rows.select(
        *(
            sf.col(f"`{field.name}`")
            if field.name in present
            else sf.lit(None).cast(field.dataType).alias(field.name)
            for field in spark_schema(columns)
        )
    )


def _carried(spark: SparkSession, snapshot: Snapshot, files: Sequence[DataFile], partitions: Partitions) -> DataFrame:
    table = snapshot.table
    old = (
        spark.read.schema(spark_schema(snapshot.columns))
        .option("basePath", str(table.path))
        .parquet(*(table.absolute(file) for file in files))
    )
    gone = spark.createDataFrame(sorted(partitions), f"customer_id string, {DATE} date")
    return _shaped(old.join(sf.broadcast(gone), ["customer_id", DATE], "left_anti"), snapshot.columns)


def _write(frames: list[DataFrame], place: Path) -> None:
    everything = frames[0]
    for frame in frames[1:]:
        everything = everything.unionByName(frame)
    packed = everything.repartition(DATE).sortWithinPartitions(DATE, "customer_id")
    packed.write.partitionBy(DATE).parquet(str(place))


def _verify(
    table: Table,
    files: Sequence[Path],
    *,
    carried: Mapping[Slice, Content],
    loads: Sequence[Load],
    columns: tuple[TableColumn, ...],
) -> None:
    for file in files:
        if file.is_symlink() or not file.is_file():
            raise StagingDamaged(str(table), f"{file.name} is not a plain file")
    found = by_partition(read_contents([str(file) for file in files], columns))
    kept = by_partition(carried)
    new = {(load.run.key.customer_id, load.run.key.logical_date): load for load in loads}
    for partition, slices in found.items():
        load = new.get(partition)
        if load is None and sorted(slices) != sorted(kept.get(partition, [])):
            raise StagingDamaged(str(table), f"{table.key(*partition)} did not come over as it was")
        if load is not None:
            _verify_load(table, load, slices)
    missing = [load for partition, load in new.items() if load.record_count and partition not in found]
    lost = kept.keys() - found.keys()
    if missing or lost:
        absent = missing[0].run if missing else table.key(*min(lost))
        raise StagingDamaged(str(table), f"{absent} is not among the staged rows")


def _verify_load(table: Table, load: Load, slices: Sequence[tuple[Slice, Content]]) -> None:
    rows = sum(content.rows for _each, content in slices)
    told = {(each.run_id, each.schema_version) for each, _content in slices}
    if told != {(load.run.run_id, load.schema_version)}:
        raise StagingDamaged(str(table), f"{load.run} came with rows of another run or schema version")
    if rows != load.record_count:
        raise StagingDamaged(str(table), f"{load.run} has {rows} rows, its seal says {load.record_count}")


def _move(table: Table, file: Path) -> AddAction:
    """Give a file its final name, on disk before any version names it."""
    day = file.parent.name.removeprefix(f"{DATE}=")
    path = f"{DATE}={day}/{uuid.uuid4().hex}.parquet"
    final = table.path / path
    make_directories(final.parent)
    force_file(file)
    file.rename(final)
    force_directory(final.parent)
    metadata = pq.read_metadata(final)
    place = metadata.schema.names.index("customer_id")
    bounds = [metadata.row_group(n).column(place).statistics for n in range(metadata.num_row_groups)]
    stats = {
        "numRecords": metadata.num_rows,
        "minValues": {"customer_id": min(each.min for each in bounds)},
        "maxValues": {"customer_id": max(each.max for each in bounds)},
    }
    found = final.stat()
    return AddAction(path, found.st_size, {DATE: day}, int(found.st_mtime * 1000), True, json.dumps(stats))
