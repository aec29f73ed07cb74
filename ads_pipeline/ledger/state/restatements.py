"""Reads which loaded days were loaded again with another run, and how many rows each had before and after."""

from datetime import date, datetime
from typing import Final, NamedTuple

import sqlalchemy as sa

from ads_pipeline.ledger import database
from ads_pipeline.ledger.state.day_windows import DayWindow
from ads_pipeline.ledger.tables import Day, Instant


class Restatement(NamedTuple):
    """One replacement of a loaded run by another. A tuple, because there may be millions."""

    customer_id: str
    logical_date: date
    loaded_at: datetime
    rows_before: int
    rows_after: int


_RESTATEMENTS: Final = """
SELECT customer_id, logical_date, loaded_at, rows_before, rows_after
FROM (
    SELECT customer_id, logical_date, loaded_at, record_count AS rows_after,
        LAG(record_count) OVER (PARTITION BY customer_id, logical_date ORDER BY loaded_at, run_id) AS rows_before
    FROM load_records
    WHERE source = :source AND query_name = :query_name AND logical_date BETWEEN :since AND :until AND {customers}
) AS loads
WHERE rows_before IS NOT NULL
ORDER BY customer_id, loaded_at
"""


def read_restatements(engine: sa.Engine, window: DayWindow) -> list[Restatement]:
    """Return the restatements of a query's days, by customer and time."""
    statement = window.select(_RESTATEMENTS, logical_date=Day, loaded_at=Instant)
    return database.transact(engine, lambda c: [Restatement._make(row) for row in c.execute(statement)])
