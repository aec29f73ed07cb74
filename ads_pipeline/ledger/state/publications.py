"""Reads what readers may see: warehouse pointers, publication statuses, and demotions that are not finished."""

from collections.abc import Iterable, Sequence
from datetime import date

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Outcome, Verdict
from ads_pipeline.ledger import database
from ads_pipeline.ledger.row_mapping import (
    decode_pointer,
    decode_publication_status,
    decode_run,
    decode_verdict,
    encode_key,
    encode_run,
    key_of_table,
)
from ads_pipeline.ledger.rowsets import RowStatement
from ads_pipeline.ledger.state import visibility_queries
from ads_pipeline.ledger.tables import demotions
from ads_pipeline.ledger.values import ExpectedContent, Pointer, PublicationStatus, VisibleRun, VisibleRuns


class Publications:
    """Which runs readers may see, and which run the pointer of each partition names."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine, dialect = engine, engine.dialect.name
        self._pointers = RowStatement("read_pointers", dialect, visibility_queries.pointers)
        self._readable_runs = RowStatement("readable_runs", dialect, visibility_queries.readable_runs)
        self._statuses = RowStatement("publication_statuses", dialect, visibility_queries.publication_statuses)

    def get(self, key: PartitionKey) -> PublicationStatus | None:
        """Return the status of one partition, or None when it is not recorded."""
        return next(iter(self.get_many([key])), None)

    def get_many(self, keys: Iterable[PartitionKey]) -> list[PublicationStatus]:
        """Return the status of each of these partitions that is recorded, in no order."""
        return list(map(decode_publication_status, self._statuses.fetch(self._engine, map(encode_key, keys))))

    def of_query(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> list[PublicationStatus]:
        """Return the status of each recorded partition of a query, by day and customer."""
        statement = visibility_queries.publication_statuses_of_query(
            source=source, query_name=query_name, since=since, until=until
        )
        return list(map(decode_publication_status, database.fetch(self._engine, statement)))

    def pointers(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Pointer]:
        """Return the pointers of the partitions that have one, in the order of the keys."""
        unique_keys = list(dict.fromkeys(keys))
        rows = self._pointers.fetch(self._engine, map(encode_key, unique_keys))
        pointers = {pointer.run.key: pointer for pointer in map(decode_pointer, rows)}
        return {key: pointers[key] for key in unique_keys if key in pointers}

    def readable_runs(self, candidates: Iterable[Run]) -> set[Run]:
        """Return the candidates whose rows readers may see, provided that the warehouse holds them."""
        return set(map(decode_run, self._readable_runs.fetch(self._engine, map(encode_run, candidates))))

    def visible_runs(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> VisibleRuns:
        """Return all runs of a query that readers may see, by day and customer."""
        statement = visibility_queries.visible_runs(source=source, query_name=query_name, since=since, until=until)
        rows = database.fetch(self._engine, statement)
        return VisibleRuns(
            runs=tuple(VisibleRun(row.customer_id, row.logical_date, row.run_id, row.is_current) for row in rows),
            table_version=max((row.table_version for row in rows), default=-1),
        )

    def expected_contents(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> list[ExpectedContent]:
        """Return what the table should hold of each recorded partition of a query, in no order."""
        statement = visibility_queries.expected_contents(
            source=source, query_name=query_name, since=since, until=until
        )
        return database.transact(self._engine, lambda c: [ExpectedContent._make(row) for row in c.execute(statement)])

    def open_demotions(self, *, source: str, query_name: str) -> list[Verdict]:
        """Return the verdicts of a query's open demotions, which are not recorded yet, oldest first."""
        of_query = demotions.c.source == source, demotions.c.query_name == query_name
        order = demotions.c.started_at, *key_of_table(demotions), demotions.c.run_id
        rows: Sequence[sa.Row[tuple[object, ...]]] = database.fetch(
            self._engine, sa.select(demotions).where(*of_query).order_by(*order)
        )
        return [decode_verdict(row, Outcome.REJECTED) for row in rows]
