"""Answers what the ledger holds, and can change nothing.

Extractors, loaders, sensors and readers get this type; its connections are read-only in the database itself. What may
be recorded, and by whom, is in `writer`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from typing import Any, Final, Self

import sqlalchemy as sa

from ads_pipeline.domain.freshness import CodeVersion, PartitionStatus, Tenancy
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Effect, Outcome, PartitionState, RegisteredRun, Status, Verdict
from ads_pipeline.ledger import database
from ads_pipeline.ledger.control import audit_queries
from ads_pipeline.ledger.control.leases import holder_of, holdings
from ads_pipeline.ledger.control.retry_queue import RetryQueue
from ads_pipeline.ledger.row_mapping import (
    KEY_TYPES,
    fields_for,
    key_fields,
    key_in,
    key_of,
    pointer_of,
    registered_of,
    run_in,
    run_name,
    same_key,
    standing_of,
    state_of,
)
from ads_pipeline.ledger.rowsets import Rowset, RowStatement
from ads_pipeline.ledger.state import listing_queries, visibility_queries
from ads_pipeline.ledger.status.partition_status import Statuses, read_code_versions
from ads_pipeline.ledger.tables import (
    KEY,
    acted_partitions,
    attempts,
    demotions,
    load_records,
    operator_acts,
    partition_state,
    runs,
    warehouse_pointer,
)
from ads_pipeline.ledger.values import (
    Attempt,
    ExpectedContent,
    LeaseHolder,
    LoadRecord,
    LoggedAction,
    PartitionAction,
    Pointer,
    PublicationStatus,
    StateFilter,
    VisibleRun,
    VisibleRuns,
)

LARGEST_PAGE: Final = 10_000
HERE: Final = Tenancy()


class LedgerReader:
    """Read access to one ledger."""

    def __init__(self, engine: sa.Engine, *, space: Tenancy = HERE) -> None:
        self._engine, self._space = engine, space
        self._statuses = Statuses(engine.dialect.name, space)
        self._states_of = _lookup(partition_state, engine.dialect.name)
        self._pointers_of = _lookup(warehouse_pointer, engine.dialect.name)
        self._publishable = RowStatement("publishable_runs", engine.dialect.name, visibility_queries.publishable_runs)
        self._known = RowStatement("known_runs", engine.dialect.name, visibility_queries.known_runs)
        self._standings_of = RowStatement("standings_of", engine.dialect.name, visibility_queries.standings_of)
        self._newest = RowStatement("newest_runs", engine.dialect.name, visibility_queries.newest_runs)
        self._holdings = RowStatement(
            "holdings", engine.dialect.name, lambda rows: holdings(rows, engine.dialect.name)
        )
        self._readable = RowStatement("readable_runs", engine.dialect.name, visibility_queries.readable_runs)

    @classmethod
    @contextmanager
    def opened(cls, url: str, *, space: Tenancy = HERE) -> Iterator[Self]:
        with database.opened(url, read_only=True) as engine:
            yield cls(engine, space=space)

    @property
    def schedule(self) -> RetryQueue:
        """What is planned for failures, and what is due; whoever only reads cannot plan."""
        return RetryQueue(self._engine)

    def state(self, key: PartitionKey) -> PartitionState:
        """The partition's state; one without a row reads as pending."""
        return self.states([key])[key]

    def states(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, PartitionState]:
        """The state of every partition asked for, in the order asked."""
        asked = list(dict.fromkeys(keys))
        found = {row.key: row for row in map(state_of, self._read(self._states_of, asked))}
        return {key: found.get(key) or PartitionState.absent(key) for key in asked}

    def page(
        self, wanted: StateFilter, *, after: PartitionKey | None = None, limit: int = 1000
    ) -> list[PartitionState]:
        """The recorded states that match, in key order, from just after a key. An empty page is the end."""
        if not 1 <= limit <= LARGEST_PAGE:
            raise ValueError(f"limit must be 1 to {LARGEST_PAGE}, not {limit}")
        return [state_of(row) for row in self._execute(listing_queries.page(wanted, after=after, limit=limit))]

    def pages(self, wanted: StateFilter, *, limit: int = 1000) -> Iterator[PartitionState]:
        """Every recorded state that matches, a page at a time; what changes meanwhile may be seen or not."""
        after = None
        while page := self.page(wanted, after=after, limit=limit):
            yield from page
            after = page[-1].key

    def tally(
        self, wanted: StateFilter, *, after: PartitionKey | None = None, most: int | None = None
    ) -> dict[Status, int]:
        """How many recorded partitions match, by status; with a key, those that pages after it would hold.

        With `most`, no status is counted further than one beyond it, which takes no longer where millions match.
        """

        def count(connection: sa.Connection) -> dict[Status, int]:
            names = wanted.query_names or frozenset[str]()
            if wanted.query_names is None and listing_queries.is_by_day(wanted):
                names = frozenset(connection.scalars(listing_queries.query_names(str(wanted.source))))
            counted = dict.fromkeys(Status, 0)
            parts = listing_queries.counts(wanted, after=after, most=most, names=names)
            for row in connection.execute(sa.union_all(*parts)) if parts else ():
                counted[Status(row.status)] += row.partitions
            return {status: number if most is None else min(number, most + 1) for status, number in counted.items()}

        return database.transact(self._engine, count)

    def runs(self, key: PartitionKey) -> list[RegisteredRun]:
        """The registered runs of a partition, oldest first."""
        return [registered for registered, _at in self.registrations(key)]

    def registrations(self, key: PartitionKey) -> list[tuple[RegisteredRun, datetime]]:
        """The same, each with when the ledger was told of it."""
        rows = self._execute(sa.select(runs).where(*_matches(runs, key)).order_by(runs.c.ordinal))
        return [(registered_of(row), row.registered_at) for row in rows]

    def attempts(self, key: PartitionKey) -> list[Attempt]:
        """Every verdict on a partition, in the order recorded."""
        rows = self._execute(sa.select(attempts).where(*_matches(attempts, key)).order_by(attempts.c.attempt_no))
        return list(map(_attempt_of, rows))

    def pointers(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Pointer]:
        """The pointers of those partitions that have one, in the order asked."""
        asked = list(dict.fromkeys(keys))
        rows = self._read(self._pointers_of, asked)
        found = {pointer.run.key: pointer for pointer in map(pointer_of, rows)}
        return {key: found[key] for key in asked if key in found}

    def known_runs(self, keys: Iterable[PartitionKey]) -> dict[Run, bool]:
        """Every registered run of these partitions, oldest first in each, and whether it was ever judged."""
        return {run_in(row): bool(row.judged) for row in self._read(self._known, list(dict.fromkeys(keys)))}

    def unjudged(self, keys: Iterable[PartitionKey]) -> list[Run]:
        """The registered runs of these partitions that await their first verdict, oldest first in each."""
        return [run for run, is_judged in self.known_runs(keys).items() if not is_judged]

    def newest(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, tuple[RegisteredRun, Outcome | None]]:
        """The newest run of those partitions that have any, and its last verdict."""
        rows = self._read(self._newest, list(dict.fromkeys(keys)))
        return {key_in(row): (registered_of(row), row.outcome and Outcome(row.outcome)) for row in rows}

    def runs_by_day(self, *, source: str, since: date, until: date) -> dict[Run, bool]:
        """Every registered run of a source in these days, and whether it was ever judged."""
        rows = self._execute(visibility_queries.runs_by_day(source=source, since=since, until=until))
        return {run_in(row): bool(row.judged) for row in rows}

    def verdicts(self, wanted: StateFilter) -> dict[Run, tuple[Outcome | None, bool]]:
        """Every registered run of these partitions: its last verdict, and whether a success has it as current run."""
        rows = self._execute(visibility_queries.verdicts().where(*listing_queries.conditions(wanted)))
        return {run_in(row): (row.outcome and Outcome(row.outcome), bool(row.current)) for row in rows}

    def publishable(self, wanted: Iterable[Run]) -> set[Run]:
        """Those of the runs that the warehouse may publish now: current, of a success, not being demoted."""
        return self._runs_in(self._publishable, wanted)

    def readable(self, wanted: Iterable[Run]) -> set[Run]:
        """Those of the runs whose rows may be read now, if the warehouse holds them."""
        return self._runs_in(self._readable, wanted)

    def showing(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> VisibleRuns:
        """Every run of a query that readers may see, by day and customer."""
        rows = self._execute(
            visibility_queries.shown_runs(source=source, query_name=query_name, since=since, until=until)
        )
        return VisibleRuns(
            runs=tuple(VisibleRun(row.customer_id, row.logical_date, row.run_id, row.current) for row in rows),
            table_version=max((row.table_version for row in rows), default=-1),
        )

    def standings(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> list[PublicationStatus]:
        """Every recorded partition of a query with its pointer, by day and customer."""
        rows = self._execute(
            visibility_queries.standings(source=source, query_name=query_name, since=since, until=until)
        )
        return [standing_of(row) for row in rows]

    def standings_of(self, keys: Sequence[PartitionKey]) -> list[PublicationStatus]:
        """The same of those partitions that are recorded, in no order."""
        return [standing_of(row) for row in self._read(self._standings_of, keys)]

    def outlines(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> list[ExpectedContent]:
        """What the table should hold of every recorded partition of a query, in no order."""
        asked = visibility_queries.outlines(source=source, query_name=query_name, since=since, until=until)
        return database.transact(self._engine, lambda c: [ExpectedContent._make(row) for row in c.execute(asked)])

    def standing(self, key: PartitionKey) -> PublicationStatus | None:
        """Where one partition stands; None when it is not recorded."""
        day = {"since": key.logical_date, "until": key.logical_date}
        statement = visibility_queries.standings(source=key.source, query_name=key.query_name, **day)
        rows = self._execute(statement.where(partition_state.c.customer_id == key.customer_id))
        return standing_of(rows[0]) if rows else None

    def demotions(self, *, source: str, query_name: str) -> list[Verdict]:
        """The demotions of a query that have begun and are not recorded, oldest first."""
        wanted = demotions.c.source == source, demotions.c.query_name == query_name
        order = demotions.c.begun_at, *key_of(demotions), demotions.c.run_id
        rows = self._execute(sa.select(demotions).where(*wanted).order_by(*order))
        return [
            Verdict(run=run_in(row), outcome=Outcome.REJECTED, **fields_for(Verdict, row, "run", "outcome"))
            for row in rows
        ]

    def statuses(self, asset: str, keys: Iterable[PartitionKey]) -> dict[PartitionKey, PartitionStatus | None]:
        """What was last made and tried of each partition in one asset of its query; None when nothing ever was."""
        asked = list(dict.fromkeys(keys))
        found = database.transact(self._engine, lambda c: self._statuses.read(c, asset, asked))
        return {key: status for key, (status, _finishes) in found.items()}

    def code_versions(self, source: str) -> dict[str, CodeVersion]:
        """The version of each asset's definition that runs now, by the asset's key."""
        return database.transact(self._engine, lambda c: read_code_versions(c, self._space, source))

    def holders(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, LeaseHolder]:
        """The runs that hold some of these partitions now. What is left out is free."""
        rows = self._read(self._holdings, list(dict.fromkeys(keys)))
        return {key_in(row): holder_of(row) for row in rows if row.lives}

    def customers(self, source: str) -> list[str]:
        """Every customer of whom the source has a recorded partition."""
        statement = sa.select(partition_state.c.customer_id).where(partition_state.c.source == source).distinct()
        return sorted(row.customer_id for row in self._execute(statement))

    def load_records(self, key: PartitionKey) -> list[LoadRecord]:
        """The first publication of each run of a partition, oldest first."""
        rows = self._execute(
            sa.select(load_records)
            .where(*_matches(load_records, key))
            .order_by(load_records.c.loaded_at, load_records.c.run_id)
        )
        return [LoadRecord(run=run_in(row), **fields_for(LoadRecord, row, "run")) for row in rows]

    def acts(self, key: PartitionKey) -> list[PartitionAction]:
        """What operators did to a partition, oldest first."""
        rows = self._execute(
            sa.select(operator_acts, acted_partitions.c.status_before)
            .join(acted_partitions, acted_partitions.c.act_id == operator_acts.c.act_id)
            .where(*_matches(acted_partitions, key))
            .order_by(operator_acts.c.acted_at, operator_acts.c.act_id)
        )
        return [
            PartitionAction(
                status_before=None if row.status_before is None else Status(row.status_before),
                **fields_for(PartitionAction, row, "status_before"),
            )
            for row in rows
        ]

    def act(self, act_id: str) -> list[LoggedAction]:
        """The act of that id, in all the parts that it was logged in; none when there is no such act."""
        return [LoggedAction(**fields_for(LoggedAction, row)) for row in self._execute(audit_queries.parts(act_id))]

    def all_acts(self, *, after: LoggedAction | None = None, limit: int = 1000) -> list[LoggedAction]:
        """The acts on any partitions, newest first, from just before one of them."""
        return [
            LoggedAction(**fields_for(LoggedAction, row)) for row in self._execute(audit_queries.acts(after, limit))
        ]

    def acted(
        self, act_ids: Sequence[str], *, after: PartitionKey | None = None, limit: int = 1000
    ) -> list[tuple[PartitionKey, Status | None]]:
        """The partitions that these acts changed, in key order, and what each was before."""
        rows = self._execute(audit_queries.acted(act_ids, after, limit))
        return [(key_in(row), None if row.status_before is None else Status(row.status_before)) for row in rows]

    def attempts_on(
        self, wanted: StateFilter, *, after: tuple[PartitionKey, int] | None = None, limit: int = 1000
    ) -> list[Attempt]:
        """The verdicts on all partitions that match, in key order, from just behind an attempt."""
        return list(
            map(
                _attempt_of,
                self._execute(audit_queries.attempts_on(listing_queries.conditions(wanted), after, limit)),
            )
        )

    def _read(self, statement: RowStatement, keys: Sequence[PartitionKey]) -> Sequence[sa.Row[Any]]:
        return database.transact(self._engine, lambda c: statement.run(c, map(key_fields, keys)).all())

    def _runs_in(self, statement: RowStatement, wanted: Iterable[Run]) -> set[Run]:
        asked = [run_name(run) for run in wanted]
        return database.transact(self._engine, lambda c: {run_in(row) for row in statement.run(c, asked)})

    def _execute(self, statement: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        return database.transact(self._engine, lambda c: c.execute(statement).all())


def _attempt_of(row: sa.Row[Any]) -> Attempt:
    outcome, effect = Outcome(row.outcome), Effect(row.effect)
    return Attempt(
        run=run_in(row), outcome=outcome, effect=effect, **fields_for(Attempt, row, "run", "outcome", "effect")
    )


def _matches(table: sa.Table, key: PartitionKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == getattr(key, name) for name in KEY]


def _lookup(table: sa.Table, dialect: str) -> RowStatement:
    def build(rowset: Rowset) -> sa.Select[Any]:
        asked = rowset(KEY_TYPES)
        return sa.select(table).join_from(asked, table, same_key(table, asked))

    return RowStatement(f"{table.name}_of", dialect, build)
