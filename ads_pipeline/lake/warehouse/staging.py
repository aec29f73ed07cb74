"""Prepares and verifies the files of the next table version, which no reader sees before the commit.

A file holds many customers of one day, sorted by customer. New rows were staged by the tasks that judged them. When a
partition is replaced, the other rows of its files are carried over: they are merged with the new rows, in this
process when the files are small, and in Spark otherwise. They must match the old ones in count and digest.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake.transaction import AddAction

from ads_pipeline.domain.errors import StagingDamaged
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.warehouse.columns import to_arrow_schema
from ads_pipeline.lake.warehouse.delta_commits import TableSnapshot, make_add_action
from ads_pipeline.lake.warehouse.file_contents import group_by_partition, read_slices
from ads_pipeline.lake.warehouse.file_damage import naming_damage
from ads_pipeline.lake.warehouse.file_writer import decode_files
from ads_pipeline.lake.warehouse.merging import Merge, MergeInput, carry_out, encode_merge, merge_in_task
from ads_pipeline.lake.warehouse.table_values import DATE_COLUMN, DataFile, Slice, StagedFile, WarehouseTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A small removal takes less time than Spark's start: 0.2 s of CPU for a file of 100,000 rows.
MAX_BYTES_IN_PROCESS: Final = 256 << 20
MAX_ADOPTED_AGE: Final = timedelta(minutes=30)  # an older file is rewritten, because vacuum may be about to remove it
StartSpark = Callable[[], "SparkSession"]
Partitions = Collection[tuple[str, date]]  # customer and day
SlicesByPartition = Mapping[tuple[str, date], Sequence[Slice]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextFiles:
    """The files that the next version adds and those that it no longer has. In a rewrite both hold the same rows.

    `merged` are those of the added files that were written for this version alone. A removal removes partitions and
    replaces none.
    """

    added: tuple[StagedFile, ...]
    replaced: tuple[DataFile, ...]
    merged: tuple[StagedFile, ...]
    rewrite: bool = False
    removal: bool = False

    @property
    def add_actions(self) -> list[AddAction]:
        return [_make_action(file) for file in self.added]


def find_affected_files(snapshot: TableSnapshot, partitions: Partitions) -> tuple[DataFile, ...]:
    """The files that may hold rows of these partitions, including files without recorded bounds."""
    customers: dict[date, list[str]] = {}
    for customer_id, day in partitions:
        customers.setdefault(day, []).append(customer_id)
    return tuple(file for file in snapshot.files if any(file.may_hold(c) for c in customers.get(file.day, ())))


def prepare_replacement(
    start_spark: StartSpark,
    snapshot: TableSnapshot,
    *,
    held: SlicesByPartition,
    partitions: Partitions,
    loads: Sequence[SealedRun] = (),
    staged: Sequence[StagedFile] = (),
) -> NextFiles:
    """The files that replace these partitions by the staged rows of the loads, verified.

    `held` is what the files that may hold these partitions have, of other partitions too. Raises StagingDamaged when
    a row would be lost or changed. Then no merged file remains.
    """
    replaced = find_affected_files(snapshot, partitions)
    requested = {(*load.partition, load.run.run_id) for load in loads}
    days_to_carry = {day for customer_id, day in held if (customer_id, day) not in partitions}
    new = [file for file in staged if any((run.customer_id, file.day, run.run_id) in requested for run in file.runs)]
    oldest = _find_oldest_adopted(snapshot.table) if new else 0.0
    adopted = [
        file
        for file in new
        if file.day not in days_to_carry and _holds_only(file, requested) and file.written_at > oldest
    ]
    kept = {file.path for file in adopted}
    merges = _plan_merges(
        partitions, requested, replaced, [file for file in new if file.path not in kept], days_to_carry
    )
    with naming_damage(snapshot.table, replaced):
        merged = run_merges(start_spark, snapshot, merges)
    try:
        carried_files = [file for file in replaced if file.day in days_to_carry]
        carried = [
            part
            for part in read_slices(snapshot.table, carried_files, snapshot.columns)
            if (part.customer_id, part.day) not in partitions
        ]
        _verify(snapshot, adopted, merged, carried=group_by_partition(carried), loads=loads)
    except BaseException:
        delete_files(snapshot.table, merged)
        raise
    return NextFiles(added=(*adopted, *merged), replaced=replaced, merged=tuple(merged))


def prepare_compaction(
    start_spark: StartSpark, snapshot: TableSnapshot, groups: Sequence[Sequence[DataFile]]
) -> NextFiles:
    """One file in place of each group of files, with the same rows. Raises StagingDamaged as above."""
    merges = [
        Merge(day=group[0].day, inputs=tuple(MergeInput(path=file.path, size=file.size) for file in group))
        for group in groups
    ]
    replaced = tuple(file for group in groups for file in group)
    with naming_damage(snapshot.table, replaced):
        merged = run_merges(start_spark, snapshot, merges)
    try:
        carried = group_by_partition(read_slices(snapshot.table, replaced, snapshot.columns))
        _verify(snapshot, [], merged, carried=carried, loads=())
    except BaseException:
        delete_files(snapshot.table, merged)
        raise
    return NextFiles(added=tuple(merged), replaced=replaced, merged=tuple(merged), rewrite=True)


def run_merges(start_spark: StartSpark, snapshot: TableSnapshot, merges: Sequence[Merge]) -> list[StagedFile]:
    """Carry out the merges: small ones in this process, others in Spark, one task each. Gives the new files."""
    if not merges:
        return []
    table = snapshot.table
    schema = pa.schema([field for field in to_arrow_schema(snapshot.columns) if field.name != DATE_COLUMN])
    if sum(merge.size for merge in merges) <= MAX_BYTES_IN_PROCESS:
        return [file for merge in merges for file in carry_out(table.location, table.folder, schema, merge)]
    frame = start_spark().createDataFrame(pa.table({"merge": [encode_merge(merge) for merge in merges]}))
    results = frame.mapInArrow(partial(merge_in_task, table.location, table.folder, schema), "files string")
    return [file for row in results.collect() for file in decode_files(json.loads(row["files"]))]


def delete_files(table: WarehouseTable, files: Iterable[StagedFile]) -> None:
    """Delete files that no version refers to. Call it only when no commit can refer to them any more."""
    for file in files:
        table.store.delete(table.name_of(file.path))


def _plan_merges(
    partitions: Partitions,
    requested: Collection[tuple[str, date, str]],
    replaced: Sequence[DataFile],
    new: Sequence[StagedFile],
    days_to_carry: Collection[date],
) -> list[Merge]:
    inputs: dict[date, list[MergeInput]] = {}
    for file in replaced:
        if file.day in days_to_carry:
            without = frozenset(customer_id for customer_id, day in partitions if day == file.day)
            inputs.setdefault(file.day, []).append(MergeInput(path=file.path, size=file.size, without=without))
    for staged in new:
        only = frozenset(
            (run.customer_id, run.run_id)
            for run in staged.runs
            if (run.customer_id, staged.day, run.run_id) in requested
        )
        inputs.setdefault(staged.day, []).append(MergeInput(path=staged.path, size=staged.size, only=only))
    return [Merge(day=day, inputs=tuple(files)) for day, files in sorted(inputs.items())]


def _holds_only(file: StagedFile, requested: Collection[tuple[str, date, str]]) -> bool:
    return all((run.customer_id, file.day, run.run_id) in requested for run in file.runs)


def _find_oldest_adopted(table: WarehouseTable) -> float:
    """In milliseconds since 1970. A file that was not written later is not adopted."""
    return (table.store.read_clock() - MAX_ADOPTED_AGE.total_seconds()) * 1000


def _verify(
    snapshot: TableSnapshot,
    adopted: Sequence[StagedFile],
    merged: Sequence[StagedFile],
    *,
    carried: SlicesByPartition,
    loads: Sequence[SealedRun],
) -> None:
    """Compare what was written, read back, with what is expected. Rows that are carried over must be the same."""
    table = snapshot.table
    slices = [
        *read_slices(table, adopted, ()),
        *read_slices(table, merged, snapshot.columns if carried else ()),
    ]
    found = group_by_partition(slices)
    new = {load.partition: load for load in loads}
    for partition, held in found.items():
        load = new.get(partition)
        if load is None and sorted(held) != sorted(carried.get(partition, [])):
            key = table.partition_key(*partition)
            raise StagingDamaged(str(table), f"{key} differs from the rows it had before it was carried over")
        if load is not None:
            _verify_load(table, load, held)
    missing = [load for partition, load in new.items() if load.record_count and partition not in found]
    lost = carried.keys() - found.keys()
    if missing or lost:
        absent = missing[0].run if missing else table.partition_key(*min(lost))
        raise StagingDamaged(str(table), f"{absent} is not among the staged rows")


def _verify_load(table: WarehouseTable, load: SealedRun, slices: Sequence[Slice]) -> None:
    rows = sum(part.rows for part in slices)
    staged = {(part.run_id, part.schema_version) for part in slices}
    if staged != {(load.run.run_id, load.facts.schema_version)}:
        raise StagingDamaged(str(table), f"{load.run} came with rows of another run or schema version")
    if rows != load.record_count:
        raise StagingDamaged(str(table), f"{load.run} has {rows} rows, its seal says {load.record_count}")


def _make_action(file: StagedFile) -> AddAction:
    return make_add_action(
        file.path,
        size=file.size,
        values={DATE_COLUMN: file.day.isoformat()},
        written_at=file.written_at,
        row_count=file.row_count,
    )
