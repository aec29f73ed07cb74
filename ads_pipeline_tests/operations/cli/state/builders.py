"""A ledger for tests of operators' commands: failed, terminal and successful partitions of recent days."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import metadata
from ads_pipeline.operations.cli.state import confirmation
from ads_pipeline_tests.builders import ROWS, rejection, seal_facts
from ads_pipeline_tests.ledger.builders import (
    accepted_runs,
    action_request,
    publish_runs,
    registered_runs,
    run,
)
from ads_pipeline_tests.operations.cli.running import CommandLine

TODAY = datetime.now(UTC).date()
DAY = TODAY - timedelta(days=2)  # recent also when midnight passes during the test
REASON = ("--reason", "the source was down")


def recent_key(customer: int | str, query_name: str = "campaign_daily") -> PartitionKey:
    return PartitionKey(source="google_ads", customer_id=str(customer), query_name=query_name, logical_date=DAY)


FAILED = [recent_key(customer) for customer in range(101, 105)]
MARKED = recent_key(110)
SUCCESSFUL = [recent_key(120), recent_key(121)]


@contextmanager
def open_ledger(cli: CommandLine) -> Iterator[Ledger]:
    with Ledger.opened(ledger_url(cli)) as ledger:
        yield ledger


def ledger_url(cli: CommandLine) -> str:
    return cli.more.get("ADS_PIPELINE_DATABASE_URL", f"sqlite:///{cli.home / 'ledger.db'}")


def record_failures(
    ledger: Ledger, partitions: Sequence[PartitionKey], run_id: str = "r1", error_class: str = "contract"
) -> None:
    for partition in partitions:
        registered_runs(ledger, partition, run_id)
    ledger.verdicts.record(
        [rejection(run(partition, run_id), "its rows are bad", error_class=error_class) for partition in partitions]
    )


def seal_runs(cli: CommandLine, partitions: Sequence[PartitionKey]) -> None:
    """Seal a run of each partition below the raw root, without which a retry needs --force."""
    for partition in partitions:
        RawRuns(cli.home / "raw").land(run(partition, "r1"), ROWS, seal_facts())


def fill_ledger(cli: CommandLine) -> None:
    """Record four failed partitions, one marked as terminal and two published ones, each with a sealed run."""
    seal_runs(cli, [*FAILED, MARKED, *SUCCESSFUL])
    with open_ledger(cli) as ledger:
        record_failures(ledger, [*FAILED, MARKED])
        ledger.actions.execute(Action.MARK_TERMINAL, [MARKED], action_request("marked"))
        accepted_runs(ledger, SUCCESSFUL)
        publish_runs(ledger, *(run(partition, "r1") for partition in SUCCESSFUL))


def read_all_rows(cli: CommandLine) -> dict[str, list[str]]:
    """Every row of every table."""
    with database.open_checked_engine(ledger_url(cli), read_only=True) as engine:

        def rows(connection: sa.Connection) -> dict[str, list[str]]:
            return {
                table.name: sorted(map(repr, connection.exec_driver_sql(f"SELECT * FROM {table.name}")))
                for table in metadata.sorted_tables
            }

        return database.transact(engine, rows)


def simulate_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the command ask for confirmation; the test supplies the answers."""
    monkeypatch.setattr(confirmation, "is_interactive", lambda: True)
