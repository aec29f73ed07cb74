"""The command `accounts discover`, with the real client against the loopback server."""

from pathlib import Path

import pytest

from ads_pipeline.google_ads.loopback.process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import Scenario
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.cli.running import CommandLine
from ads_pipeline_tests.google_ads.agency import CANCELED, GOOD, NESTED, agency
from ads_pipeline_tests.google_ads.builders import LOGIN


@pytest.fixture
def cli(tmp_path: Path, server: LoopbackServer) -> CommandLine:
    home = tmp_path / "home"
    with Ledger.opened(f"sqlite:///{home / 'ledger.db'}"):
        pass
    return CommandLine(home=home, more={"ADS_PIPELINE_GOOGLE_ADS": str(server.configuration)})


def test_discovery_lists_and_parks_accounts(cli: CommandLine, server: LoopbackServer) -> None:
    """One operation for the manager, one for each account's conversion windows, and none when it is repeated."""
    server.answer(agency(GOOD[:2]))
    found = cli.run("accounts", "discover", "--json")
    rows = {row["customer_id"]: row for row in found.objects}
    assert (found.code, {each for each, row in rows.items() if row["fetched"] == "manager"}) == (0, {LOGIN, NESTED})
    assert (rows[CANCELED]["parked"], rows[CANCELED]["next"]) == (
        "account_canceled",
        "ads-pipeline accounts discover",
    )
    assert [rows[each]["fetched"] for each in GOOD[:2]] == ["yes", "yes"]
    assert "7 accounts: 7 new, 1 parked, 0 released, 0 gone" in found.err
    first = server.operations()
    assert CANCELED not in first
    assert "7 accounts: 0 new, 0 parked, 0 released, 0 gone" in cli.run("accounts", "discover").out
    second = server.operations()
    assert {name for name in second if second[name] > first[name]} == {"list_accessible_customers", LOGIN}


def test_refused_credentials_are_reported_and_lose_nothing(cli: CommandLine, server: LoopbackServer) -> None:
    """The exit code is 1, the message has the class, and the accounts found before stay."""
    server.answer(agency(GOOD[:1]))
    assert cli.run("accounts", "discover").code == 0
    server.answer(Scenario(refuse_token=True))
    refused = cli.run("accounts", "discover")
    assert (refused.code, "no answer from" in refused.out) == (1, True)
    assert "credentials_refused" in "".join(refused.out.split())
    assert cli.run("accounts", "list").lines[-1] == "6 accounts, 1 parked"
