"""Opens DuckDB sessions over table versions that show only the visible rows and open no files.

Importing it loads pyarrow's datasets, and with them pandas.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from ads_pipeline.domain.errors import FilesDamaged, WarehouseError
from ads_pipeline.domain.warehouse_names import CURRENT_SUFFIX, DAYS, SETTLED_SUFFIX
from ads_pipeline.lake.readers.removed_days import RemovedDays
from ads_pipeline.lake.readers.visible_rows import TableView, to_arrow
from ads_pipeline.lake.warehouse.delta_commits import TableSnapshot
from ads_pipeline.lake.warehouse.duckdb_files import connect_to_files
from ads_pipeline.lake.warehouse.error_translation import translate_errors
from ads_pipeline.lake.warehouse.file_damage import DamagedFile, describe_damage, naming_damage
from ads_pipeline.lake.warehouse.table_values import DATE_COLUMN, DataFile, WarehouseTable

_ROWS_PER_BATCH: Final = 100_000  # bounds the memory of a scan
# Without these, a statement could read the variables of Python functions, or load an extension.
_SESSION_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


def connect_duckdb(
    views: Iterable[TableView], own_tables: Sequence[TableSnapshot] = (), *, lasts: bool = True
) -> duckdb.DuckDBPyConnection:
    """A DuckDB session with views of the tables of a warehouse.

    A query has two views: `<query>`, and `<query>_current` with current runs. Each of the tables that no query has is
    a view; with `days`, each query also has `<query>_settled` with figures that the source no longer changes.

    A session shows the rows of the moment at which it was opened; the comments of the views say when that was. If it
    lasts, it refuses to read a day once rows of the day were withdrawn or demoted.

    The session cannot open files, because hidden rows may stand in the same files as visible ones. A second
    connection, which the session's statements cannot name, reads the files and filters the rows.
    """
    session, opened_at = duckdb.connect(config=_SESSION_CONFIG), f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    try:
        filtering: duckdb.DuckDBPyConnection | None = None
        has_days = any(each.table.query_name == DAYS for each in own_tables)
        for snapshot, view in (*((each, None) for each in own_tables), *((each.snapshot, each) for each in views)):
            table = snapshot.table
            if filtering is None:
                filtering = connect_to_files(table.location, preserve_insertion_order=False)  # the order takes memory
                filtering.execute("SET GLOBAL TimeZone = 'UTC'")  # the zone of instants in the table's schema
            with translate_errors(table):
                rows = (
                    _OwnRows(filtering, snapshot)
                    if view is None
                    else _VisibleRows(filtering, view, opened_at if lasts else None)
                )
                session.register(table.query_name, rows)
            names = [table.query_name]
            if view is not None:
                session.execute(_select_current(table))
                names.append(table.query_name + CURRENT_SUFFIX)
            if view is not None and has_days:
                session.execute(_select_settled(table))
                names.append(table.query_name + SETTLED_SUFFIX)
            for name in names:
                comment = f"version {snapshot.version} of the table, opened at {opened_at}"
                session.execute(f"COMMENT ON VIEW {quote_name(name)} IS '{comment}'")
        session.execute("SET TimeZone = 'UTC'")  # else of the machine
        session.execute("SET enable_external_access = false")
        session.execute("SET lock_configuration = true")
    except BaseException:
        session.close()
        raise
    return session


def _select_current(table: WarehouseTable) -> str:
    query, current = quote_name(table.query_name), quote_name(table.query_name + CURRENT_SUFFIX)
    return f"CREATE TEMP VIEW {current} AS FROM {query} WHERE is_current"


def _select_settled(table: WarehouseTable) -> str:
    query, settled = quote_name(table.query_name), quote_name(table.query_name + SETTLED_SUFFIX)
    days = (
        f"SELECT customer_id, {DATE_COLUMN}, run_id FROM {DAYS} "  # noqa: S608 - the names of our own tables
        f"WHERE query_name = '{table.query_name}' AND is_readable AND NOT provisional"
    )
    return f"CREATE TEMP VIEW {settled} AS FROM {query} SEMI JOIN ({days}) USING (customer_id, {DATE_COLUMN}, run_id)"


def quote_name(name: str) -> str:
    """The name of a view or a column as SQL, also when it is a word of SQL."""
    return '"' + name.replace('"', '""') + '"'


class _TableRows(pads.InMemoryDataset):  # type: ignore[misc] # pyarrow ships no types
    """The rows of a table version as an Arrow dataset. DuckDB calls `scanner` for every scan of one.

    The dataset itself holds no rows, so nothing is disclosed to code that reads it in another way.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, snapshot: TableSnapshot, more_columns: str = ""
    ) -> None:
        self._connection, self._table, self._snapshot = connection, snapshot.table, snapshot
        self._store("columns", pa.schema(snapshot.handle.schema().to_arrow()).empty_table())
        super().__init__(connection.table(self._name("columns")).select(f"*{more_columns}").to_arrow_table())
        # DeltaTable.to_pyarrow_dataset (1.6.6) drops files whose log entry lacks the bounds of a filtered column.
        parquet, disk = pads.ParquetFileFormat(), pafs.LocalFileSystem()
        files = [
            parquet.make_fragment(self._table.uri_of(file), disk, partition_expression=self._describe_content(file))
            for file in snapshot.files
        ]
        self._files = pads.FileSystemDataset(files, self.schema, parquet, disk)

    def _store(self, suffix: str, rows: pa.Table) -> None:
        self._connection.register("rows", rows)
        self._connection.execute(f"CREATE TABLE {self._name(suffix)} AS FROM rows")
        self._connection.unregister("rows")

    def _describe_content(self, file: DataFile) -> pads.Expression:
        """Describe what holds for every row of the file."""
        content = pads.scalar(True)
        for name, value in zip(self._table.partition_columns, file.partition, strict=True):
            content &= pads.field(name) == pa.scalar(value).cast(self.schema.field(name).type)
        return content

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None) -> "_Scan":  # noqa: A002 - DuckDB's name
        """The rows that match the filter, with these columns. Files that cannot match are not opened."""
        names = self.schema.names if columns is None else columns
        paths = [file.path for file in self._files.get_fragments(filter)]
        schema = pa.schema([self.schema.field(name) for name in names])
        if not paths:
            return _Scan(schema.empty_table().to_reader())
        self._refuse_removed(paths)
        with self._naming_damage(paths):
            query = self._connection.cursor().execute(self._select(names), {"paths": paths})
            reader = query.to_arrow_reader(_ROWS_PER_BATCH)
        if not reader.schema.equals(schema):  # DuckDB would misinterpret the buffers
            raise WarehouseError(str(self._table), "a file has columns of other types than the table")
        return _Scan(pa.RecordBatchReader.from_batches(schema, self._read(reader, paths, filter)))

    def _refuse_removed(self, paths: Sequence[str]) -> None:
        """Raise WarehouseError for files that must not be read any more."""

    def _read(self, reader: pa.RecordBatchReader, paths: Sequence[str], row_filter: Any) -> Iterator[pa.RecordBatch]:
        with self._naming_damage(paths):
            for batch in reader:
                yield batch if row_filter is None else batch.filter(row_filter)

    @contextmanager
    def _naming_damage(self, _paths: Sequence[str]) -> Iterator[None]:
        with translate_errors(self._table):
            yield

    def _select(self, names: Sequence[str], joined: str = "") -> str:
        columns = ", ".join(map(quote_name, names))
        kinds = {"string": "VARCHAR", "date32[day]": "DATE"}
        types = {name: kinds[str(self.schema.field(name).type)] for name in self._table.partition_columns}
        hive = f"hive_types = {{{', '.join(f'{name!r}: {kind}' for name, kind in types.items())}}}" if types else ""
        partitioned = f", hive_partitioning = true, {hive}" if types else ""
        return (
            f"SELECT {columns} FROM (FROM {self._name('columns')} UNION ALL BY NAME FROM read_parquet($paths, "  # noqa: S608
            f"union_by_name = true{partitioned})){joined}"
        )

    def _name(self, suffix: str) -> str:
        return f"{self._table.query_name}_{suffix}"


