"""Reads the visible rows of the warehouse through Spark or DuckDB.

Nothing here writes. Repair is in `pipeline.reconciliation`; missing days are listed by `day_conditions`.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from ads_pipeline.domain.errors import LogDamaged
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.warehouse_names import PARTITION_COLUMNS
from ads_pipeline.lake.readers.visible_rows import TableView, leave_out_damaged, open_newest_version, read_with_spark
from ads_pipeline.lake.warehouse.columns import LONG_TYPE, TableColumn
from ads_pipeline.lake.warehouse.delta_commits import TableSnapshot
from ads_pipeline.lake.warehouse.table_values import WarehouseTable
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.ledger.state.pointers import Publications
from ads_pipeline.settings.query_file import GoogleApis

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession

_LOG: Final = logging.getLogger(__name__)
MAX_VERSION_READS: Final = 5


def log_damage(error: LogDamaged) -> None:
    """Log a table that cannot be opened."""
    log_event(_LOG, LogEvent.FILES_DAMAGED, table=error.table, problem=error.problem)


class WarehouseSettings(Protocol):
    """The settings of a deployment that say where its warehouse is, and of which source."""

    @property
    def google_apis(self) -> GoogleApis: ...

    @property
    def warehouse_location(self) -> str: ...


class Readers:
    """Read access to one warehouse. Every call reads the ledger again, so results are never stale."""

    def __init__(self, *, publications: Publications, warehouse_location: str, source: str) -> None:
        self._publications = publications
        self._location, self._source = warehouse_location, source

    @classmethod
    def of_deployment(cls, ledger: LedgerReader, settings: WarehouseSettings) -> Self:
        return cls(
            publications=ledger.publications,
            warehouse_location=settings.warehouse_location,
            source=settings.google_apis.source,
        )

    def read_rows(self, spark: "SparkSession", query_name: str) -> "DataFrame | None":
        """Return the visible rows, or None when the query has no table yet.

        `is_current` is false for the rows of a run while a newer accepted run waits to be loaded.
        """
        view = self._open_view(query_name)
        return None if view is None else read_with_spark(spark, view)

    def connect(
        self, query_names: Iterable[str], *, on_damage: Callable[[LogDamaged], None] = log_damage
    ) -> "duckdb.DuckDBPyConnection":
        """Open a DuckDB session with the views `<query>` and `<query>_current` for each query that has a table.

        `<query>_current` shows only the rows where `is_current` is true, and `<query>_settled` those that the source
        no longer changes. The tables `days`, `accounts`, `restatements` and `loads` are views as well. The session
        shows the rows of now: later it refuses to read a day of which rows were withdrawn or demoted. Tables whose
        log is damaged have no view; `on_damage` is called for each, and by default logs it.
        """
        views, own_tables = list[TableView](), list[TableSnapshot]()
        for query_name in query_names:
            with _reporting(on_damage):
                view = self._open_view(query_name)
                views += [] if view is None else [view]
        for name in PARTITION_COLUMNS:  # after the rows, so that no row is shown of which `days` knows nothing yet
            with _reporting(on_damage):
                snapshot = open_newest_version(self._table(name))
                own_tables += [] if snapshot is None else [snapshot]
        return _connect(views, own_tables)

    def sum_per_partition(self, query_name: str, column: str, *, since: date, until: date) -> dict[PartitionKey, int]:
        """Sum a column of integers per visible partition, without a limit on the sum.

        Without the table, or where the column does not exist or has another type, the result is empty. Partitions in
        damaged files are left out, and so is a table whose log is damaged.
        """
        try:
            view = self._open_view(query_name, since=since, until=until)
        except LogDamaged as error:
            log_damage(error)
            return {}
        if view is None or TableColumn(name=column, type=LONG_TYPE) not in view.snapshot.columns:
            return {}
        # A sum of BIGINT is a HUGEINT, which no number of rows exceeds.
        statement = (
            f'SELECT customer_id, logical_date, sum("{column}") FROM "{query_name}" '  # noqa: S608 - known names
            f'WHERE logical_date BETWEEN ? AND ? GROUP BY ALL HAVING count("{column}") > 0'
        )
        rows = _read_undamaged(view, statement, [since, until])
        return {view.snapshot.table.partition_key(customer, day): total for customer, day, total in rows}

    def _table(self, name: str) -> WarehouseTable:
        return WarehouseTable(location=self._location, source=self._source, query_name=name)

    def _open_view(self, query_name: str, *, since: date = date.min, until: date = date.max) -> TableView | None:
        """Pair a table version with visible runs that were published no later than it.

        A partition that is loaded between the two reads would otherwise show neither its old nor its new rows.
        """
        window = DayWindow(source=self._source, query_name=query_name, since=since, until=until)
        table = self._table(query_name)
        for _attempt in range(MAX_VERSION_READS):
            snapshot = open_newest_version(table)
            if snapshot is None:
                return None
            visible = self._publications.visible_runs(window)
            view = TableView(snapshot=snapshot, visible_runs=visible.runs)
            if visible.table_version <= snapshot.version:
                break
        return view  # a table restored from a backup may stay older; `reconcile` reports what it lacks


@contextmanager
def _reporting(on_damage: Callable[[LogDamaged], None]) -> Iterator[None]:
    try:
        yield
    except LogDamaged as error:
        on_damage(error)


def _read_undamaged(view: TableView, statement: str, values: Sequence[Any]) -> list[Any]:
    """The rows of a statement, without those in damaged files."""
    import duckdb  # noqa: PLC0415 - only sessions need it

    while True:
        try:
            with _connect([view], lasts=False) as connection:
                return connection.execute(statement, values).fetchall()
        except duckdb.Error:  # its cause is a text
            undamaged = leave_out_damaged(view)
            if undamaged is view:
                raise
            view = undamaged


def _connect(
    views: Iterable[TableView], own_tables: Sequence[TableSnapshot] = (), *, lasts: bool = True
) -> "duckdb.DuckDBPyConnection":
    from ads_pipeline.lake.readers.sql_session import connect_duckdb  # noqa: PLC0415 - it loads pandas

    return connect_duckdb(views, own_tables, lasts=lasts)
