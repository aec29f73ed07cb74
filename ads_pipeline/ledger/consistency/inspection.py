"""Asks the ledger what only an examination asks: of everything at once, and whether it agrees with itself.

Read-only like any reader. What is found is for `symptoms` to judge.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Outcome, PartitionState, RegisteredRun, Status
from ads_pipeline.errors import LogContradicted
from ads_pipeline.ledger import database
from ads_pipeline.ledger.consistency.replay import histories, replay
from ads_pipeline.ledger.control.tables import leases
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.row_mapping import clock_of, key_of, registered_of, run_in
from ads_pipeline.ledger.state import visibility_queries
from ads_pipeline.ledger.tables import demotions, run_head, run_snapshots, runs

AT_ONCE: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRun:
    """A registered run, its last verdict, and whether a success has it as its current run."""

    registered: RegisteredRun
    outcome: Outcome | None
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MisplacedPointer:
    """A published pointer that is not at the current run of a success, or says something else of its run."""

    run: Run
    status: Status
    current_run_id: str | None
    outcome: Outcome | None
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run of an engine that has not ended, when it was last heard of, and until when it holds its claims."""

    run_id: str
    last_at: datetime
    leased_until: datetime | None


class LedgerInspection(LedgerReader):
    """Read access for whoever examines the whole ledger."""

    def clock(self) -> datetime:
        """What time it is in the database."""
        rows = self._execute(sa.select(clock_of(self._engine.dialect.name)))
        now: datetime = rows[0].now
        return now

    def sources(self) -> list[str]:
        """Every source of which a run is registered."""
        return sorted(row.source for row in self._execute(sa.select(runs.c.source).distinct()))

    def contradictions(self) -> Iterator[tuple[PartitionKey, str]]:
        """Each partition whose state does not follow from its logs, and how it differs; as of one moment."""
        with database.reading(self._engine) as connection:
            for history in histories(connection):
                try:
                    state = replay(history)
                except LogContradicted as error:
                    yield history.key, f"the rules do not lead to its log: {error.problem}"
                    continue
                if state != (history.recorded or PartitionState.absent(history.key)):
                    yield history.key, f"its row says {_told(history.recorded)}, its log {_told(state)}"

    def known(self, source: str) -> Iterator[KnownRun]:
        """Every registered run of a source, in the order of its path below raw."""
        statement = visibility_queries.runs_with_last_outcome(source=source)
        with database.reading(self._engine) as connection:
            for row in connection.execute(statement, execution_options={"yield_per": AT_ONCE}):
                yield _known(row)

    def known_again(self, run: Run) -> KnownRun | None:
        """How one run is known now; None when it is not."""
        statement = visibility_queries.runs_with_last_outcome(source=run.key.source)
        named = [runs.c[name] == getattr(run.key, name) for name in ("customer_id", "query_name", "logical_date")]
        rows = self._execute(statement.where(*named, runs.c.run_id == run.run_id))
        return _known(rows[0]) if rows else None

    def astray(self) -> list[MisplacedPointer]:
        """The published pointers that are not where they should be, by partition."""
        return [
            MisplacedPointer(
                run=run_in(row),
                status=Status(row.status),
                current_run_id=row.current_run_id,
                outcome=row.outcome and Outcome(row.outcome),
                differs=bool(row.differs),
            )
            for row in self._execute(visibility_queries.mismatched_pointers())
        ]

    def unfinished(self) -> list[tuple[Run, datetime]]:
        """The demotions that have begun and are not recorded, each with when it began, oldest first."""
        order = demotions.c.started_at, *key_of(demotions), demotions.c.run_id
        return [(run_in(row), row.started_at) for row in self._execute(sa.select(demotions).order_by(*order))]

    def open_runs(self) -> list[OpenRun]:
        """The runs that have not ended, as far as they are projected, by name."""
        statement = (
            sa.select(run_head.c.run_id, run_head.c.last_at, leases.c.expires_at)
            .join(run_snapshots, run_snapshots.c.run_id == run_head.c.run_id)
            .outerjoin(leases, sa.and_(leases.c.run_id == run_head.c.run_id, leases.c.ended_at.is_(None)))
            .where(run_snapshots.c.ended_at.is_(None), run_head.c.retired_at.is_(None))
            .where(run_head.c.projected_seq == run_head.c.last_seq)
            .order_by(run_head.c.run_id)
        )
        return [
            OpenRun(run_id=row.run_id, last_at=row.last_at, leased_until=row.expires_at)
            for row in self._execute(statement)
        ]


def _known(row: sa.Row[Any]) -> KnownRun:
    return KnownRun(
        registered=registered_of(row), outcome=row.outcome and Outcome(row.outcome), current=bool(row.current)
    )


def _told(state: PartitionState | None) -> str:
    if state is None or state.recorded_status is None:
        return "nothing"
    of = f" from {state.current_run_id} of {state.record_count} rows" if state.current_run_id else ""
    return f"{state.status}{of} after {state.attempt_count} attempts at {state.updated_at}"
