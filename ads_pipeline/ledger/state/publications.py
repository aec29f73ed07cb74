"""Reads what readers may see: warehouse pointers, publication statuses, and demotions that are not finished."""

from collections.abc import Iterable, Sequence
from datetime import date
from typing import Final

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
    key_literals,
    key_of_table,
    pick_fields,
)
from ads_pipeline.ledger.state import listing_queries, visibility_queries
from ads_pipeline.ledger.statements import KEY_COLUMNS, RUN_COLUMNS, Statement, query, select_given
from ads_pipeline.ledger.tables import Day, demotions, load_records, warehouse_pointer
from ads_pipeline.ledger.values import (
    ExpectedContent,
    LoadRecord,
    Pointer,
    PublicationStatus,
    StateFilter,
    VisibleRun,
    VisibleRuns,
)

# The state and the pointer of each recorded partition.
_STATUS: Final = """
    SELECT
        {partition_state.key}, status, current_run_id, partition_state.schema_version, partition_state.record_count,
        updated_at, error_message, attempt_count,
        pointer.run_id AS pointer_run_id, pointer.schema_version AS pointer_schema_version,
        pointer.record_count AS pointer_record_count, pointer.table_version AS pointer_table_version,
        pointer.availability AS pointer_availability, pointer.changed_at AS pointer_changed_at,
        EXISTS (
            SELECT 1 FROM demotions
            WHERE ({demotions.key}, demotions.run_id) = ({partition_state.key}, current_run_id)
        ) AS demotion_pending,
        status = 'success' AND NOT EXISTS (
            SELECT 1 FROM demotions
            WHERE ({demotions.key}, demotions.run_id) = ({partition_state.key}, current_run_id)
        ) AS is_publishable,
        COALESCE(
            pointer.availability = 'published' AND pointer.run_id = current_run_id
            AND pointer.schema_version = partition_state.schema_version
            AND pointer.record_count = partition_state.record_count, FALSE
        ) AS points_at_current,
        status <> 'success' AND EXISTS (
            SELECT 1 FROM runs WHERE ({runs.key}) = ({partition_state.key}) AND NOT EXISTS (
                SELECT 1 FROM attempts WHERE ({attempts.key}, attempts.run_id) = ({runs.key}, runs.run_id))
        ) AS has_unjudged_run
    """
_STATUSES_BY_KEY: Final = Statement(
    "publication_statuses",
    KEY_COLUMNS,
    f"""
    {_STATUS} FROM {{given}}
    JOIN partition_state USING ({{key}})
    LEFT JOIN warehouse_pointer AS pointer ON ({{pointer.key}}) = ({{partition_state.key}})
    """,
)
_STATUSES_OF_QUERY: Final = query(
    f"""
    {_STATUS} FROM partition_state
    LEFT JOIN warehouse_pointer AS pointer ON ({{pointer.key}}) = ({{partition_state.key}})
    WHERE partition_state.source = :source AND partition_state.query_name = :query_name
        AND partition_state.logical_date BETWEEN :since AND :until
    ORDER BY partition_state.logical_date, partition_state.customer_id
    """,
    since=Day(),
    until=Day(),
)
READ_POINTERS: Final = select_given(warehouse_pointer)
# The given runs whose rows readers may see: their partition is a success, their last verdict accepted them, and no
# demotion is open, neither of the given run nor of the current one.
READABLE_RUNS: Final = Statement(
    "readable_runs",
    RUN_COLUMNS,
    """
    SELECT {given.key}, given.run_id FROM {given} JOIN partition_state USING ({key})
    WHERE status = 'success'
        AND NOT EXISTS (
            SELECT 1 FROM demotions
            WHERE ({demotions.key}) = ({given.key}) AND demotions.run_id IN (current_run_id, given.run_id))
        AND 'accepted' = (
            SELECT outcome FROM attempts WHERE ({attempts.key}, attempts.run_id) = ({given.key}, given.run_id)
            ORDER BY attempt_no DESC LIMIT 1)
    """,
)


class Publications:
    """Which runs readers may see, and which run the pointer of each partition names."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def get(self, key: PartitionKey) -> PublicationStatus | None:
        """Return the status of one partition, or None when it is not recorded."""
        return next(iter(self.get_many([key])), None)

    def get_many(self, keys: Iterable[PartitionKey]) -> list[PublicationStatus]:
        """Return the status of each of these partitions that is recorded, in no order."""
        return list(map(decode_publication_status, _STATUSES_BY_KEY.fetch(self._engine, map(encode_key, keys))))

    def of_query(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> list[PublicationStatus]:
        """Return the status of each recorded partition of a query, by day and customer."""
        window = {"since": since or date.min, "until": until or date.max}
        parameters = {"source": source, "query_name": query_name} | window
        rows = database.transact(self._engine, lambda c: c.execute(_STATUSES_OF_QUERY, parameters).all())
        return list(map(decode_publication_status, rows))

    def pointers(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Pointer]:
        """Return the pointers of the partitions that have one, in the order of the keys."""
        unique_keys = list(dict.fromkeys(keys))
        rows = READ_POINTERS.fetch(self._engine, map(encode_key, unique_keys))
        pointers = {pointer.run.key: pointer for pointer in map(decode_pointer, rows)}
        return {key: pointers[key] for key in unique_keys if key in pointers}

    def page_of_loads(
        self, state_filter: StateFilter, *, after: Run | None = None, limit: int = 1000
    ) -> list[LoadRecord]:
        """Return one page of the load records of all matching partitions, by key and run id, starting after a run."""
        position = *key_of_table(load_records), load_records.c.run_id
        statement = visibility_queries.load_records_with_flag().where(*listing_queries.conditions(state_filter))
        if after is not None:
            start = *key_literals(after.key), sa.literal(after.run_id)
            statement = statement.where(sa.tuple_(*position) > sa.tuple_(*start))
        rows = database.fetch(self._engine, statement.order_by(*position).limit(limit))
        return [LoadRecord(run=decode_run(row), **pick_fields(LoadRecord, row, "run")) for row in rows]

    def readable_runs(self, candidates: Iterable[Run]) -> set[Run]:
        """Return the candidates whose rows readers may see, provided that the warehouse holds them."""
        return set(map(decode_run, READABLE_RUNS.fetch(self._engine, map(encode_run, candidates))))

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
