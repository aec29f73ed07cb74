"""Access to a ledger: one object per subject, over one engine.

Each method that writes runs one transaction over any number of partitions, with the same number of statements. It
locks the state rows in key order and decides by `domain.transitions`. A repeated call changes nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.days.materialization_status import DEFAULT_TENANCY, Tenancy
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.control.failed_fetches import FailedFetches
from ads_pipeline.ledger.control.retry_queue import RetryQueue
from ads_pipeline.ledger.control.withdrawals import Withdrawals
from ads_pipeline.ledger.events.event_log import EventLog, new_origin
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.events.snapshots import completing_run, fold_run
from ads_pipeline.ledger.extraction.account_table import AccountReader, Accounts
from ads_pipeline.ledger.extraction.operation_quota import Quota, QuotaReader
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.state.days import Days
from ads_pipeline.ledger.state.load_recorder import Loads
from ads_pipeline.ledger.state.pointers import Publications
from ads_pipeline.ledger.state.restatement_reader import Restatements
from ads_pipeline.ledger.state.run_history import RunHistory
from ads_pipeline.ledger.state.run_registration import Registrations
from ads_pipeline.ledger.state.states import States
from ads_pipeline.ledger.state.verdicts import Verdicts
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.write_steps.audit_log import AuditLog
from ads_pipeline.ledger.write_steps.leases import Lease, Leases
from ads_pipeline.ledger.write_steps.transactions import Clock, LedgerWriter

T = TypeVar("T")


class LedgerReader:
    """Read access to one ledger, for which the database refuses writes. Functions take the one object they need."""

    events: EventReader
    accounts: AccountReader
    quota: QuotaReader

    def __init__(
        self, engine: database.Reading, *, clock: Clock | None = None, tenancy: Tenancy = DEFAULT_TENANCY
    ) -> None:
        self.engine = reading = database.read_only(engine)
        self._clock, self._tenancy = clock, tenancy
        self.states = States(reading)
        self.runs = RunHistory(reading)
        self.days = Days(reading)
        self.publications = Publications(reading)
        self.restatements = Restatements(reading)
        self.statuses = StatusTable(reading, tenancy=tenancy)
        self.audit = AuditLog(reading)
        self.retry_queue = RetryQueue(reading, clock=clock)
        self.leases = Leases(reading)
        self.events = EventReader(reading, clock=clock)
        self.accounts = AccountReader(reading)
        self.quota = QuotaReader(reading, clock=clock)

    def read_at_once(self, work: Callable[["LedgerReader"], T]) -> T:
        """Return what the work reads: in one transaction, as of one moment. The whole work is retried.

        An iterator of rows must be consumed by the work.
        """
        return database.read_at_once(
            self.engine,
            lambda engine: work(LedgerReader(engine, clock=self._clock, tenancy=self._tenancy)),
        )

    @classmethod
    @contextmanager
    def opened(cls, url: str, *, tenancy: Tenancy = DEFAULT_TENANCY) -> Iterator[Self]:
        with database.open_checked_engine(url, read_only=True) as engine:
            yield cls(engine, tenancy=tenancy)


class Ledger(LedgerReader):
    """Read and write access to one ledger.

    A `clock` replaces the database's clock. Every change emits events of `origin`, the run that makes it. With a
    lease, a method raises LeaseLost unless this run has claimed all partitions that it writes. Control actions need
    no claim. A run with a lease may take hours, so its events are folded into its snapshot after each write.
    """

    engine: sa.Engine
    events: EventLog
    accounts: Accounts
    quota: Quota

    def __init__(
        self,
        engine: sa.Engine,
        *,
        clock: Clock | None = None,
        origin: EventOrigin | None = None,
        tenancy: Tenancy = DEFAULT_TENANCY,
        lease: Lease | None = None,
    ) -> None:
        super().__init__(engine, clock=clock, tenancy=tenancy)
        self.engine = engine
        self.statuses = StatusTable(engine, tenancy=tenancy)
        self.retry_queue = RetryQueue(engine, clock=clock)
        self.events = EventLog(engine, clock=clock)
        self.origin = origin or new_origin()
        after_events = partial(fold_run, self.events, self.origin.engine_run_id) if lease is not None else None
        writer = LedgerWriter(
            engine, clock=clock, origin=self.origin, tenancy=tenancy, lease=lease, after_events=after_events
        )
        self.registrations = Registrations(writer)
        self.verdicts = Verdicts(writer)
        self.loads = Loads(writer)
        self.actions = ControlActions(writer, self.retry_queue)
        self.withdrawals = Withdrawals(writer)
        self.failed_fetches = FailedFetches(writer, self.retry_queue)
        self.accounts = Accounts(writer)
        self.quota = Quota(writer)

    @classmethod
    @contextmanager
    def opened(
        cls,
        url: str,
        *,
        clock: Clock | None = None,
        origin: EventOrigin | None = None,
        tenancy: Tenancy = DEFAULT_TENANCY,
        lease: Lease | None = None,
        create: bool = True,
    ) -> Iterator[Self]:
        """Open the ledger for the run `origin`, which the caller completes.

        Without an origin, a new run is started here and completed at the end of the block.
        """
        with database.open_checked_engine(url, create=create) as engine:
            if origin is not None:
                yield cls(engine, clock=clock, origin=origin, tenancy=tenancy, lease=lease)
                return
            with cls.running(engine, clock=clock, tenancy=tenancy) as opened:
                yield opened

    @classmethod
    @contextmanager
    def running(
        cls, engine: sa.Engine, *, clock: Clock | None = None, tenancy: Tenancy = DEFAULT_TENANCY
    ) -> Iterator[Self]:
        """Start a run of its own for this process, and complete it at the end of the block."""
        ledger = cls(engine, clock=clock, tenancy=tenancy)
        with completing_run(ledger.events, ledger.origin):
            yield ledger
