"""Replaces rows of a Delta table by their keys. Each partition of the table is one file, and each change one commit.

The ledger is not known here. Nothing else writes to these tables, and none of their rows is a fact: all of them can
be derived again.
"""

import io
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema as DeltaSchema
from deltalake.transaction import AddAction

from ads_pipeline.domain.errors import FilesDamaged, StagingDamaged
from ads_pipeline.domain.quoting import printable
from ads_pipeline.lake.warehouse.columns import TableColumn, read_delta_columns
from ads_pipeline.lake.warehouse.delta_commits import (
    CommitOutcome,
    TableSnapshot,
    commit_files,
    create_table,
    make_add_action,
    open_table,
)
from ads_pipeline.lake.warehouse.table_values import DataFile, WarehouseTable

Partition = tuple[str, ...]  # the values of the partition columns
AS_OF: Final = "as_of"  # when a row was described; rows that differ in nothing else are the same


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """The columns of a table's files, without the partition columns, and those that order and identify the rows.

    Partition columns are texts, unless `dates`.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    dates: bool = False

    def columns(self, table: WarehouseTable) -> tuple[TableColumn, ...]:
        """All columns of the table."""
        kind = pa.date32() if self.dates else pa.string()
        partitions = [pa.field(name, kind) for name in table.partition_columns]
        return read_delta_columns(DeltaSchema.from_arrow(pa.schema([*self.schema, *partitions])))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """The rows that a partition has in place of those with these keys. Without keys, in place of all."""

    rows: pa.Table
    keys: Collection[tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPartition:
    """A partition whose rows differ: all of its rows after the change, and how many of them are other ones."""

    partition: Partition
    rows: pa.Table
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRows:
    """The files that a commit adds and removes, and how many rows it changes."""

    added: tuple[AddAction, ...] = ()
    removed: tuple[DataFile, ...] = ()
    changed: int = 0


def open_rows(table: WarehouseTable, layout: RowLayout) -> TableSnapshot:
    """The newest version. The table is created when there is none."""
    while (snapshot := open_table(table)) is None:
        create_table(table, layout.columns(table))
    return snapshot


def read_rows(snapshot: TableSnapshot, layout: RowLayout, partition: Partition) -> pa.Table:
    """The rows of a partition. Raises FilesDamaged when its file is missing or damaged."""
    files = [file for file in snapshot.files if file.partition == partition]
    return pa.concat_tables([layout.schema.empty_table(), *(_read(snapshot, layout, file) for file in files)])


def find_changed(
    snapshot: TableSnapshot, layout: RowLayout, changes: Iterable[tuple[Partition, RowChange]]
) -> Iterator[ChangedPartition]:
    """Yield the partitions whose rows differ from the changes. Nothing is written.

    A damaged file differs when all rows of its partition are given. Otherwise it raises FilesDamaged.
    """
    for partition, change in changes:
        try:
            present = read_rows(snapshot, layout, partition)
        except FilesDamaged:
            if change.keys is not None:
                raise
            yield ChangedPartition(partition=partition, rows=change.rows, changed=len(change.rows))
            continue
        is_replaced = _find_keys(present, layout.key, change.keys)
        rows, changed = _keep_unchanged(layout, present.filter(is_replaced), change.rows)
        if changed:
            kept = present.filter(pc.invert(is_replaced))
            yield ChangedPartition(partition=partition, rows=pa.concat_tables([kept, rows]), changed=changed)


def write_rows(snapshot: TableSnapshot, layout: RowLayout, changed: Iterable[ChangedPartition]) -> NextRows:
    """Write the files of these partitions, one after the other. No reader sees them before the commit."""
    added, partitions, count = list[AddAction](), set[Partition](), 0
    for each in changed:
        partitions.add(each.partition)
        count += each.changed
        if len(each.rows):
            added.append(_write(snapshot.table, layout, each.partition, each.rows))
    removed = tuple(file for file in snapshot.files if file.partition in partitions)
    return NextRows(added=tuple(added), removed=removed, changed=count)


def commit_rows(snapshot: TableSnapshot, rows: NextRows, marks: Mapping[str, int], note: str) -> bool:
    """Commit the files. False when another commit came first: then find the changes again.

    The files of a commit that lost are deleted. While its outcome is unknown they stay, and vacuum removes them.
    """
    token = uuid.uuid4().hex
    outcome = commit_files(snapshot, removed=rows.removed, added=rows.added, token=token, marks=marks, note=note)
    if outcome is CommitOutcome.LOST:
        for action in rows.added:
            snapshot.table.store.delete(snapshot.table.name_of(action.path))
    return outcome is CommitOutcome.COMMITTED


def _keep_unchanged(layout: RowLayout, before: pa.Table, after: pa.Table) -> tuple[pa.Table, int]:
    """The rows after the change, and how many differ. A row that differs only in `as_of` stays as it was."""
    names = [name for name in layout.schema.names if name != AS_OF]
    before, after = (_sort(layout, table) for table in (before, after))
    if before.select(names).equals(after.select(names)):
        return before, 0
    earlier = dict(zip(_rows(before, layout.key), enumerate(_rows(before, names)), strict=True))
    unchanged, new = list[int](), list[int]()
    for number, (key, row) in enumerate(zip(_rows(after, layout.key), _rows(after, names), strict=True)):
        position, found = earlier.pop(key, (None, None))
        if position is not None and found == row:
            unchanged.append(position)
        else:
            new.append(number)
    return pa.concat_tables(
        [before.take(pa.array(unchanged, pa.int64())), after.take(pa.array(new, pa.int64()))]
    ), len(new) + len(earlier)


def _rows(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[object, ...]]:
    """The values of each row. Times are numbers, which are made in a tenth of the time."""
    columns = (table[name] for name in names)
    return zip(
        *((each.cast(pa.int64()) if pa.types.is_timestamp(each.type) else each).to_pylist() for each in columns),
        strict=True,
    )


def _sort(layout: RowLayout, table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in layout.key]).combine_chunks()


def _find_keys(table: pa.Table, names: Sequence[str], keys: Collection[tuple[str, ...]] | None) -> pa.Array:
    """A flag for each row: whether it has one of the keys. Without keys, every row has one."""
    if keys is None:
        return pa.repeat(pa.scalar(value=True), len(table))
    joined = pc.binary_join_element_wise(*(table[name].cast(pa.string()) for name in names), "|")
    return pc.is_in(joined, value_set=pa.array(["|".join(key) for key in keys], pa.string()))


def _read(snapshot: TableSnapshot, layout: RowLayout, file: DataFile) -> pa.Table:
    table = snapshot.table
    try:
        found = pq.ParquetFile(io.BytesIO(table.store.read(table.name_of(file.path)))).read()
        return found.select(layout.schema.names).cast(layout.schema)
    except (FileNotFoundError, pa.ArrowException, KeyError) as error:
        problem = f"data file {printable(file.path)} is missing or damaged; ads-pipeline reconcile writes it again"
        raise FilesDamaged(str(table), problem, ()) from error


def _write(table: WarehouseTable, layout: RowLayout, partition: Partition, rows: pa.Table) -> AddAction:
    content = io.BytesIO()
    pq.write_table(_sort(layout, rows), content, compression="zstd", store_schema=False)
    values = table.name_values(partition)
    folders = "".join(f"{name}={value}/" for name, value in values.items())
    path = f"{folders}{uuid.uuid4().hex}.parquet"
    table.store.create(table.name_of(path), content.getvalue())
    info = table.store.head(table.name_of(path))
    if info is None:
        raise StagingDamaged(str(table), f"{path} was deleted as soon as it was written")
    written_at = int(info.modified_at * 1000)
    return make_add_action(path, size=info.size, values=values, written_at=written_at, row_count=rows.num_rows)
