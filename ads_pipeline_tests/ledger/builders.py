"""Short ways to say what ledger tests say all the time."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Outcome, Verdict
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import ActionRequest, Publication, PublishResult, RunRegistration, VerdictResult

ROWS = 3


class FakeClock:
    """A clock that goes where the test sends it."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def tick(self, by: timedelta = timedelta(seconds=1)) -> None:
        self.now += by


def key(customer_id: str = "1234567890", *, query_name: str = "campaign_daily", day: int = 1) -> PartitionKey:
    return PartitionKey(
        source="google_ads", customer_id=customer_id, query_name=query_name, logical_date=date(2026, 2, day)
    )


def keys(count: int) -> list[PartitionKey]:
    return [key(str(1000 + n)) for n in range(count)]


def run(partition: PartitionKey, run_id: str) -> Run:
    return Run(key=partition, run_id=run_id)


def sealed(*runs: Run, schema_version: str = "1") -> list[RunRegistration]:
    return [RunRegistration(run=run, schema_version=schema_version, record_count=ROWS) for run in runs]


def damaged(*runs: Run) -> list[RunRegistration]:
    return [RunRegistration(run=run) for run in runs]


def accept(run: Run, validation_id: str = "") -> Verdict:
    return Verdict(run=run, outcome=Outcome.ACCEPTED, validation_id=validation_id, rows_read=ROWS)


def reject(run: Run, message: str | None = None, *, validation_id: str = "") -> Verdict:
    return Verdict(
        run=run,
        outcome=Outcome.REJECTED,
        validation_id=validation_id,
        error_class="row_contract",
        error_message=message or f"{run.run_id} is bad",
        rows_read=ROWS,
        rows_failed=1,
    )


def landed(ledger: Ledger, partition: PartitionKey, *run_ids: str) -> list[Run]:
    """Registered runs of a partition, oldest first."""
    runs = [run(partition, run_id) for run_id in run_ids]
    ledger.register(sealed(*runs))
    return runs


def accepted(ledger: Ledger, partitions: Iterable[PartitionKey], run_id: str = "r1") -> list[VerdictResult]:
    """Each partition a success from a run of that name."""
    runs = [run(partition, run_id) for partition in partitions]
    ledger.register(sealed(*runs))
    return ledger.record_verdicts([accept(run) for run in runs])


def load(ledger: Ledger, *runs: Run) -> PublishResult:
    return ledger.publish([Publication(run=each, table_version=1) for each in runs])


@contextmanager
def set_at_last(done: threading.Event) -> Iterator[None]:
    """Whatever comes of the block, those who wait for its end hear of it."""
    try:
        yield
    finally:
        done.set()


def order(act_id: str = "act-1", *, reason: str = "asked to") -> ActionRequest:
    return ActionRequest(act_id=act_id, operator="ada", command="state retry", reason=reason)
