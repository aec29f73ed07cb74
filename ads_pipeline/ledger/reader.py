"""Read access to a ledger: one object per subject, over one read-only engine. Write access is in `ledger`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import sqlalchemy as sa

from ads_pipeline.domain.freshness import DEFAULT_TENANCY, Tenancy
from ads_pipeline.ledger import database
from ads_pipeline.ledger.control.audit_log import AuditLog
from ads_pipeline.ledger.control.leases import Leases
from ads_pipeline.ledger.control.retry_queue import RetryQueue
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.state.publications import Publications
from ads_pipeline.ledger.state.run_history import RunHistory
from ads_pipeline.ledger.state.states import States
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.write_context import Clock


class LedgerReader:
    """Read access to one ledger. Functions take the one object that they need."""

    events: EventReader

    def __init__(self, engine: sa.Engine, *, clock: Clock | None = None, tenancy: Tenancy = DEFAULT_TENANCY) -> None:
        self.engine = engine
        self.states = States(engine)
        self.runs = RunHistory(engine)
        self.publications = Publications(engine)
        self.statuses = StatusTable(engine, tenancy=tenancy)
        self.audit = AuditLog(engine)
        self.retry_queue = RetryQueue(engine, clock=clock)
        self.leases = Leases(engine)
        self.events = EventReader(engine, clock=clock)

    @classmethod
    @contextmanager
    def opened(cls, url: str, *, tenancy: Tenancy = DEFAULT_TENANCY) -> Iterator[Self]:
        with database.open_checked_engine(url, read_only=True) as engine:
            yield cls(engine, tenancy=tenancy)
