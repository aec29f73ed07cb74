"""Read access to a ledger: one object per subject, over one engine. Write access is in `ledger`."""

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
from ads_pipeline.ledger.state.days import Days
from ads_pipeline.ledger.state.publications import Publications
from ads_pipeline.ledger.state.run_history import RunHistory
from ads_pipeline.ledger.state.states import States
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.write_context import Clock


class LedgerReader:
    """Read access to one ledger, for which the database refuses writes. Functions take the one object they need."""

    events: EventReader

    def __init__(self, engine: sa.Engine, *, clock: Clock | None = None, tenancy: Tenancy = DEFAULT_TENANCY) -> None:
        self.engine = reading = database.read_only(engine)
        self.states = States(reading)
        self.runs = RunHistory(reading)
        self.days = Days(reading)
        self.publications = Publications(reading)
        self.statuses = StatusTable(reading, tenancy=tenancy)
        self.audit = AuditLog(reading)
        self.retry_queue = RetryQueue(reading, clock=clock)
        self.leases = Leases(reading)
        self.events = EventReader(reading, clock=clock)

    @classmethod
    @contextmanager
    def opened(cls, url: str, *, tenancy: Tenancy = DEFAULT_TENANCY) -> Iterator[Self]:
        with database.open_checked_engine(url, read_only=True) as engine:
            yield cls(engine, tenancy=tenancy)
