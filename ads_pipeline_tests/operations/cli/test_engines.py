"""The number of engines that commands open on the ledger."""

import pytest
import sqlalchemy as sa

from ads_pipeline_tests.operations.cli.running import CommandLine

COMMANDS = (
    ("state", "inspect"),
    ("state", "due"),
    ("state", "why", "1/campaign_daily/2026-01-01"),
    ("reconcile",),
    ("events", "runs"),
    ("audit",),
    ("metrics",),
    ("doctor", "--quick"),
)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_command_opens_one_engine(
    empty_cli: CommandLine, opened_engines: list[sa.Engine], arguments: tuple[str, ...]
) -> None:
    """Reading, writing and checking commands open the ledger once."""
    empty_cli.run(*arguments)
    assert len(opened_engines) == 1
