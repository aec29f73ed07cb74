"""Reads restatements: each accepted run that replaced another accepted run, with the figures of both.

They follow from the attempts alone, so that runs of outside extractors are included and nothing is stored twice.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.measures import PartitionRestatement
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import instant_text
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.ledger.sql.row_mapping import decode_figures, decode_key, encode_key
from ads_pipeline.ledger.sql.statements import KEY_COLUMNS, Statement, query, query_days

_COLUMNS: Final = ("run_id", "rows_read", "cost_micros", "conversions", "conversions_value")
_BEFORE: Final = ", ".join(f"LAG({name}) OVER earlier AS {name}_before" for name in _COLUMNS)
# The promotions of partitions, each with the figures of the promotion before it.
_IN_WINDOW: Final = f"""
    SELECT * FROM (
        SELECT attempts.*, {_BEFORE} FROM attempts
        WHERE effect = 'promoted' AND source = :source AND query_name = :query_name
            AND logical_date BETWEEN :since AND :until AND customer_id IN :customers
        WINDOW earlier AS (PARTITION BY source, customer_id, query_name, logical_date ORDER BY attempt_no)
    ) AS promotions
    WHERE run_id_before <> run_id ORDER BY judged_at, source, customer_id, query_name, logical_date, attempt_no
    """
_OF_PARTITIONS: Final = Statement(
    "restatements_since",
    {**KEY_COLUMNS, "earliest": "instant"},
    f"""
    SELECT * FROM (
        SELECT attempts.*, given.earliest, {_BEFORE}
        FROM given JOIN attempts USING (source, customer_id, query_name, logical_date)
        WHERE effect = 'promoted'
        WINDOW earlier AS (PARTITION BY source, customer_id, query_name, logical_date ORDER BY attempt_no)
    ) AS promotions
    WHERE run_id_before <> run_id AND judged_at >= earliest
    """,
)
_IN_ORDER: Final = query(
    f"""
    SELECT * FROM (
        SELECT attempts.*, {_BEFORE} FROM attempts
        WHERE effect = 'promoted' AND source = :source
        WINDOW earlier AS (PARTITION BY source, customer_id, query_name, logical_date ORDER BY attempt_no)
    ) AS promotions
    WHERE run_id_before <> run_id ORDER BY judged_at, source, customer_id, query_name, logical_date, attempt_no
    """
)


class Restatements:
    """The restatements of one ledger."""

    def __init__(self, engine: database.Reading) -> None:
        self._engine = engine

    def find(self, window: DayWindow) -> list[PartitionRestatement]:
        """The restatements of a query's days, in the order of time."""
        statement = query_days(_IN_WINDOW, window)
        return database.transact(self._engine, lambda c: [_decode(row) for row in c.execute(statement)])

    def since(self, keys: Iterable[PartitionKey], since: datetime) -> Iterator[PartitionRestatement]:
        """Yield the restatements of these partitions from a time on, in no order."""
        given = ((*encode_key(key), instant_text(since)) for key in keys)
        yield from map(_decode, _OF_PARTITIONS.fetch(self._engine, given))

    def all(self, source: str) -> Iterator[PartitionRestatement]:
        """Yield every restatement of a source in the order of time, as of one moment."""
        with database.open_snapshot(self._engine) as connection:
            rows = connection.execute(_IN_ORDER, {"source": source}, execution_options={"yield_per": 10_000})
            yield from map(_decode, rows)


def _decode(row: sa.Row[Any]) -> PartitionRestatement:
    return PartitionRestatement(
        key=decode_key(row),
        attempt_no=row.attempt_no,
        judged_at=row.judged_at,
        before=decode_figures(row, row.run_id_before, "_before"),
        after=decode_figures(row, row.run_id),
    )
