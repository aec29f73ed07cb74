"""Merges data files of one day, inside a Spark task or here: keeps some rows, in the order of customers."""

import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ads_pipeline.lake.storage.open_store import open_store
from ads_pipeline.lake.storage.store import Store
from ads_pipeline.lake.warehouse.file_writer import FileWriter, encode_files
from ads_pipeline.lake.warehouse.table_values import DATE_COLUMN, HeldRun, StagedFile

ROWS_PER_BATCH: Final = 1 << 16
# One Spark task and one reader thread process a file. 128 MiB is one HDFS block and Spark's default read size, and
# far more than one day of most queries.
TARGET_FILE_BYTES: Final = 128 << 20

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeInput:
    """A file, and which of its rows to keep: those of some runs of customers, or all but those of some customers."""

    path: str
    size: int
    only: frozenset[tuple[str, str]] | None = None
    without: frozenset[str] = frozenset()

    def keeps(self, customer_id: str, run_id: str) -> bool:
        if self.only is not None:
            return (customer_id, run_id) in self.only
        return customer_id not in self.without


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Files of one day that become one file, or several if it were too large."""

    day: date
    inputs: tuple[MergeInput, ...]

    @property
    def size(self) -> int:
        return sum(each.size for each in self.inputs)


def encode_merge(merge: Merge) -> str:
    inputs = [
        [each.path, each.size, None if each.only is None else sorted(each.only), sorted(each.without)]
        for each in merge.inputs
    ]
    return json.dumps([merge.day.isoformat(), inputs])


def merge_in_task(location: str, folder: str, schema: pa.Schema, batches: Batches) -> Batches:
    """Carry out the merges of these batches. The results are the new files as JSON."""
    for batch in batches:
        results = [
            json.dumps(encode_files(carry_out(location, folder, schema, _decode_merge(text))))
            for text in batch["merge"].to_pylist()
        ]
        yield pa.RecordBatch.from_arrays([pa.array(results, pa.string())], ["files"])


def carry_out(location: str, folder: str, schema: pa.Schema, merge: Merge) -> list[StagedFile]:
    """Write the new files of a merge."""
    store, writer = open_store(location), FileWriter(location, folder, merge.day, max_bytes=TARGET_FILE_BYTES)
    sorted_parts = [_read_parts(store, folder, schema, each) for each in merge.inputs]
    for (customer_id, run_id), rows in heapq.merge(*sorted_parts, key=lambda part: part[0][0]):
        writer.add(rows, [HeldRun(customer_id, run_id, rows.num_rows)])
    return writer.close()


def read_files_in_task(location: str, folder: str, schema: pa.Schema, batches: Batches) -> Batches:
    """All rows of the files whose paths and days these batches hold, with the table's columns."""
    store = open_store(location)
    for batch in batches:
        for path, day in zip(batch["path"].to_pylist(), batch["day"].to_pylist(), strict=True):
            with store.open(f"{folder}/{path}") as file:
                for rows in pq.ParquetFile(file).iter_batches(ROWS_PER_BATCH):
                    days = pa.repeat(pa.scalar(day, pa.date32()), rows.num_rows)
                    table = pa.table(rows).append_column(DATE_COLUMN, days)
                    yield from conform(table, schema).to_batches()


def _decode_merge(text: str) -> Merge:
    day, inputs = json.loads(text)
    return Merge(
        day=date.fromisoformat(day),
        inputs=tuple(
            MergeInput(
                path=path,
                size=size,
                only=None if only is None else frozenset(map(tuple, only)),
                without=frozenset(without),
            )
            for path, size, only, without in inputs
        ),
    )


def _read_parts(
    store: Store, folder: str, schema: pa.Schema, merge_input: MergeInput
) -> Iterator[tuple[tuple[str, str], pa.Table]]:
    """The rows to keep in the order of the file, a part for each customer and run, and for each batch."""
    with store.open(f"{folder}/{merge_input.path}") as file:
        for batch in pq.ParquetFile(file).iter_batches(ROWS_PER_BATCH):
            table = conform(pa.table(batch), schema)
            for start, end in _find_parts(table):
                run = table["customer_id"][start].as_py(), table["run_id"][start].as_py()
                if merge_input.keeps(*run):
                    yield run, table.slice(start, end - start)


def _find_parts(table: pa.Table) -> Sequence[tuple[int, int]]:
    """Find where the customer or the run changes."""
    customers, runs = table["customer_id"].combine_chunks(), table["run_id"].combine_chunks()
    changed = pc.or_(pc.not_equal(customers[1:], customers[:-1]), pc.not_equal(runs[1:], runs[:-1]))
    starts = [0, *(pc.add(pc.indices_nonzero(changed), 1)).to_pylist()]
    return list(zip(starts, [*starts[1:], table.num_rows], strict=True))


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly these columns. One that it lacks is null."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
