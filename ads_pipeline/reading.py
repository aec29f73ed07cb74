"""Shows readers what is safe: the rows of a query through Spark or DuckDB, and the days that are missing.

It reads the ledger and the tables and changes neither. What is missing or amiss is mended by `reconciliation`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Final

import duckdb
from pyspark.sql import DataFrame, SparkSession

from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.records import Standing
from ads_pipeline.partition import PartitionKey, days_between
from ads_pipeline.transitions import Status
from ads_pipeline.warehouse.reading import Opened, connect, newest_version, spark_rows
from ads_pipeline.warehouse.records import Table

MOST_LOOKS: Final = 5


class Reason(StrEnum):
    """Why a day is missing. The values complete the sentence "missing because …"."""

    NOTHING_SEALED = "no run was registered"
    UNJUDGED = "a run awaits its verdict"
    WAITING = "it waits for another run"
    REJECTED = "its run was rejected"
    UNLOADED = "it is accepted and not loaded yet"
    DEMOTING = "its rows are being withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """An expected partition that readers do not see. `detail` is what the validator said."""

    key: PartitionKey
    reason: Reason
    detail: str | None = None

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}" + (f": {self.detail}" if self.detail else "")


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

    def _opened(self, query_name: str, *, since: date | None = None, until: date | None = None) -> Opened | None:
        """A version of the table that is no older than any pointer, in these days, that was read after it.

        Were it older, a partition that was loaded in between would show neither its old nor its new rows.
        """
        table = Table(root=self._root, source=self._source, query_name=query_name)
        for _look in range(MOST_LOOKS):
            version = newest_version(table)
            if version is None:
                return None
            showing = self._ledger.showing(source=self._source, query_name=query_name, since=since, until=until)
            opened = Opened(table=table, version=version, passes=showing.runs)
            if showing.table_version <= version:
                break
        return opened  # also of a table that was put back from a copy: `reconciliation` finds what it lacks


def gap_of(key: PartitionKey, standing: Standing | None) -> Gap | None:
    """Why readers do not see this partition; None when they do."""
    if standing is None:
        return Gap(key=key, reason=Reason.NOTHING_SEALED)
    reason = _unread(standing) if standing.state.status is Status.SUCCESS else _unfinished(standing)
    return None if reason is None else Gap(key=key, reason=reason, detail=standing.state.error_message)


def _unfinished(standing: Standing) -> Reason:
    if standing.state.status is Status.FAILED:
        return Reason.REJECTED
    if standing.unjudged:
        return Reason.UNJUDGED
    return Reason.WAITING if standing.state.attempt_count else Reason.NOTHING_SEALED


def _unread(standing: Standing) -> Reason | None:
    if standing.demoting:
        return Reason.DEMOTING
    return None if standing.pointed else Reason.UNLOADED
