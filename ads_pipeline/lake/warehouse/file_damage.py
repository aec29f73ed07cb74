"""Finds which data files of a table are missing, cut or unreadable, after a read of them has failed.

Only what the store itself says of a file counts. A store that does not answer raises OSError, and no file is damaged.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ads_pipeline.domain.errors import AdsPipelineError, FilesDamaged
from ads_pipeline.domain.quoting import printable
from ads_pipeline.lake.warehouse.error_translation import is_external
from ads_pipeline.lake.warehouse.table_values import DataFile, WarehouseTable

_CUSTOMERS_NAMED: Final = 5
_ROWS_PER_BATCH: Final = 1 << 16
_MOST_BYTES_READ: Final = 1 << 30  # so that a failure of another cause is not followed by hours of reading


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedFile:
    """A file whose rows cannot be read any more."""

    file: DataFile
    problem: str

    def __str__(self) -> str:
        return f"data file {printable(self.file.path)} {self.problem}"

    def may_hold(self, customer_id: str, day: date) -> bool:
        return self.file.day == day and self.file.may_hold(customer_id)


@contextmanager
def naming_damage(table: WarehouseTable, files: Sequence[DataFile]) -> Iterator[None]:
    """Raise FilesDamaged when reading these files fails because some of them are damaged."""
    try:
        yield
    except AdsPipelineError:
        raise
    except Exception as error:
        if is_external(error) and (damaged := find_damage(table, files)):
            raise describe_damage(table, damaged) from error
        raise


def find_damage(table: WarehouseTable, files: Sequence[DataFile]) -> list[DamagedFile]:
    """Those of the files that are missing or have another size than the log says; else those that cannot be read.

    The second step reads whole files, up to 1 GiB of them.
    """
    return find_missing_or_cut(table, files) or list(_find_unreadable(table, files))


def find_missing_or_cut(table: WarehouseTable, files: Sequence[DataFile]) -> list[DamagedFile]:
    """By one listing of the table's folder. What it lacks is looked up once more."""
    sizes = {info.name: info.size for info in table.store.list(table.folder)}
    differing = [file for file in files if sizes.get(table.name_of(file.path)) != file.size]
    found = [(file, _find_size_problem(table, file)) for file in differing]
    return [DamagedFile(file=file, problem=problem) for file, problem in found if problem]


def describe_damage(
    table: WarehouseTable, damaged: Sequence[DamagedFile], customers: Sequence[str] | None = None
) -> FilesDamaged:
    """The error that names the first file, its day, its customers and the repair.

    `customers` are those of the first file, where they are known better than by its name.
    """
    first = damaged[0]
    others = f" (and {len(damaged) - 1:,} other files)" if len(damaged) > 1 else ""
    repair = f"ads-pipeline reconcile --query {table.query_name} loads them again from raw"
    return FilesDamaged(str(table), f"{first}{others}; {name_held(first.file, customers)}; {repair}", tuple(damaged))


def name_held(file: DataFile, customers: Sequence[str] | None) -> str:
    """The partitions that a file held: of these customers, where they are known, else by its name."""
    return f"it held {file.day} of {_name_customers(file, customers)}"


def _find_size_problem(table: WarehouseTable, file: DataFile) -> str | None:
    info = table.store.head(table.name_of(file.path))
    if info is None:
        return "is missing"
    return None if info.size == file.size else f"has {info.size:,} of {file.size:,} bytes"


def _find_unreadable(table: WarehouseTable, files: Sequence[DataFile]) -> Iterator[DamagedFile]:
    left = _MOST_BYTES_READ
    for file in files:
        left -= file.size
        if left < 0:
            return
        content = table.store.read(table.name_of(file.path))
        try:
            for _batch in pq.ParquetFile(io.BytesIO(content)).iter_batches(_ROWS_PER_BATCH):
                pass
        except (pa.ArrowException, OSError, ValueError) as error:
            yield DamagedFile(file=file, problem=f"cannot be read: {printable(str(error).partition(chr(10))[0])}")


def _name_customers(file: DataFile, customers: Sequence[str] | None) -> str:
    if customers:
        named = ", ".join(customers[:_CUSTOMERS_NAMED])
        more = len(customers) - _CUSTOMERS_NAMED
        return f"customers {named}" + (f" and {more:,} more" if more > 0 else "")
    if file.min_customer_id is None:
        return "any customer"
    return f"customers {file.min_customer_id} to {file.max_customer_id}"
