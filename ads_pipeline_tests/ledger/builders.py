"""Builders for ledger tests: keys, runs, verdicts, requests, and ledgers that hold them."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.errors import VerdictsRefused
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.domain.transitions import Verdict
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database, ledger_tables
from ads_pipeline.ledger.sql.ledger_values import (
    ActionRequest,
    PublishResult,
    VerdictResult,
)
from ads_pipeline.ledger.write_steps.leases import Lease
from ads_pipeline_tests import builders

ROWS = 3
T = TypeVar("T")


class FakeClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def tick(self, by: timedelta = timedelta(seconds=1)) -> None:
        self.now += by


@contextmanager
def open_part(kind: Callable[..., T], url: str, *, read_only: bool = False, **options: Any) -> Iterator[T]:
    """Open one object of a ledger, such as its event log, on an engine of its own."""
    with database.open_checked_engine(url, read_only=read_only) as engine:
        yield kind(engine, **options)


@contextmanager
def open_lease(url: str, engine_run_id: str, *, duration: timedelta) -> Iterator[Lease]:
    """Hold a lease on an engine of its own."""
    with database.open_checked_engine(url) as engine, Lease.held(engine, engine_run_id, duration=duration) as lease:
        yield lease


def key(customer_id: str = "1234567890", *, query_name: str = "campaign_daily", day: int = 1) -> PartitionKey:
    return PartitionKey(
        source="google_ads", customer_id=customer_id, query_name=query_name, logical_date=date(2026, 2, day)
    )


def keys(count: int) -> list[PartitionKey]:
    return [key(str(1000 + n)) for n in range(count)]


def run(partition: PartitionKey, run_id: str) -> Run:
    return Run(key=partition, run_id=run_id)


def sealed_runs(*runs: Run, schema_version: str = "1") -> list[SealedRun]:
    return [builders.sealed_run(run, ROWS, schema_version=schema_version) for run in runs]


def acceptance(run: Run, validation_id: str = "") -> Verdict:
    return builders.acceptance(run, ROWS, validation_id)


def rejection(run: Run, rule: str = "bad", *, error_class: str = "row_contract", validation_id: str = "") -> Verdict:
    return builders.rejection(run, rule, error_class=error_class, rows_read=ROWS, validation_id=validation_id)


def registered_runs(ledger: Ledger, partition: PartitionKey, *run_ids: str) -> list[Run]:
    """Register runs of a partition, oldest first, and return them."""
    runs = [run(partition, run_id) for run_id in run_ids]
    ledger.registrations.register(sealed_runs(*runs))
    return runs


def accepted_runs(ledger: Ledger, partitions: Iterable[PartitionKey], run_id: str = "r1") -> list[VerdictResult]:
    """Register and accept one run for each partition."""
    runs = [run(partition, run_id) for partition in partitions]
    ledger.registrations.register(sealed_runs(*runs))
    return ledger.verdicts.record([acceptance(run) for run in runs])


def record_verdict(ledger: Ledger, verdict: Verdict) -> VerdictResult:
    """Record one verdict, or raise the error for which it is refused."""
    try:
        return ledger.verdicts.record([verdict])[0]
    except VerdictsRefused as refused:
        raise refused.refusals[verdict.run] from None


def publish_runs(ledger: Ledger, *runs: Run) -> PublishResult:
    return ledger.loads.publish(runs, table_version=1)


def load_records(ledger: Ledger, partition: PartitionKey) -> Sequence[sa.Row[Any]]:
    """Return the load records of a partition, oldest first."""
    table = ledger_tables.load_records
    statement = sa.select(table).where(*(table.c[name] == getattr(partition, name) for name in ledger_tables.KEY))
    return database.transact(ledger.engine, lambda c: c.execute(statement.order_by(table.c.loaded_at)).all())


@contextmanager
def set_on_exit(done: threading.Event) -> Iterator[None]:
    """Set the event at the end of the block, also after an error, so that waiting threads go on."""
    try:
        yield
    finally:
        done.set()


def action_request(action_id: str = "action-1", *, reason: str = "on request") -> ActionRequest:
    return ActionRequest(action_id=action_id, operator="ada", command="state retry", reason=reason)
