"""Reads restatements: each accepted run that replaced another accepted run, with the figures of both.

They follow from the attempts alone, so that runs of outside extractors are included and nothing is stored twice.
"""

from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.measures import PartitionRestatement
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.ledger.sql.row_mapping import decode_figures, decode_key
from ads_pipeline.ledger.sql.statements import query_days

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


class Restatements:
    """The restatements of one ledger."""

    def __init__(self, engine: database.Reading) -> None:
        self._engine = engine

    def find(self, window: DayWindow) -> list[PartitionRestatement]:
        """The restatements of a query's days, in the order of time."""
        statement = query_days(_IN_WINDOW, window)
        return database.transact(self._engine, lambda c: [_decode(row) for row in c.execute(statement)])


def _decode(row: sa.Row[Any]) -> PartitionRestatement:
    return PartitionRestatement(
        key=decode_key(row),
        attempt_no=row.attempt_no,
        judged_at=row.judged_at,
        before=decode_figures(row, row.run_id_before, "_before"),
        after=decode_figures(row, row.run_id),
    )
