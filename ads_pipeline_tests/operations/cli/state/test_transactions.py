"""The transactions that an action of an operator opens."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.ledger.builders import key, record_verdict, registered_runs, rejection
from ads_pipeline_tests.ledger.transactions import counted_transactions
from ads_pipeline_tests.operations.cli.running import CommandLine

MAX_TRANSACTIONS = 9


def test_retry_opens_the_ledger_once_and_few_transactions(tmp_path: Path) -> None:
    """The plan and its execution share one ledger. The execution reads the state again under its lock."""
    settings = read_settings({"ADS_PIPELINE_HOME": str(tmp_path)})
    partition = replace(key(), logical_date=(datetime.now(UTC) - timedelta(days=3)).date())
    with Ledger.opened(settings.database_url) as ledger:
        (run,) = registered_runs(ledger, partition, "r1")
        record_verdict(ledger, rejection(run))
    with counted_transactions() as callers:
        result = CommandLine(home=tmp_path).run("state", "retry", str(partition), "--reason", "why", "--force")
    assert result.code == 0, result.err
    assert sum("read_revisions" in each for each in callers) == 1
    assert len(callers) <= MAX_TRANSACTIONS, "\n".join(callers)
