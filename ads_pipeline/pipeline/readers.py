"""Shows readers what is safe: the rows of a query through Spark or DuckDB, and the days that are missing.

It reads the ledger and the tables and changes neither. Why a day is missing is said by `gaps`; what is amiss is
mended by `reconciliation`.
"""

from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Final

import duckdb
from pyspark.sql import DataFrame, SparkSession

from ads_pipeline.domain.partition import PartitionKey, days_between
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.pipeline.gaps import Gap, gap_of
from ads_pipeline.warehouse.values import Table
from ads_pipeline.warehouse.visible_rows import TableVersion, connect, newest_version, spark_rows

MOST_LOOKS: Final = 5


class Readers:
    """What readers may see, asked of one ledger and one warehouse. Nothing of it goes stale: each call asks anew."""

    def __init__(self, *, ledger: LedgerReader, warehouse_root: Path, source: str) -> None:
        self._ledger, self._root, self._source = ledger, warehouse_root, source

    def rows(self, spark: SparkSession, query_name: str) -> DataFrame | None:
        """The visible rows; None when the query has no table yet.

        `is_current` is false for rows of an accepted run whose newer, accepted successor is not loaded yet; filter by
        it to read strictly.
        """
        opened = self._opened(query_name)
        return None if opened is None else spark_rows(spark, opened)

    def connect(self, query_names: Iterable[str]) -> duckdb.DuckDBPyConnection:
        """A DuckDB session with a view for each query that has a table, and `<query>_current` to read strictly."""
        opened = [self._opened(query_name) for query_name in query_names]
        return connect((each for each in opened if each is not None), root=self._root)

    def sums(self, query_name: str, column: str, *, since: date, until: date) -> dict[PartitionKey, int]:
        """A column added up for each visible partition; nothing where there is no table or no such column."""
        opened = self._opened(query_name, since=since, until=until)
        if opened is None:
            return {}
        with connect([opened], root=self._root) as connection:
            if column not in connection.table(query_name).columns:
                return {}
            found = connection.execute(
                f"SELECT customer_id, logical_date, sum({column})::BIGINT FROM {query_name} "  # noqa: S608 - known names
                "WHERE logical_date BETWEEN ? AND ? GROUP BY ALL",
                [since, until],
            ).fetchall()
        return {opened.table.key(customer, day): total for customer, day, total in found}

    def gaps(self, query_name: str, *, since: date, until: date, customers: Sequence[str] | None = None) -> list[Gap]:
        """The days that are expected and not visible, by day and customer.

        Expected is every day for each of these customers; unless they are named, for all the ledger knows.
        """
        wanted = self._ledger.customers(self._source) if customers is None else sorted(set(customers))
        found = self._ledger.standings(source=self._source, query_name=query_name, since=since, until=until)
        standings = {standing.state.key: standing for standing in found}
        gaps = (
            gap_of(key, standings.get(key))
            for day in days_between(since, until)
            for key in (
                PartitionKey(source=self._source, customer_id=customer, query_name=query_name, logical_date=day)
                for customer in wanted
            )
        )
        return [gap for gap in gaps if gap is not None]

    def _opened(
        self, query_name: str, *, since: date | None = None, until: date | None = None
    ) -> TableVersion | None:
        """A version of the table that is no older than any pointer, in these days, that was read after it.

        Were it older, a partition that was loaded in between would show neither its old nor its new rows.
        """
        table = Table(root=self._root, source=self._source, query_name=query_name)
        for _look in range(MOST_LOOKS):
            version = newest_version(table)
            if version is None:
                return None
            showing = self._ledger.showing(source=self._source, query_name=query_name, since=since, until=until)
            opened = TableVersion(table=table, version=version, passes=showing.runs)
            if showing.table_version <= version:
                break
        return opened  # also of a table that was put back from a copy: `reconciliation` finds what it lacks
