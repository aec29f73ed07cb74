"""Carries out control acts: what may be done to partitions without a verdict, and what is noted beside them.

For the control plane. Who holds this can requeue a failed partition and cannot say that one is safe to read; that is
`writer`'s.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Self, TypeVar

import sqlalchemy as sa

from ads_pipeline.freshness import Space
from ads_pipeline.ledger import database
from ads_pipeline.ledger.acting import act_on
from ads_pipeline.ledger.event_log import EventLog, closing_run, own_origin
from ads_pipeline.ledger.reader import HERE, LedgerReader
from ads_pipeline.ledger.records import Acted, Order
from ads_pipeline.ledger.writing import Clock, Writing
from ads_pipeline.partition import PartitionKey
from ads_pipeline.run_events import Origin
from ads_pipeline.transitions import Act, PartitionState

T = TypeVar("T")


class Desk(LedgerReader):
    """Read access to one ledger, and the acts of operators and of the retry policy.

    A `clock` replaces the database's own, for those who choose the time. Every change is told as events of the
    `origin`, the run that makes it.
    """

    def __init__(
        self, engine: sa.Engine, *, clock: Clock | None = None, origin: Origin | None = None, space: Space = HERE
    ) -> None:
        super().__init__(engine, space=space)
        self.origin = origin or own_origin()
        self._writing = Writing(engine.dialect.name, clock=clock, origin=self.origin, space=space)
        self._sql = self._writing.sql

    @classmethod
    @contextmanager
    def opened(
        cls, url: str, *, clock: Clock | None = None, origin: Origin | None = None, space: Space = HERE
    ) -> Iterator[Self]:
        """Opened for a run that somebody else starts and ends; without one, for a run of its own."""
        with database.opened(url) as engine:
            opened = cls(engine, clock=clock, origin=origin, space=space)
            if origin is not None:
                yield opened
                return
            with closing_run(EventLog(engine, clock=clock), opened.origin):
                yield opened

    def carry_out(
        self, act: Act, keys: Iterable[PartitionKey], order: Order, *, seen: Iterable[PartitionState] = ()
    ) -> Acted:
        """Carry out a control act on each partition it is legal for, and log it in the same transaction.

        With the states that were seen when the act was ordered, a partition that has changed since is refused.
        """
        wanted, known = in_order(keys), {state.key: state for state in seen}
        return self._transact(lambda connection: act_on(self._writing, connection, act, wanted, order, known))

    def _transact(self, work: Callable[[sa.Connection], T]) -> T:
        return database.transact(self._engine, work)


def in_order(keys: Iterable[PartitionKey]) -> list[PartitionKey]:
    """Each key once, in the order in which every verb takes its locks."""
    return sorted(set(keys))
