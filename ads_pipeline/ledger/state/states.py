"""Reads partition states: one, many, page by page, and their number by status."""

from collections.abc import Iterable, Iterator
from typing import Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger import database
from ads_pipeline.ledger.row_mapping import decode_state, encode_key
from ads_pipeline.ledger.state import listing_queries
from ads_pipeline.ledger.statements import select_given
from ads_pipeline.ledger.tables import partition_state
from ads_pipeline.ledger.values import StateFilter

MAX_PAGE_SIZE: Final = 10_000
_READ_STATES: Final = select_given(partition_state)


class States:
    """The states of all partitions."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def get(self, key: PartitionKey) -> PartitionState:
        """Return the state of a partition. A partition without a row is pending."""
        return self.get_many([key])[key]

    def get_many(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, PartitionState]:
        """Return the state of each partition, in the order of the keys."""
        unique_keys = list(dict.fromkeys(keys))
        rows = _READ_STATES.fetch(self._engine, map(encode_key, unique_keys))
        recorded = {state.key: state for state in map(decode_state, rows)}
        return {key: recorded.get(key) or PartitionState.absent(key) for key in unique_keys}

    def page(
        self, state_filter: StateFilter, *, after: PartitionKey | None = None, limit: int = 1000
    ) -> list[PartitionState]:
        """Return one page of the recorded states that match, in key order, starting after a key.

        An empty page is the end. Raises ValueError for a limit outside 1 to 10,000.
        """
        if not 1 <= limit <= MAX_PAGE_SIZE:
            raise ValueError(f"limit must be 1 to {MAX_PAGE_SIZE}, not {limit}")
        statement = listing_queries.page_of_states(state_filter, after=after, limit=limit)
        return list(map(decode_state, database.fetch(self._engine, statement)))

    def iterate(self, state_filter: StateFilter, *, limit: int = 1000) -> Iterator[PartitionState]:
        """Iterate over all recorded states that match, one query per page. Concurrent changes may be missed."""
        after = None
        while page := self.page(state_filter, after=after, limit=limit):
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

    def customers(self, source: str) -> list[str]:
        """Return the ids of all customers with a recorded partition of the source, sorted."""
        statement = sa.select(partition_state.c.customer_id).where(partition_state.c.source == source).distinct()
        return sorted(row.customer_id for row in database.fetch(self._engine, statement))
