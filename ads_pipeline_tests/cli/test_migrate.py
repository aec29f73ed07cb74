"""`migrate`: the ledger comes to this release's schema, and what the command says of it."""

from pathlib import Path

import pytest

from ads_pipeline.ledger import database
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline_tests.cli.running import CommandLine
from ads_pipeline_tests.ledger.builders import key
from ads_pipeline_tests.ledger.old import make_old
from ads_pipeline_tests.ledger.status.finishes import made, status


@pytest.fixture
def old(tmp_path: Path) -> CommandLine:
    """A home whose ledger the release before wrote."""
    (tmp_path / "home").mkdir()
    make_old(f"sqlite:///{tmp_path / 'home' / 'ledger.db'}")
    return CommandLine(home=tmp_path / "home")


@pytest.mark.invariant("X5")
def test_an_old_ledger_is_brought_to_this_release(old: CommandLine) -> None:
    """Other commands say that it is needed; then it says from where to where, and they work."""
    refused = old.run("state", "inspect")
    assert (refused.code, refused.out) == (78, "")
    assert (
        "the ledger is at revision 0002, this release needs 0005: migrate it with ads-pipeline migrate" in refused.err
    )
    ended = old.run("migrate")
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines == [
        "the ledger was at revision 0002 and is at 0005",
        "6 rows of partition_status were made anew",
    ]
    assert old.run("state", "inspect").lines[-1] == "5 partitions: 2 success, 1 failed, 2 pending"
    with LedgerReader.opened(f"sqlite:///{old.home / 'ledger.db'}") as ledger:
        assert made(status(ledger, key(day=1))) == ("r2", "2")


def test_it_may_be_run_again(old: CommandLine) -> None:
    """A second time finds the revision that the first one left, and changes nothing."""
    old.run("migrate")
    again = old.process("migrate")
    assert (again.code, again.err) == (0, "")
    assert again.lines[0] == "the ledger was at revision 0005 and is at 0005"


def test_where_there_is_none_a_ledger_is_made(tmp_path: Path) -> None:
    """A new home begins with an empty ledger, whose rows are the space's that the settings name."""
    cli = CommandLine(home=tmp_path / "home", more={"ADS_PIPELINE_TENANT": "acme"})
    assert cli.run("migrate").lines[0] == "the ledger was at revision none and is at 0005"
    assert cli.run("state", "inspect").code == 0


def test_a_newer_ledger_is_left_alone(empty_cli: CommandLine) -> None:
    """What a later release wrote is neither changed nor taken for older; the code says that settings are wrong."""
    engine = database.open_engine(f"sqlite:///{empty_cli.home / 'ledger.db'}")
    newer = f"UPDATE {database.REVISION_TABLE} SET version_num = '9999'"
    database.transact(engine, lambda connection: connection.exec_driver_sql(newer))
    engine.dispose()
    ended = empty_cli.run("migrate")
    assert (ended.code, ended.out) == (78, "")
    assert "the ledger is at revision 9999, this release needs 0005" in ended.err


def test_a_database_out_of_reach_is_an_outage(tmp_path: Path) -> None:
    """A script learns that the same command may succeed later, and not where the database lies."""
    url = "postgresql+psycopg2://ada:hunter2@127.0.0.1:1/ads"
    ended = CommandLine(home=tmp_path, more={"ADS_PIPELINE_DATABASE_URL": url}).run("migrate")
    assert (ended.code, ended.out) == (69, "")
    assert "may succeed later" in ended.err
    assert "hunter2" not in ended.err