class _OwnRows(_TableRows):
    """All rows of a table that no query has: none of them is hidden."""


class _VisibleRows(_TableRows):
    """The visible rows of a query's table."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, view: TableView, opened_at: str | None) -> None:
        super().__init__(connection, view.snapshot, ", true AS is_current")
        self._view, self._opened_at, self._removed = view, opened_at, RemovedDays(view.snapshot)
        self._store("runs", to_arrow(view))

    def _refuse_removed(self, paths: Sequence[str]) -> None:
        """Raise WarehouseError when rows of a day in these files have been removed from the table."""
        if self._opened_at is None:
            return
        with translate_errors(self._table):
            removed = self._removed.find()
        wanted = set(paths) if removed else set()
        days = sorted(
            {file.day for file in self._view.snapshot.files if self._table.uri_of(file) in wanted} & removed
        )
        if days:
            more = f" and {len(days) - 1:,} other days" if len(days) > 1 else ""
            problem = f"rows of {days[0]}{more} were withdrawn or demoted after this session was opened at"
            raise WarehouseError(str(self._table), f"{problem} {self._opened_at}; open a new session")

    @contextmanager
    def _naming_damage(self, paths: Sequence[str]) -> Iterator[None]:
        """Raise FilesDamaged with the visible partitions of the first damaged file, when there is one."""
        wanted = set(paths)
        try:
            files = [file for file in self._view.snapshot.files if self._table.uri_of(file) in wanted]
            with translate_errors(self._table), naming_damage(self._table, files):
                yield
        except FilesDamaged as error:
            first: DamagedFile = error.damaged[0]
            runs = self._view.visible_runs
            held = sorted({customer for customer, day, _run, _current in runs if first.may_hold(customer, day)})
            raise describe_damage(self._table, error.damaged, held) from error

    def _select(self, names: Sequence[str], joined: str = "") -> str:
        runs = f" JOIN {self._name('runs')} USING (customer_id, {DATE_COLUMN}, run_id)"
        return super()._select(names, joined + runs)

    def _describe_content(self, file: DataFile) -> pads.Expression:
        content, customer = super()._describe_content(file), pads.field("customer_id")
        if file.min_customer_id is None or file.max_customer_id is None:
            return content
        return content & (customer >= file.min_customer_id) & (customer <= file.max_customer_id)


class _Scan:
    """A scan as DuckDB needs it. A real `pyarrow.dataset.Scanner` reads ahead in threads, which crash on exit."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        return self._reader
