"""The command `accounts discover`, with the real client against the loopback server."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.quota import Hold
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import parse_key
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import Behaviour, ListedAccount, Scenario
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.google_ads.agency import CANCELED, GOOD, NESTED, agency
from ads_pipeline_tests.google_ads.builders import LOGIN, failing
from ads_pipeline_tests.operations.cli.running import CommandLine

DIRECT = "2000000099"


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


@pytest.mark.invariant("L7")
def test_cancelled_direct_account_is_parked_and_its_advice_works(cli: CommandLine, server: LoopbackServer) -> None:
    """It is listed as parked after one operation; discovery then succeeds, and its next command releases it."""
    disabled = Behaviour(failure=failing("authorization_error", "CUSTOMER_NOT_ENABLED", code="PERMISSION_DENIED"))
    good = agency(GOOD[:1])
    accounts = replace(good, accessible=(DIRECT, *good.accessible))
    server.answer(replace(accounts, customers={**good.customers, DIRECT: disabled}))
    first = cli.run("accounts", "discover", "--json")
    assert (first.code, f"parked {DIRECT}: customer_not_enabled" in first.err) == (0, True)
    for _ in range(2):
        assert cli.run("accounts", "discover").code == 0
    assert server.operations()[DIRECT] == 1
    rows = {row["customer_id"]: row for row in cli.run("accounts", "list", "--json").objects}
    row = rows[DIRECT]
    assert (row["fetched"], row["parked"], row["shown_status"]) == ("parked", "customer_not_enabled", "refused")
    command = row["next"].removeprefix("ads-pipeline ").replace("TEXT", "paid").split()
    assert cli.run(*command, "--yes").code == 0
    direct = (ListedAccount(customer_id=DIRECT, level=0),)
    server.answer(replace(accounts, clients={**good.clients, DIRECT: direct}))
    assert cli.run("accounts", "discover").code == 0
    rows = {row["customer_id"]: row for row in cli.run("accounts", "list", "--json").objects}
    assert (rows[DIRECT]["fetched"], rows[DIRECT]["status"]) == ("yes", "ENABLED")


@pytest.mark.invariant("L9")
def test_discovery_that_reads_nothing_fails_and_doctor_says_since_when(
    cli: CommandLine, server: LoopbackServer
) -> None:
    """The exit code is 1 and doctor names the failure until a discovery has read an account again."""
    server.answer(Scenario(accessible=()))
    nothing = cli.run("accounts", "discover", "--json")
    assert (nothing.code, "the credentials reach no account" in nothing.err) == (1, True)
    server.answer(Scenario(refuse_token=True))
    assert cli.run("accounts", "discover").code == 1

    def examine() -> list[dict[str, Any]]:
        return [each for each in cli.run("doctor", "--quick", "--json").objects if each["check"] == "discovery"]

    (found,) = examine()
    assert found["severity"] == "error"
    assert found["problem"].startswith("since 20")
    assert "credentials_refused" in found["problem"]
    assert found["next"].endswith("then run ads-pipeline accounts discover")
    server.answer(agency(GOOD[:1]))
    assert cli.run("accounts", "discover").code == 0
    assert examine() == []


@pytest.mark.invariant("L8", "L9", "L11")
def test_hold_is_named_everywhere_and_its_command_lifts_it(cli: CommandLine, server: LoopbackServer) -> None:
    """Accounts, doctor, `state inspect --list parked` and `state why` name one hold, and one command that works."""
    server.answer(agency(GOOD[:1]))
    assert cli.run("accounts", "discover").code == 0
    day = f"{GOOD[0]}/campaign_daily/{datetime.now(UTC).date() - timedelta(days=9)}"
    with Ledger.opened(f"sqlite:///{cli.home / 'ledger.db'}") as ledger:
        partition = parse_key(f"google_ads/{day}")
        fetch = FailedFetch(key=partition, error_class="source_unavailable", error_message="no route to the host")
        ledger.failed_fetches.record([fetch], RetryPolicy())
        until = datetime.now(UTC) + timedelta(days=365)
        ledger.quota.hold(
            Hold(source="google_ads", until=until, why="no route to the host", error_class="source_unavailable")
        )
    command = "ads-pipeline state release --source google_ads --reason TEXT"
    rows = {row["customer_id"]: row for row in cli.run("accounts", "list", "--json").objects}
    assert (rows[GOOD[0]]["fetched"], rows[GOOD[0]]["next"]) == ("on hold", command)
    (finding,) = [each for each in cli.run("doctor", "--quick", "--json").objects if each["check"] == "holds"]
    assert (finding["next"], "no route to the host" in finding["problem"]) == (command, True)
    assert command in " ".join(cli.run("state", "inspect", "--list", "parked").out.split())
    (why,) = cli.run("state", "why", day, "--json").objects
    assert (why["next_command"], why["on_hold_until"] is not None) == (command, True)
    assert cli.run(*command.removeprefix("ads-pipeline ").replace("TEXT", "tried").split()).code == 0
    rows = {row["customer_id"]: row for row in cli.run("accounts", "list", "--json").objects}
    assert rows[GOOD[0]]["fetched"] == "yes"
    assert [each for each in cli.run("doctor", "--quick", "--json").objects if each["check"] == "holds"] == []
    assert (
        "release by"
        in cli.run(
            "audit",
        ).out
    )


@pytest.mark.invariant("L7", "L8")
def test_messages_about_a_used_up_day_agree(cli: CommandLine) -> None:
    """`state why`, `warehouse gaps` and the list of terminal days name one command, and it makes the day due."""
    partition = parse_key(f"google_ads/{GOOD[0]}/campaign_daily/{datetime.now(UTC).date() - timedelta(days=9)}")
    with Ledger.opened(f"sqlite:///{cli.home / 'ledger.db'}") as ledger:
        for _ in range(RetryPolicy().max_attempts):
            fetch = FailedFetch(key=partition, error_class="transient", error_message="reset by peer")
            ledger.failed_fetches.record([fetch], RetryPolicy())
    command = f"ads-pipeline state retry {partition.short_name} --reason TEXT"
    (why,) = cli.run("state", "why", partition.short_name, "--json").objects
    assert (why["given_up"], why["next_command"]) == (True, command)
    (gap,) = cli.run("warehouse", "gaps", "--query", partition.query_name, "--json").objects[:1]
    assert gap["next_command"] == command
    (listed,) = cli.run("state", "inspect", "--list", "terminal", "--json").objects
    assert listed["given_up"]
    assert cli.run("state", "due", "--json").objects == []
    assert cli.run(*command.removeprefix("ads-pipeline ").replace("TEXT", "again").split()).code == 0
    (due,) = cli.run("state", "due", "--json").objects
    assert due["customer_id"] == GOOD[0]
