"""A ledger for operators' commands: failed, terminal and good partitions, of days that are not too old."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from ads_pipeline.cli.actions import confirmation
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action, Outcome, Verdict
from ads_pipeline.ledger import database
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.tables import metadata
from ads_pipeline_tests.cli.running import CommandLine
from ads_pipeline_tests.ledger.builders import accepted_runs, registered_runs, publish_runs, action_request, run

TODAY = datetime.now(UTC).date()
DAY = TODAY - timedelta(days=2)  # also on the day after, should midnight pass
BECAUSE = ("--reason", "the source was down")


def recent(customer: int | str, query_name: str = "campaign_daily") -> PartitionKey:
    return PartitionKey(source="google_ads", customer_id=str(customer), query_name=query_name, logical_date=DAY)


FAILED = [recent(customer) for customer in range(101, 105)]
MARKED = recent(110)
GOOD = [recent(120), recent(121)]


@contextmanager
def ledger_at(cli: CommandLine) -> Iterator[Ledger]:
    with Ledger.opened(url_of(cli)) as ledger:
        yield ledger


def url_of(cli: CommandLine) -> str:
    return f"sqlite:///{cli.home / 'ledger.db'}"


def fail(
    ledger: Ledger, partitions: Sequence[PartitionKey], run_id: str = "r1", error_class: str = "contract"
) -> None:
    for partition in partitions:
        registered_runs(ledger, partition, run_id)
    ledger.record_verdicts(
        [
            Verdict(
                run=run(partition, run_id),
                outcome=Outcome.REJECTED,
                error_class=error_class,
                error_message=f"{partition}/{run_id}: its rows are bad",
                rows_read=3,
            )
            for partition in partitions
        ]
    )


def stock(cli: CommandLine) -> None:
    """Four that failed, one that is marked as terminal, two that are read."""
    with ledger_at(cli) as ledger:
        fail(ledger, [*FAILED, MARKED])
        ledger.execute(Action.MARK_TERMINAL, [MARKED], action_request("marked"))
        accepted_runs(ledger, GOOD)
        publish_runs(ledger, *(run(each, "r1") for each in GOOD))


def digest(cli: CommandLine) -> dict[str, list[str]]:
    """Every row of every table."""
    with database.opened(url_of(cli), read_only=True) as engine:

        def rows(connection: sa.Connection) -> dict[str, list[str]]:
            return {
                table.name: sorted(map(repr, connection.execute(sa.select(table)).all()))
                for table in metadata.sorted_tables
            }

        return database.transact(engine, rows)


def somebody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question would reach somebody, whose answers are what the test feeds to the command."""
    monkeypatch.setattr(confirmation, "is_interactive", lambda: True)
