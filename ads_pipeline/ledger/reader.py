"""Read access to the ledger: states, runs, verdicts, pointers, statuses, leases and logged actions.

Extractors, loaders, sensors and readers get a `LedgerReader`, whose database connections are read-only. Write access
is in `ledger`, control actions are in `control.control_actions`.
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
from ads_pipeline.ledger.control.leases import read_lease_holder, select_claims
from ads_pipeline.ledger.control.retry_queue import RetryQueue
from ads_pipeline.ledger.row_mapping import (
    decode_key,
    decode_pointer,
    decode_publication_status,
    decode_registered_run,
    decode_run,
    decode_state,
    encode_key,
    encode_run,
    key_of_table,
    pick_fields,
)
from ads_pipeline.ledger.rowsets import RowStatement
from ads_pipeline.ledger.state import listing_queries, visibility_queries
from ads_pipeline.ledger.status.partition_status import PartitionStatuses, read_code_versions
from ads_pipeline.ledger.tables import (
    KEY,
    attempts,
    control_action_partitions,
    control_actions,
    demotions,
    partition_state,
    runs,
)
from ads_pipeline.ledger.values import (
    Attempt,
    ExpectedContent,
    LeaseHolder,
    LoggedAction,
    PartitionAction,
    Pointer,
    PublicationStatus,
    StateFilter,
    VisibleRun,
    VisibleRuns,
)

MAX_PAGE_SIZE: Final = 10_000
DEFAULT_TENANCY: Final = Tenancy()


class LedgerReader:
    """Read access to one ledger."""

    def __init__(self, engine: sa.Engine, *, tenancy: Tenancy = DEFAULT_TENANCY) -> None:
        self._engine, self._tenancy, dialect = engine, tenancy, engine.dialect.name
        self._statuses = PartitionStatuses(dialect, tenancy)
        self._states = RowStatement("read_states", dialect, listing_queries.states)
        self._pointers = RowStatement("read_pointers", dialect, visibility_queries.pointers)
        self._publishable_runs = RowStatement("publishable_runs", dialect, visibility_queries.publishable_runs)
        self._readable_runs = RowStatement("readable_runs", dialect, visibility_queries.readable_runs)
        self._judged_flags = RowStatement("judged_flags", dialect, visibility_queries.runs_with_judged_flag)
        self._newest_runs = RowStatement("newest_runs", dialect, visibility_queries.newest_runs)
        self._publication_statuses = RowStatement(
            "publication_statuses", dialect, visibility_queries.publication_statuses
        )
        self._claims = RowStatement("claims", dialect, lambda rowset: select_claims(rowset, dialect))

    @classmethod
    @contextmanager
    def opened(cls, url: str, *, tenancy: Tenancy = DEFAULT_TENANCY) -> Iterator[Self]:
        with database.open_checked_engine(url, read_only=True) as engine:
            yield cls(engine, tenancy=tenancy)

    @property
    def retry_queue(self) -> RetryQueue:
        """The scheduled retries and the requests that are due. Through a reader, nothing can be scheduled."""
        return RetryQueue(self._engine)

    def state(self, key: PartitionKey) -> PartitionState:
        """Return the state of a partition. A partition without a row is pending."""
        return self.states([key])[key]

    def states(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, PartitionState]:
        """Return the state of each partition, in the order of the keys."""
        unique_keys = list(dict.fromkeys(keys))
        recorded = {state.key: state for state in map(decode_state, self._read(self._states, unique_keys))}
        return {key: recorded.get(key) or PartitionState.absent(key) for key in unique_keys}

    def list_states(
        self, state_filter: StateFilter, *, after: PartitionKey | None = None, limit: int = 1000
    ) -> list[PartitionState]:
        """Return one page of the recorded states that match, in key order, starting after a key.

        An empty page is the end. Raises ValueError for a limit outside 1 to 10,000.
        """
        if not 1 <= limit <= MAX_PAGE_SIZE:
            raise ValueError(f"limit must be 1 to {MAX_PAGE_SIZE}, not {limit}")
        statement = listing_queries.page_of_states(state_filter, after=after, limit=limit)
        return list(map(decode_state, self._execute(statement)))

    def iter_states(self, state_filter: StateFilter, *, limit: int = 1000) -> Iterator[PartitionState]:
        """Iterate over all recorded states that match, one query per page. Concurrent changes may be missed."""
        after = None
        while page := self.list_states(state_filter, after=after, limit=limit):
            yield from page
            after = page[-1].key

    def count_by_status(
        self, state_filter: StateFilter, *, after: PartitionKey | None = None, max_count: int | None = None
    ) -> dict[Status, int]:
        """Return the number of recorded partitions that match, by status. With `after`, only later keys count.

        With `max_count`, counting stops at `max_count` + 1 per status, so that its cost has a bound.
        """

        def count(connection: sa.Connection) -> dict[Status, int]:
            names = state_filter.query_names or frozenset[str]()
            if state_filter.query_names is None and listing_queries.uses_day_index(state_filter):
                names = frozenset(connection.scalars(listing_queries.query_names(str(state_filter.source))))
            counts = dict.fromkeys(Status, 0)
            parts = listing_queries.counts_by_status(state_filter, after=after, max_count=max_count, names=names)
            for row in connection.execute(sa.union_all(*parts)) if parts else ():
                counts[Status(row.status)] += row.partitions
            if max_count is None:
                return counts
            return {status: min(number, max_count + 1) for status, number in counts.items()}

        return database.transact(self._engine, count)

    def runs(self, key: PartitionKey) -> list[RegisteredRun]:
        """Return the registered runs of a partition, oldest first."""
        return [registered for registered, _at in self.registrations(key)]

    def registrations(self, key: PartitionKey) -> list[tuple[RegisteredRun, datetime]]:
        """Return the registered runs of a partition with their registration times, oldest first."""
        rows = self._execute(sa.select(runs).where(*_has_key(runs, key)).order_by(runs.c.ordinal))
        return [(decode_registered_run(row), row.registered_at) for row in rows]

    def attempts(self, key: PartitionKey) -> list[Attempt]:
        """Return all verdicts on a partition, in the order in which they were recorded."""
        rows = self._execute(sa.select(attempts).where(*_has_key(attempts, key)).order_by(attempts.c.attempt_no))
        return list(map(_attempt, rows))

    def pointers(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Pointer]:
        """Return the pointers of the partitions that have one, in the order of the keys."""
        unique_keys = list(dict.fromkeys(keys))
        pointers = {
            pointer.run.key: pointer for pointer in map(decode_pointer, self._read(self._pointers, unique_keys))
        }
        return {key: pointers[key] for key in unique_keys if key in pointers}

    def judged_by_run(self, keys: Iterable[PartitionKey]) -> dict[Run, bool]:
        """Return the registered runs of these partitions, oldest first in each, and whether each has a verdict."""
        return {
            decode_run(row): bool(row.is_judged) for row in self._read(self._judged_flags, list(dict.fromkeys(keys)))
        }

    def unjudged_runs(self, keys: Iterable[PartitionKey]) -> list[Run]:
        """Return the registered runs of these partitions that have no verdict, oldest first in each."""
        return [run for run, is_judged in self.judged_by_run(keys).items() if not is_judged]

    def newest_runs(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, tuple[RegisteredRun, Outcome | None]]:
        """Return the newest run and its last outcome, for each partition that has a run."""
        rows = self._read(self._newest_runs, list(dict.fromkeys(keys)))
        return {decode_key(row): (decode_registered_run(row), row.outcome and Outcome(row.outcome)) for row in rows}

    def judged_by_run_between(self, *, source: str, since: date, until: date) -> dict[Run, bool]:
        """Return the registered runs of a source in a window of days, and whether each has a verdict."""
        statement = visibility_queries.runs_with_judged_flag_between(source=source, since=since, until=until)
        return {decode_run(row): bool(row.is_judged) for row in self._execute(statement)}

    def last_verdicts(self, state_filter: StateFilter) -> dict[Run, tuple[Outcome | None, bool]]:
        """Return the last outcome of each registered run, and whether the run is the current run of a success."""
        rows = self._execute(visibility_queries.last_verdicts().where(*listing_queries.conditions(state_filter)))
        return {decode_run(row): (row.outcome and Outcome(row.outcome), bool(row.is_current)) for row in rows}

    def publishable_runs(self, candidates: Iterable[Run]) -> set[Run]:
        """Return the candidates that are the current run of a success without an open demotion."""
        return self._select_runs(self._publishable_runs, candidates)

    def readable_runs(self, candidates: Iterable[Run]) -> set[Run]:
        """Return the candidates whose rows readers may see, provided that the warehouse holds them."""
        return self._select_runs(self._readable_runs, candidates)

    def visible_runs(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> VisibleRuns:
        """Return all runs of a query that readers may see, by day and customer."""
        rows = self._execute(
            visibility_queries.visible_runs(source=source, query_name=query_name, since=since, until=until)
        )
        return VisibleRuns(
            runs=tuple(VisibleRun(row.customer_id, row.logical_date, row.run_id, row.is_current) for row in rows),
            table_version=max((row.table_version for row in rows), default=-1),
        )

    def publication_statuses_of_query(
        self, *, source: str, query_name: str, since: date | None = None, until: date | None = None
    ) -> list[PublicationStatus]:
        """Return the status of each recorded partition of a query, by day and customer."""
        statement = visibility_queries.publication_statuses_of_query(
            source=source, query_name=query_name, since=since, until=until
        )
        return list(map(decode_publication_status, self._execute(statement)))

    def publication_statuses(self, keys: Sequence[PartitionKey]) -> list[PublicationStatus]:
        """Return the status of each of these partitions that is recorded, in no order."""
        return list(map(decode_publication_status, self._read(self._publication_statuses, keys)))

    def publication_status(self, key: PartitionKey) -> PublicationStatus | None:
        """Return the status of one partition, or None when it is not recorded."""
        return next(iter(self.publication_statuses([key])), None)

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
        rows = self._execute(sa.select(demotions).where(*of_query).order_by(*order))
        return [
            Verdict(run=decode_run(row), outcome=Outcome.REJECTED, **pick_fields(Verdict, row, "run", "outcome"))
            for row in rows
        ]

    def partition_statuses(
        self, asset: str, keys: Iterable[PartitionKey]
    ) -> dict[PartitionKey, PartitionStatus | None]:
        """Return the ADR-026 status of each partition in one asset of its query, or None without an attempt."""
        unique_keys = list(dict.fromkeys(keys))
        statuses = database.transact(self._engine, lambda c: self._statuses.read(c, asset, unique_keys))
        return {key: status for key, (status, _attempt_count) in statuses.items()}

    def code_versions(self, source: str) -> dict[str, CodeVersion]:
        """Return the deployed version of each asset definition, by asset key."""
        return database.transact(self._engine, lambda c: read_code_versions(c, self._tenancy, source))

    def lease_holders(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, LeaseHolder]:
        """Return the run that holds each claimed partition. Unclaimed partitions are left out."""
        rows = self._read(self._claims, list(dict.fromkeys(keys)))
        return {decode_key(row): read_lease_holder(row) for row in rows if row.is_live}

    def customers(self, source: str) -> list[str]:
        """Return the ids of all customers with a recorded partition of the source, sorted."""
        statement = sa.select(partition_state.c.customer_id).where(partition_state.c.source == source).distinct()
        return sorted(row.customer_id for row in self._execute(statement))

    def partition_actions(self, key: PartitionKey) -> list[PartitionAction]:
        """Return the control actions that changed a partition, oldest first."""
        rows = self._execute(
            sa.select(control_actions, control_action_partitions.c.status_before)
            .join(control_action_partitions, control_action_partitions.c.action_id == control_actions.c.action_id)
            .where(*_has_key(control_action_partitions, key))
            .order_by(control_actions.c.performed_at, control_actions.c.action_id)
        )
        return [
            PartitionAction(
                status_before=_status_before(row),
                **pick_fields(PartitionAction, row, "status_before"),
            )
            for row in rows
        ]

    def action_parts(self, action_id: str) -> list[LoggedAction]:
        """Return all logged parts of an action, or an empty list when no action has that id."""
        return list(map(_logged_action, self._execute(audit_queries.select_action_parts(action_id))))

    def list_actions(self, *, after: LoggedAction | None = None, limit: int = 1000) -> list[LoggedAction]:
        """Return one page of all logged actions, newest first, starting after one of them."""
        return list(map(_logged_action, self._execute(audit_queries.select_actions(after, limit))))

    def list_changed_partitions(
        self, action_ids: Sequence[str], *, after: PartitionKey | None = None, limit: int = 1000
    ) -> list[tuple[PartitionKey, Status | None]]:
        """Return one page of the partitions that these actions changed, in key order, and their earlier status."""
        rows = self._execute(audit_queries.select_changed_partitions(action_ids, after, limit))
        return [(decode_key(row), _status_before(row)) for row in rows]

    def list_attempts(
        self, state_filter: StateFilter, *, after: tuple[PartitionKey, int] | None = None, limit: int = 1000
    ) -> list[Attempt]:
        """Return one page of the verdicts on all matching partitions, by key and attempt number."""
        statement = audit_queries.select_attempts(listing_queries.conditions(state_filter), after, limit)
        return list(map(_attempt, self._execute(statement)))

    def _read(self, statement: RowStatement, keys: Sequence[PartitionKey]) -> Sequence[sa.Row[Any]]:
        return database.transact(self._engine, lambda c: statement.execute(c, map(encode_key, keys)).all())

    def _select_runs(self, statement: RowStatement, candidates: Iterable[Run]) -> set[Run]:
        rows = list(map(encode_run, candidates))
        return database.transact(self._engine, lambda c: set(map(decode_run, statement.execute(c, rows))))

    def _execute(self, statement: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        return database.transact(self._engine, lambda c: c.execute(statement).all())


def _attempt(row: sa.Row[Any]) -> Attempt:
    outcome, effect = Outcome(row.outcome), Effect(row.effect)
    return Attempt(
        run=decode_run(row), outcome=outcome, effect=effect, **pick_fields(Attempt, row, "run", "outcome", "effect")
    )


def _has_key(table: sa.Table, key: PartitionKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == getattr(key, name) for name in KEY]


def _logged_action(row: sa.Row[Any]) -> LoggedAction:
    return LoggedAction(**pick_fields(LoggedAction, row))


def _status_before(row: sa.Row[Any]) -> Status | None:
    return None if row.status_before is None else Status(row.status_before)
