"""Reads whole ledgers for `doctor`: whether states match their logs, pointers their states, and runs their claims.

Everything here is read-only. The checks of `doctor` decide what is a problem.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.errors import LogContradicted
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Outcome, PartitionState, RegisteredRun, Status
from ads_pipeline.ledger.consistency.replay import read_histories, replay
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import demotions, leases, run_head, runs
from ads_pipeline.ledger.sql.row_mapping import (
    database_clock,
    decode_registered_run,
    decode_run,
    encode_run,
    key_of_table,
)
from ads_pipeline.ledger.sql.statements import RUN_COLUMNS, Statement, query
from ads_pipeline.ledger.state.visibility import is_current, last_outcome

ROWS_PER_FETCH: Final = 5_000
_RUN: Final = f"SELECT runs.*, {last_outcome('runs')} AS outcome, {is_current('runs')} AS is_current"
_WITH_STATES: Final = """
    LEFT JOIN partition_state
        ON (partition_state.source, partition_state.customer_id, partition_state.query_name,
            partition_state.logical_date) = (runs.source, runs.customer_id, runs.query_name, runs.logical_date)
    """
# Every registered run of a source, in the order of the paths below raw.
_RUNS: Final = query(
    f"""
    {_RUN} FROM runs {_WITH_STATES}
    WHERE runs.source = :source
    ORDER BY runs.source, runs.customer_id, runs.query_name, runs.logical_date, runs.run_id
    """,
    flags=("is_current",),
)
_RUN_BY_NAME: Final = Statement(
    "inspect_run",
    RUN_COLUMNS,
    f"""
    {_RUN} FROM given JOIN runs USING (source, customer_id, query_name, logical_date, run_id) {_WITH_STATES}
    """,
    flags=("is_current",),
)
# The published pointers that contradict the ledger: one names a run that is not the current run of a success, or
# `differs` from the run's registration.
_MISPLACED_POINTERS: Final = query(
    f"""
    SELECT * FROM (
        SELECT
            warehouse_pointer.source, warehouse_pointer.customer_id, warehouse_pointer.query_name,
                warehouse_pointer.logical_date, warehouse_pointer.run_id, status, current_run_id,
            {last_outcome("warehouse_pointer")} AS outcome, {is_current("warehouse_pointer")} AS is_current,
            COALESCE(
                warehouse_pointer.schema_version <> runs.schema_version
                OR warehouse_pointer.record_count <> runs.record_count, TRUE
            ) AS differs
        FROM warehouse_pointer
        JOIN partition_state
            ON (partition_state.source, partition_state.customer_id, partition_state.query_name,
                partition_state.logical_date) =
                    (warehouse_pointer.source, warehouse_pointer.customer_id, warehouse_pointer.query_name,
                        warehouse_pointer.logical_date)
        JOIN runs
            ON (runs.source, runs.customer_id, runs.query_name, runs.logical_date, runs.run_id) =
                (warehouse_pointer.source, warehouse_pointer.customer_id, warehouse_pointer.query_name,
                    warehouse_pointer.logical_date, warehouse_pointer.run_id)
        WHERE availability = 'published'
    ) AS published
    WHERE differs OR NOT is_current ORDER BY source, customer_id, query_name, logical_date
    """,
    flags=("is_current", "differs"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedRun:
    """A registered run, the outcome of its last verdict, and whether it is the current run of a success."""

    registered: RegisteredRun
    outcome: Outcome | None
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MisplacedPointer:
    """A published pointer that is not at the current run of a success, or differs from its run's registration."""

    run: Run
    status: Status
    current_run_id: str | None
    outcome: Outcome | None
    differs_from_registration: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """An engine run that has not ended, with the times of its last event and of the end of its lease."""

    engine_run_id: str
    last_event_at: datetime
    lease_expires_at: datetime | None


class LedgerInspection(LedgerReader):
    """Read access to the whole ledger."""

    def read_clock(self) -> datetime:
        """The time of the database."""
        rows = database.fetch(self.engine, sa.select(database_clock(self.engine.dialect.name)))
        now: datetime = rows[0].now
        return now

    def list_sources(self) -> list[str]:
        """Every source with a registered run."""
        return sorted(row.source for row in database.fetch(self.engine, sa.select(runs.c.source).distinct()))

    def find_contradictions(self) -> Iterator[tuple[PartitionKey, str]]:
        """Each partition whose state does not follow from its logs, with the difference, as of one moment."""
        with database.open_snapshot(self.engine) as connection:
            for history in read_histories(connection):
                try:
                    state = replay(history)
                except LogContradicted as error:
                    yield history.key, f"its log contradicts the rules: {error.problem}"
                    continue
                if state != (history.recorded or PartitionState.absent(history.key)):
                    yield history.key, f"its row says {_describe(history.recorded)}, its log says {_describe(state)}"

    def list_runs(self, source: str) -> Iterator[InspectedRun]:
        """Every registered run of a source, in the order of the paths below raw."""
        with database.open_snapshot(self.engine) as connection:
            for row in connection.execute(_RUNS, {"source": source}, execution_options={"yield_per": ROWS_PER_FETCH}):
                yield _inspected_run(row)

    def inspect_run(self, run: Run) -> InspectedRun | None:
        """One run, read now. None when it is not registered."""
        rows = _RUN_BY_NAME.fetch(self.engine, [encode_run(run)])
        return _inspected_run(rows[0]) if rows else None

    def find_misplaced_pointers(self) -> list[MisplacedPointer]:
        """All misplaced pointers, by partition."""
        return [
            MisplacedPointer(
                run=decode_run(row),
                status=Status(row.status),
                current_run_id=row.current_run_id,
                outcome=row.outcome and Outcome(row.outcome),
                differs_from_registration=row.differs,
            )
            for row in database.fetch(self.engine, _MISPLACED_POINTERS)
        ]

    def list_unfinished_removals(self) -> list[tuple[Run, datetime, str]]:
        """The demotions and withdrawals that have begun and are not recorded, with their start, oldest first."""
        order = demotions.c.started_at, *key_of_table(demotions), demotions.c.run_id
        return [
            (decode_run(row), row.started_at, "withdrawal" if row.request else "demotion")
            for row in database.fetch(self.engine, sa.select(demotions).order_by(*order))
        ]

    def list_open_runs(self) -> list[OpenRun]:
        """The runs that have not ended, by id. Runs whose snapshot is behind their events are left out."""
        statement = (
            sa.select(run_head.c.engine_run_id, run_head.c.last_at, leases.c.expires_at)
            .outerjoin(
                leases, sa.and_(leases.c.engine_run_id == run_head.c.engine_run_id, leases.c.ended_at.is_(None))
            )
            .where(run_head.c.ended_at.is_(None), run_head.c.retired_at.is_(None))
            .where(run_head.c.projected_seq == run_head.c.last_seq)
            .order_by(run_head.c.engine_run_id)
        )
        return [
            OpenRun(engine_run_id=row.engine_run_id, last_event_at=row.last_at, lease_expires_at=row.expires_at)
            for row in database.fetch(self.engine, statement)
        ]


def _inspected_run(row: sa.Row[Any]) -> InspectedRun:
    return InspectedRun(
        registered=decode_registered_run(row),
        outcome=row.outcome and Outcome(row.outcome),
        is_current=row.is_current,
    )


def _describe(state: PartitionState | None) -> str:
    if state is None or state.recorded_status is None:
        return "nothing"
    run = f" from {state.current_run_id} of {state.record_count} rows" if state.current_run_id else ""
    return f"{state.status}{run} after {state.attempt_count} attempts at {state.updated_at}"
