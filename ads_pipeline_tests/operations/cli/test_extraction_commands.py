"""The commands about extraction: accounts, the plan of a backfill, restatements, and `state why` with an account."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.quota import Granted, Operation, QuotaLimits
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.measures import Measures
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.builders import key, sealed_run
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    accepted_runs,
    publish_runs,
    record_verdict,
    registered_runs,
)
from ads_pipeline_tests.ledger.builders import (
    run as run_of,
)
from ads_pipeline_tests.operations.cli.running import CommandLine

MANAGER, FIRST, SECOND, THIRD = "9000000000", "1000000001", "1000000002", "1000000003"
QUERIES = """\
source: google_ads
api_version: v26
start_date: {start}
google_ads:
  daily_operations: 10
  reserved_for_fresh: 0.5
  login_customer_ids: [9000000000]
queries:
  campaign_daily:
    schema_version: "2"
    reread_after_days: [7]
    gaql: SELECT segments.date, customer.id FROM campaign
"""


def today() -> date:
    return datetime.now(UTC).date()


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    home = tmp_path / "home"
    home.mkdir()
    (home / "google_apis.yaml").write_text(QUERIES.format(start=today() - timedelta(days=100)))
    return CommandLine(home=home)


@pytest.fixture
def ledger(cli: CommandLine) -> Iterator[Ledger]:
    with Ledger.opened(f"sqlite:///{cli.home / 'ledger.db'}") as opened:
        yield opened


def discover(ledger: Ledger, *changed: Account) -> None:
    """A manager, and three customers of whom the second is cancelled."""
    found = {
        each: Account(source="google_ads", customer_id=each, status="ENABLED") for each in (FIRST, SECOND, THIRD)
    }
    found[SECOND] = replace(found[SECOND], status="CANCELED")
    found[MANAGER] = Account(source="google_ads", customer_id=MANAGER, status="ENABLED", is_manager=True)
    found |= {each.customer_id: each for each in changed}
    below = [
        replace(each, login_customer_id=MANAGER, name=f"Account {each.customer_id[-1]}") for each in found.values()
    ]
    ledger.accounts.record("google_ads", below)


def test_accounts_list_names_reason_and_next_command(cli: CommandLine, ledger: Ledger) -> None:
    """A cancelled account needs a discovery, a refused one a release; managers are not fetched."""
    discover(ledger)
    refused = FailedFetch(
        key=key(THIRD), error_class="permission_denied", error_message="USER_PERMISSION_DENIED (q1)"
    )
    ledger.failed_fetches.record([refused], RetryPolicy())
    rows = {row["customer_id"]: row for row in cli.run("accounts", "list", "--json").objects}
    assert [(rows[each]["fetched"], rows[each]["parked"], rows[each]["next"]) for each in sorted(rows)] == [
        ("yes", None, None),
        ("parked", "account_canceled", "ads-pipeline accounts discover"),
        ("parked", "permission_denied", f"ads-pipeline state release --customer {THIRD} --reason TEXT"),
        ("manager", None, None),
    ]
    shown = cli.run("accounts", "list")
    assert "USER_PERMISSION_DENIED (q1)" in shown.out
    assert shown.lines[-1] == "4 accounts, 2 parked"
    assert cli.run("accounts", "list", "--customer", FIRST).lines[-1] == "1 account, 0 parked"


def test_accounts_list_without_discovery_names_the_command(cli: CommandLine, ledger: Ledger) -> None:
    """An empty list says how to fill it."""
    assert "accounts discover" in cli.run("accounts", "list").out


def test_discovery_is_refused_while_extraction_is_off(cli: CommandLine, ledger: Ledger) -> None:
    """The message names the setting."""
    refused = cli.run("accounts", "discover")
    assert (refused.code, "ADS_PIPELINE_GOOGLE_ADS: is off" in refused.err) == (78, True)


def test_plan_counts_operations_and_days(cli: CommandLine, ledger: Ledger) -> None:
    """62 days of two accounts are 4 operations; parked and accepted days are left out and counted."""
    discover(ledger)
    until = today() - timedelta(days=10)
    since = until - timedelta(days=61)
    accepted_runs(ledger, [key(FIRST, day=until)])
    window = ("--since", str(since), "--until", str(until))
    (plan,) = cli.run("backfill", *window, "--json").objects
    assert (plan["partitions"], plan["operations"], plan["fresh_operations"]) == (123, 4, 0)
    assert plan["skipped"] == {"accepted already": 1, f"parked: account {SECOND}": 62}
    assert (plan["left_for_backfills"], plan["left_for_fresh"], plan["days_to_finish"]) == (5, 10, 0)
    (again,) = cli.run("backfill", *window, "--again", "--json").objects
    assert (again["partitions"], again["operations"]) == (124, 4)
    assert "4 (0 for fresh days)" in cli.run("backfill", *window).out


def test_plan_says_when_a_spent_budget_is_enough(cli: CommandLine, ledger: Ledger) -> None:
    """What the accounts need each day anyway is not available to the backfill."""
    discover(ledger)
    for _ in range(4):
        operation = Operation(source="google_ads")
        assert isinstance(ledger.quota.reserve(operation, QuotaLimits(daily_operations=10)), Granted)
    window = ("--since", str(today() - timedelta(days=99)), "--until", str(today() - timedelta(days=5)))
    (plan,) = cli.run("backfill", *window, "--json").objects
    # Four ranges for each of two accounts. Of five operations a day that are not for fresh days, the last rereads
    # take two, and discovery two: one for the manager, and one for conversion windows.
    assert (plan["operations"], plan["used"], plan["left_for_backfills"]) == (8, 4, 5)
    assert (plan["daily_need"], plan["days_to_finish"]) == (6, 3)
    assert "in about 3 days" in cli.run("backfill", *window).out


def test_plan_names_the_command_that_requests_days(cli: CommandLine, ledger: Ledger) -> None:
    """The plan itself fetches and requests nothing."""
    plan = cli.run("backfill", "--customer", FIRST)
    assert (plan.code, "state enqueue" in plan.out) == (0, True)
    assert "nothing is due" in cli.run("state", "due").out


def test_plan_of_unknown_customers_names_discovery(cli: CommandLine, ledger: Ledger) -> None:
    """Without accounts and partitions there is nothing to plan; a customer by name is planned."""
    assert "accounts discover" in cli.run("backfill").err
    (plan,) = cli.run("backfill", "--customer", FIRST, "--json").objects
    assert plan["operations"] == 4


def restate(ledger: Ledger, *measures: Measures) -> None:
    partition = key(FIRST, day=today() - timedelta(days=5))
    runs = registered_runs(ledger, partition, *(f"r{number}" for number, _ in enumerate(measures)))
    for run, measured in zip(runs, measures, strict=True):
        record_verdict(ledger, replace(acceptance(run), measures=measured))


def test_restatements_stand_beside_what_they_replaced(cli: CommandLine, ledger: Ledger) -> None:
    """Costs are in currency units; --changed leaves out what moved nothing."""
    before = Measures(cost_micros=12_500_000, conversions=1.0, conversions_value=10.0)
    after = replace(before, conversions=3.5)
    restate(ledger, before, after, after)
    rows = cli.run("warehouse", "restatements", "--json").objects
    assert [(row["attempt_no"], row["before"]["conversions"], row["after"]["conversions"]) for row in rows] == [
        (2, 1.0, 3.5),
        (3, 3.5, 3.5),
    ]
    assert rows[0]["after"]["cost"] == 12.5
    shown = cli.run("warehouse", "restatements", "--changed")
    assert "1 → 3.5" in shown.out
    assert shown.lines[-1] == "1 restatement"
    assert (
        cli.run("warehouse", "restatements", "--customer", SECOND).lines[-1]
        == f"0 restatements match --customer {SECOND}"
    )


def test_why_shows_the_account_and_its_day(cli: CommandLine, ledger: Ledger) -> None:
    """Status, zone and manager; an unrecoverable day says so. Without a known account there is no such line."""
    discover(ledger, Account(source="google_ads", customer_id=FIRST, status="ENABLED", time_zone="Europe/Berlin"))
    day = today() - timedelta(days=50)
    shown = cli.run("state", "why", f"{FIRST}/campaign_daily/{day}")
    assert f"ENABLED, Europe/Berlin, below {MANAGER}" in " ".join(shown.out.split())
    (fields,) = cli.run("state", "why", f"{FIRST}/campaign_daily/{day}", "--json").objects
    assert fields["account_day"] == "closed"
    text = (cli.home / "google_apis.yaml").read_text().replace("reserved", "reach_days: 40\n  reserved")
    (cli.home / "google_apis.yaml").write_text(text)
    (fields,) = cli.run("state", "why", f"{FIRST}/campaign_daily/{day}", "--json").objects
    assert fields["account_day"].startswith("unrecoverable: the source serves only days from ")
    (other,) = cli.run("state", "why", f"1000000009/campaign_daily/{day}", "--json").objects
    assert (other["account"], other["account_day"]) == (None, None)


def accept_extracted(ledger: Ledger, partition: PartitionKey, extracted_at: datetime) -> None:
    """Accept a run that was extracted at a time, and show it to readers."""
    registered = sealed_run(run_of(partition, "r1"), 3, schema_version="2", extracted_at=extracted_at)
    ledger.registrations.register([registered])
    record_verdict(ledger, acceptance(registered.run))
    publish_runs(ledger, registered.run)


def test_lists_show_unrecoverable_days_apart_from_missing_ones(cli: CommandLine, ledger: Ledger) -> None:
    """In `warehouse gaps` and under a condition of their own; nothing can be done, so they need nobody."""
    discover(ledger)
    text = (cli.home / "google_apis.yaml").read_text().replace("reserved", "reach_days: 40\n  reserved")
    (cli.home / "google_apis.yaml").write_text(text)
    old, lost, missing = (today() - timedelta(days=back) for back in (50, 49, 30))
    accept_extracted(ledger, key(FIRST, day=old), datetime.now(UTC))
    until = ("--until", str(missing))
    rows = cli.run("warehouse", "gaps", "--since", str(old), *until, "--json").objects
    found = {row["logical_date"]: row for row in rows}
    assert (found[str(lost)]["condition"], found[str(missing)]["condition"]) == ("unrecoverable", "missing")
    assert found[str(lost)]["reason"] == "out_of_reach"
    assert found[str(lost)]["detail"].startswith("it serves only days from ")
    assert found[str(lost)]["next_command"] == f"ads-pipeline state why {FIRST}/campaign_daily/{lost}"
    (why,) = cli.run("state", "why", f"{FIRST}/campaign_daily/{lost}", "--json").objects
    assert why["next"][-1].startswith("nothing: the source no longer serves the day")
    assert "unrecoverable" in cli.run("warehouse", "gaps", "--since", str(old), *until).out
    listed = cli.run("state", "inspect", "--condition", "unrecoverable", "--json").objects
    assert {row["condition"] for row in listed} == {"unrecoverable"}
    assert str(lost) in {row["logical_date"] for row in listed}
    shown = cli.run("state", "inspect")
    assert f"{len(listed)} unrecoverable days: --condition unrecoverable lists them" in shown.out
    assert str(lost) not in shown.out


def test_lists_show_whether_the_figures_are_final(cli: CommandLine, ledger: Ledger) -> None:
    """A report that was extracted after the conversion window is settled; one of an unknown account is neither."""
    discover(ledger)
    day = today() - timedelta(days=60)
    accept_extracted(ledger, key(FIRST, day=day), datetime.now(UTC))
    accept_extracted(ledger, key(THIRD, day=day), datetime.now(UTC) - timedelta(days=50))
    accept_extracted(ledger, key("1000000009", day=day), datetime.now(UTC))
    rows = {row["customer_id"]: row for row in cli.run("state", "inspect", "--json").objects}
    assert [rows[each]["report"] for each in (FIRST, THIRD, "1000000009")] == ["settled", "provisional", None]
    assert rows[THIRD]["final_from"] > rows[THIRD]["logical_date"]
    shown = cli.run("state", "inspect", "--status", "success").out
    assert ("provisional" in shown, "settled" in shown) == (True, True)


def test_parked_source_is_shown_and_released(cli: CommandLine, ledger: Ledger) -> None:
    """`state why` of each partition, `--list parked` and `state due` name it; `state release` lifts it."""
    failed = FailedFetch(
        key=key(FIRST, day=today() - timedelta(days=5)), error_class="credentials_refused", error_message="x"
    )
    ledger.failed_fetches.record([failed], RetryPolicy())
    release = "ads-pipeline state release --source google_ads --reason TEXT"
    (why,) = cli.run("state", "why", str(failed.key), "--json").objects
    assert (why["parked"], why["next"]) == (
        ["source google_ads"],
        [f"fix the credentials or the API version, then: {release}"],
    )
    assert "source google_ads" in cli.run("state", "due").out
    assert [row["scope"] for row in cli.run("state", "inspect", "--list", "parked", "--json").objects] == ["source"]
    wrong = cli.run("state", "release", "--source", "other", "--reason", "test", "--yes")
    assert (wrong.code, "defines the source google_ads" in wrong.err) == (64, True)
    both = cli.run("state", "release", "--source", "google_ads", "--customer", FIRST, "--reason", "test", "--yes")
    assert both.code == 64
    assert cli.run("state", "release", "--source", "google_ads", "--reason", "renewed", "--yes").code == 0
    assert cli.run("state", "inspect", "--list", "parked", "--json").objects == []
    (why,) = cli.run("state", "why", str(failed.key), "--json").objects
    assert (why["parked"], why["next_retry_reason"]) == ([], "the credentials were refused; released since")
