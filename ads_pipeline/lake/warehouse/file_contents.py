"""Counts and digests the rows of data files with DuckDB.

The digest depends neither on the order of the rows nor on how they are spread over files. Staging compares the rows
of replaced files with the rows of the new files in this way.
"""

from collections.abc import Iterable, Sequence
from datetime import date

from ads_pipeline.lake.warehouse.columns import TableColumn
from ads_pipeline.lake.warehouse.duckdb_files import connect_to_files
from ads_pipeline.lake.warehouse.file_damage import naming_damage
from ads_pipeline.lake.warehouse.table_values import (
    DATE_COLUMN,
    KEY_COLUMNS,
    DataFile,
    Slice,
    StagedFile,
    WarehouseTable,
)


def read_slices(
    table: WarehouseTable,
    files: Sequence[DataFile] | Sequence[StagedFile],
    columns: Iterable[TableColumn],
    *,
    days: tuple[date, date] | None = None,
) -> list[Slice]:
    """The slices that these files hold. The digest covers the given columns; without columns it is 0.

    Raises FilesDamaged when files of a version are damaged.
    """
    if not files:
        return []
    uris = [table.uri_of(file) for file in files]
    since, until = days or (date.min, date.max)
    published = [file for file in files if isinstance(file, DataFile)]
    with naming_damage(table, published), connect_to_files(table.location) as connection:
        connection.execute("SET threads = 2")
        digested = ""
        if columns := [column for column in columns if column.name != DATE_COLUMN]:
            described = connection.execute(f"DESCRIBE FROM {_FILES}", {"paths": uris}).fetchall()
            present = {name for name, *_type in described}
            digested = ", ".join(_quote(each.name) if each.name in present else "NULL" for each in columns)
        digest = f"sum(hash({digested})::HUGEINT)" if digested else "0"
        keys = ", ".join((KEY_COLUMNS[0], f"{DATE_COLUMN}::DATE AS {DATE_COLUMN}", *KEY_COLUMNS[1:]))
        query = (
            f"SELECT {keys}, count(*), {digest} FROM {_FILES} "  # noqa: S608 - names of our own table, quoted
            f"WHERE {DATE_COLUMN}::DATE BETWEEN $since AND $until GROUP BY ALL"
        )
        rows = connection.execute(query, {"paths": uris, "since": since, "until": until}).fetchall()
    return [Slice(*row) for row in rows]


_FILES = "read_parquet($paths, hive_partitioning = true, hive_types_autocast = false, union_by_name = true)"


def group_by_partition(slices: Iterable[Slice]) -> dict[tuple[str, date], list[Slice]]:
    """The slices of each partition. There is more than one only if another application mixed runs."""
    grouped: dict[tuple[str, date], list[Slice]] = {}
    for part in slices:
        grouped.setdefault((part.customer_id, part.day), []).append(part)
    return grouped


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
