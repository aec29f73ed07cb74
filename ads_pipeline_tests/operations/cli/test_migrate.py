"""`migrate`: creates the ledger, keeps its rows, and rebuilds partition_status."""

from pathlib import Path

import pytest

from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline_tests.ledger.builders import accepted_runs, keys, open_part
from ads_pipeline_tests.operations.cli.running import CommandLine


def execute(cli: CommandLine, statement: str) -> None:
    engine = database.open_engine(f"sqlite:///{cli.home / 'ledger.db'}")
    with database.open_transaction(engine) as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def test_migrate_creates_a_missing_ledger(tmp_path: Path) -> None:
    """Other commands then work in the new home."""
    cli = CommandLine(home=tmp_path / "home")
    assert cli.run("state", "inspect").code == 78
    assert cli.run("migrate").lines == [
        "the ledger was at revision none and is at 0001",
        "rebuilt 0 rows of partition_status",
    ]
    assert cli.run("state", "inspect").code == 0


@pytest.mark.invariant("X5", "P10")
def test_migrate_keeps_rows_and_rebuilds_partition_status(empty_cli: CommandLine) -> None:
    """A second run changes no state. Lost rows of partition_status return, for the tenant of the settings."""
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        accepted_runs(ledger, keys(2))
    before = empty_cli.run("state", "inspect").out
    execute(empty_cli, "DELETE FROM partition_status")
    cli = CommandLine(home=empty_cli.home, more={"ADS_PIPELINE_TENANT": "acme"})
    migrated = cli.process("migrate")
    assert (migrated.code, migrated.err) == (0, "")
    assert migrated.lines == [
        "the ledger was at revision 0001 and is at 0001",
        "rebuilt 2 rows of partition_status",
    ]
    assert empty_cli.run("state", "inspect").out.splitlines()[-1] == before.splitlines()[-1]
    with open_part(StatusTable, f"sqlite:///{cli.home / 'ledger.db'}") as status_table:
        assert [row.tenant_id for row in status_table.read_all()] == ["acme", "acme"]


def test_migrate_refuses_a_newer_ledger(empty_cli: CommandLine) -> None:
    """The exit code says that the settings are wrong, and nothing is changed."""
    execute(empty_cli, f"UPDATE {database.REVISION_TABLE} SET version_num = '9999'")
    ended = empty_cli.run("migrate")
    assert (ended.code, ended.out) == (78, "")
    assert "the ledger is at revision 9999, this release needs 0001" in ended.err


def test_migrate_reports_an_unreachable_database(tmp_path: Path) -> None:
    """The message says that the command may succeed later, and does not contain the URL."""
    url = "postgresql+psycopg2://ada:hunter2@127.0.0.1:1/ads"
    ended = CommandLine(home=tmp_path, more={"ADS_PIPELINE_DATABASE_URL": url}).run("migrate")
    assert (ended.code, ended.out) == (69, "")
    assert "may succeed later" in ended.err
    assert "hunter2" not in ended.err
