"""Writes data files of a table inside a Spark task, under their final names. Readers see them after a commit."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ads_pipeline.domain.errors import StagingDamaged
from ads_pipeline.lake.storage.open_store import open_store
from ads_pipeline.lake.warehouse.table_values import DATE_COLUMN, HeldRun, StagedFile, StagedRun, name_data_file

INSTANT: Final = pa.timestamp("us", tz="UTC")  # as Delta has it
ROWS_PER_ROW_GROUP: Final = 100_000
MAX_FILE_BYTES: Final = 32 << 20  # a file is in memory until it is complete


class StagedRows:
    """Receives the rows of accepted runs in the order of day and customer, and writes files of one day each."""

    def __init__(self, location: str, folder: str, schema_version: str) -> None:
        self._location, self._folder, self._schema_version = location, folder, schema_version
        self._day: date | None = None
        self._writer = FileWriter(location, folder, date.min)
        self._files: list[StagedFile] = []

    def add(self, day: date, runs: Sequence[StagedRun], rows: pa.Table) -> None:
        """Add the rows of these runs of a day, which stand in the table one after the other."""
        if day != self._day:
            self._files += self._writer.close()
            self._day, self._writer = day, FileWriter(self._location, self._folder, day)
        start = 0
        for part in _split_long_run(runs):
            count = sum(run.rows for run in part)
            keyed = add_keys(part, self._schema_version, rows.slice(start, count))
            self._writer.add(keyed, [run.held for run in part if run.rows])
            start += count

    def finish(self) -> list[StagedFile]:
        """Write what is left. Gives all files."""
        return [*self._files, *self._writer.close()]


class FileWriter:
    """Writes rows of one day that arrive in the order of their customers. A new file begins when one is large."""

    def __init__(self, location: str, folder: str, day: date, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._location, self._folder, self._day, self._max_bytes = location, folder, day, max_bytes
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._open: _OpenFile | None = None
        self._runs: list[HeldRun] = []
        self._files: list[StagedFile] = []

    def add(self, rows: pa.Table, runs: Iterable[HeldRun]) -> None:
        """Add rows with the table's columns, and say which runs they belong to."""
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._runs += runs
        if self._waiting_rows >= ROWS_PER_ROW_GROUP and self._write_waiting().size >= self._max_bytes:
            self._store()

    def close(self) -> list[StagedFile]:
        """Write what is left. Gives all files; without rows there are none."""
        if self._waiting:
            self._write_waiting()
        if self._open is not None:
            self._store()
        return self._files

    def _write_waiting(self) -> "_OpenFile":
        rows = pa.concat_tables(self._waiting, promote_options="default").combine_chunks()
        self._waiting, self._waiting_rows = [], 0
        if self._open is None:
            self._open = _OpenFile(rows.schema)
        self._open.write(rows)
        return self._open

    def _store(self) -> None:
        content = b"" if self._open is None else self._open.close()
        path = name_data_file(self._day, {run.customer_id for run in self._runs})
        store, name = open_store(self._location), f"{self._folder}/{path}"
        if not store.create(name, content):
            raise StagingDamaged(self._folder, f"{path} exists already")
        if (info := store.head(name)) is None:
            raise StagingDamaged(self._folder, f"{path} was deleted as soon as it was written")
        written_at = int(info.modified_at * 1000)
        self._files.append(StagedFile(path=path, size=len(content), written_at=written_at, runs=tuple(self._runs)))
        self._open, self._runs = None, []


class _OpenFile:
    """A Parquet file in memory."""

    def __init__(self, schema: pa.Schema) -> None:
        self._content = io.BytesIO()
        self._parquet = pq.ParquetWriter(self._content, schema, store_schema=False)

    @property
    def size(self) -> int:
        return self._content.tell()

    def write(self, rows: pa.Table) -> None:
        self._parquet.write_table(rows, row_group_size=ROWS_PER_ROW_GROUP)

    def close(self) -> bytes:
        self._parquet.close()
        return self._content.getvalue()


def add_keys(runs: Sequence[StagedRun], schema_version: str, rows: pa.Table) -> pa.Table:
    """The rows with the columns of their runs in front. Columns of the same names are left out."""
    repeated = pa.array(np.repeat(np.arange(len(runs), dtype=np.int32), [run.rows for run in runs]))
    values = {
        "customer_id": [run.customer_id for run in runs],
        "run_id": [run.run_id for run in runs],
        "schema_version": [schema_version] * len(runs),
    }
    keys = {
        name: pa.DictionaryArray.from_arrays(repeated, pa.array(each, pa.string())) for name, each in values.items()
    }
    keys |= {
        "currency_code": pa.array([run.currency_code for run in runs], pa.string()).take(repeated),
        "extracted_at": pa.array([run.extracted_at for run in runs], INSTANT).take(repeated),
    }
    others = {name: rows[name] for name in rows.column_names if name not in {*keys, DATE_COLUMN}}
    return pa.table({**keys, **others})


def encode_files(files: Iterable[StagedFile]) -> list[dict[str, Any]]:
    """The files as JSON can carry them to the driver."""
    return [asdict(file) for file in files]


def decode_files(documents: Iterable[Mapping[str, Any]]) -> list[StagedFile]:
    return [StagedFile(**{**each, "runs": tuple(HeldRun(*run) for run in each["runs"])}) for each in documents]


def _split_long_run(runs: Sequence[StagedRun]) -> Iterator[Sequence[StagedRun]]:
    """The runs; a run that stands alone because it is long, in parts of one row group each."""
    if len(runs) > 1:
        yield runs
        return
    (run,) = runs
    for start in range(0, run.rows, ROWS_PER_ROW_GROUP):
        yield [run._replace(rows=min(ROWS_PER_ROW_GROUP, run.rows - start))]
