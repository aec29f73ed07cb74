"""Reads restatements: each accepted run that replaced another accepted run, with the figures of both.

They follow from the attempts alone, so that runs of outside extractors are included and nothing is stored twice.
"""

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.measures import Figures, Measures, PartitionRestatement
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger import database
from ads_pipeline.ledger.row_mapping import decode_key, encode_key
from ads_pipeline.ledger.statements import KEY_COLUMNS, Statement, query_days
from ads_pipeline.ledger.values import DayWindow

_COLUMNS: Final = ("run_id", "rows_read", "cost_micros", "conversions", "conversions_value")
_BEFORE: Final = ", ".join(f"LAG({name}) OVER earlier AS {name}_before" for name in _COLUMNS)
# The promotions of partitions, each with the figures of the promotion before it.
_PROMOTIONS: Final = f"""(
        SELECT attempts.*, {_BEFORE} FROM attempts WHERE effect = 'promoted' AND {{condition}}
        WINDOW earlier AS (PARTITION BY {{key}} ORDER BY attempt_no)
    ) AS promotions"""
_DAYS: Final = "source = :source AND query_name = :query_name AND logical_date BETWEEN :since AND :until"
_IN_WINDOW: Final = f"""
    SELECT * FROM {_PROMOTIONS.replace("{condition}", _DAYS + " AND {customers}")}
    WHERE run_id_before <> run_id ORDER BY judged_at, {{key}}, attempt_no
    """
_OF_ATTEMPTS: Final = Statement(
    "restatements_of_attempts",
    {**KEY_COLUMNS, "attempt_no": "integer"},
    f"""
    SELECT * FROM {_PROMOTIONS.replace("{condition}", "({key}) IN (SELECT {key} FROM {given})")}
    WHERE run_id_before <> run_id AND ({{key}}, attempt_no) IN (SELECT {{key}}, attempt_no FROM {{given}})
    ORDER BY {{key}}
    """,
)


class Restatements:
    """The restatements of one ledger."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def find(self, window: DayWindow) -> list[PartitionRestatement]:
        """The restatements of a query's days, in the order of time."""
        statement = query_days(_IN_WINDOW, window)
        return database.transact(self._engine, lambda c: [_decode(row) for row in c.execute(statement)])


def read_restatements(connection: sa.Connection, attempts: Mapping[PartitionKey, int]) -> list[PartitionRestatement]:
    """The restatements among these attempts, one for each partition at most."""
    given = (encode_key(key) | {"attempt_no": number} for key, number in attempts.items())
    return [_decode(row) for row in _OF_ATTEMPTS.execute(connection, given)]


def _decode(row: sa.Row[Any]) -> PartitionRestatement:
    return PartitionRestatement(
        key=decode_key(row),
        attempt_no=row.attempt_no,
        judged_at=row.judged_at,
        before=_figures(row, "_before"),
        after=_figures(row, ""),
    )


def _figures(row: sa.Row[Any], suffix: str) -> Figures:
    values = {name: getattr(row, f"{name}{suffix}") for name in _COLUMNS}
    run_id, rows = values.pop("run_id"), values.pop("rows_read")
    return Figures(run_id=run_id, rows=rows or 0, measures=Measures(**values))
