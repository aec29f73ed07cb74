"""`state inspect` without filters, and its filter `--condition`: days by what readers get of them."""

from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from ads_pipeline.domain.days.conditions import Condition
from ads_pipeline.domain.days.day_ranges import DayRange, join_ranges
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    accepted_runs,
    action_request,
    key,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
    run,
)
from ads_pipeline_tests.operations.cli.running import CommandLine, CommandResult, DemoCommandLine

TODAY = datetime.now(UTC).date()
REJECTED, RERUN, HIDDEN, READABLE = (key(day=number) for number in (1, 2, 3, 4))


def open_ledger(cli: CommandLine) -> AbstractContextManager[Ledger]:
    return Ledger.opened(f"sqlite:///{cli.home / 'ledger.db'}")


@pytest.fixture
def cli(empty_cli: CommandLine) -> CommandLine:
    """One rejected, one withdrawn and one readable day, one with a rejected rerun, and all later days missing."""
    with open_ledger(empty_cli) as ledger:
        accepted_runs(ledger, [RERUN, HIDDEN, READABLE])
        publish_runs(ledger, *(run(each, "r1") for each in (RERUN, HIDDEN, READABLE)))
        record_verdict(ledger, rejection(registered_runs(ledger, REJECTED, "r1")[0], "a line is cut off"))
        record_verdict(ledger, rejection(registered_runs(ledger, RERUN, "r2")[0], "clicks are negative"))
        ledger.actions.execute(Action.WITHDRAW, [HIDDEN], action_request(reason="wrong currency"))
    return empty_cli


def widest(result: CommandResult) -> int:
    """The width of the widest line, except the command, which is to be copied whole."""
    return max(len(line) for line in result.lines if not line.startswith("  ads-pipeline "))


def short(partition: PartitionKey) -> str:
    return str(partition).removeprefix(f"{partition.source}/")


def test_lists_and_why_name_the_account(cli: CommandLine) -> None:
    """Where a list has room for it, and always for programs."""
    account = Account(
        source=REJECTED.source, customer_id=REJECTED.customer_id, status="ENABLED", name="Tea & Co", level=1
    )
    with open_ledger(cli) as ledger:
        ledger.accounts.record(account.source, [account])
    wide = replace(cli, more={"COLUMNS": "120"})
    for command in (("state", "inspect"), ("warehouse", "gaps")):
        assert "Tea & Co" in wide.run(*command).out
        assert "Tea & Co" not in cli.run(*command).out
    assert {each["customer_name"] for each in cli.run("state", "inspect", "--json").objects} == {"Tea & Co"}
    assert cli.run("warehouse", "gaps", "--json").objects[0]["customer_name"] == "Tea & Co"
    assert "Tea & Co, ENABLED" in cli.run("state", "why", short(REJECTED)).out


def test_inspect_without_filters_lists_what_needs_attention_first(cli: CommandLine) -> None:
    """The most urgent condition comes first. Readable and hidden days are left out, consecutive days share a line."""
    result = cli.run("state", "inspect")
    text = " ".join(result.out.split())
    assert text.startswith("Rejected: ")
    assert text.index("Missing: ") < text.index("Readable, rejected rerun: ")
    assert "2026-02-01 a line is cut off in 1 row" in text
    assert "withdrawn by ada" not in text
    assert "2026-02-02 clicks are negative in 1 row" in text
    assert str(READABLE.logical_date) not in result.out
    assert widest(result) <= 80


def test_work_list_of_a_customer_has_its_missing_days(cli: CommandLine) -> None:
    """With filters and without `--status`, it lists the selected ones of the days that need attention."""
    selection = ("--customer", REJECTED.customer_id, "--query", "campaign_daily", "--until", "2026-02-08")
    result = cli.run("state", "inspect", *selection)
    assert "Missing: " in result.out
    assert "2026-02-05 to 2026-02-08" in result.out
    assert "Rejected: " in result.out
    assert result.lines[-2] == "next, for the first line:"
    assert result.lines[-1] == f"  ads-pipeline state retry {short(REJECTED)} --reason TEXT --clear-terminal"
    assert all("Missing" not in line for line in cli.run("state", "inspect", *selection, "--status", "failed").lines)


def test_work_list_of_an_unknown_customer_says_so(cli: CommandLine) -> None:
    """Nothing is expected of a customer without a run, a failed fetch or an account."""
    assert cli.run("state", "inspect", "--customer", "99").lines == [
        "customer 99 is not known: it has no run, no failed fetch and no account",
        "no day needs you",
        "no partition is recorded for --customer 99",
    ]


def test_work_list_of_a_customer_without_work(empty_cli: CommandLine) -> None:
    """Days before the first sealed one are not expected."""
    with open_ledger(empty_cli) as ledger:
        accepted_runs(ledger, [key()])
        publish_runs(ledger, run(key(), "r1"))
    selection = ("--customer", key().customer_id, "--query", "campaign_daily", "--until", str(key().logical_date))
    assert empty_cli.run("state", "inspect", *selection).lines == ["no day needs you", "1 partition: 1 success"]


def test_summary_counts_the_days_and_names_the_next_command(cli: CommandLine) -> None:
    """The last lines: days by condition, recorded partitions by status, and the command for the first line."""
    wide = CommandLine(home=cli.home, more={"COLUMNS": "120"})
    *_table, needed, hidden, recorded, heading, command = wide.run("state", "inspect").lines
    assert " days need you: 1 rejected, " in needed
    assert needed.endswith("1 rejected rerun")
    assert hidden == "1 hidden day: --condition hidden lists them"
    assert recorded == "4 partitions: 2 success, 1 failed, 1 pending"
    assert heading == "next, for the first line:"
    assert command == f"  ads-pipeline state retry {short(REJECTED)} --reason TEXT --clear-terminal"


def test_next_command_selects_the_whole_range(cli: CommandLine) -> None:
    """The command of a range has its customer, query and days as options."""
    arguments = (
        "--condition",
        "missing",
        "--query",
        "campaign_daily",
        "--since",
        "2026-02-05",
        "--until",
        "2026-02-07",
    )
    result = cli.run("state", "inspect", *arguments)
    selection = "--customer 1234567890 --query campaign_daily --since 2026-02-05 --until 2026-02-07"
    assert result.lines[-1] == f"  ads-pipeline state enqueue {selection} --reason TEXT"
    assert "2026-02-05 to 2026-02-07" in result.out
    assert cli.run(*result.lines[-1].split()[1:], "--dry-run").code == 0


@pytest.mark.parametrize(
    ("condition", "days"),
    [
        ("rejected", [REJECTED]),
        ("rejected_rerun", [RERUN]),
        ("hidden", [HIDDEN]),
        ("parked", []),
        ("in_progress", []),
    ],
)
def test_days_are_filtered_by_condition(cli: CommandLine, condition: str, days: list[PartitionKey]) -> None:
    """JSON has the fields of the state, and why and since when the day has the condition."""
    found = cli.run("state", "inspect", "--condition", condition, "--json").objects
    assert [(each["logical_date"], each["condition"]) for each in found] == [
        (str(each.logical_date), condition) for each in days
    ]
    assert all(each["since"] and each["next_command"] and "current_run_id" in each for each in found)


def test_condition_is_combined_with_other_filters(cli: CommandLine) -> None:
    """Days without a row are listed too, newest first, and the limit is named."""
    arguments = ("state", "inspect", "--condition", "missing", "--query", "campaign_daily", "--until", "2026-02-08")
    found = cli.run(*arguments, "--json").objects
    assert [each["logical_date"] for each in found] == [f"2026-02-0{day}" for day in (8, 7, 6, 5)]
    assert {each["status"] for each in found} == {"pending"}
    limited = cli.run(*arguments, "--json", "--limit", "1")
    assert limited.err.splitlines() == ["4 days need you: 4 missing", "3 days more; --limit N shows more"]
    none = cli.run("state", "inspect", "--condition", "missing", "--customer", "99")
    assert none.lines == ["0 days match --customer 99 --condition missing"]


def test_stale_partitions_are_listed_page_by_page(empty_cli: CommandLine) -> None:
    """Accepted and not loaded is stale. Loaded a moment ago is not."""
    days = [key(day=number) for number in (1, 2, 3)]
    with open_ledger(empty_cli) as ledger:
        accepted_runs(ledger, days)
        publish_runs(ledger, run(days[0], "r1"))
        (newer,) = registered_runs(ledger, days[1], "r2")
        record_verdict(ledger, acceptance(newer))
    first = empty_cli.run("state", "inspect", "--list", "stale", "--limit", "1")
    assert first.lines[1].split()[2:3] == ["2026-02-02"]
    assert first.lines[1].endswith("not loaded")
    (option, entry) = first.lines[-1].split()
    second = empty_cli.run("state", "inspect", "--list", "stale", "--limit", "1", option, entry)
    assert second.lines[1].split()[2:3] == ["2026-02-03"]
    assert second.lines[-1] == "1 stale partition"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--condition", "late", "--status", "failed"), "--condition, --status and --list cannot be combined"),
        (("--condition", "late", "--list", "stale"), "--condition, --status and --list cannot be combined"),
        (("--list", "parked", "--query", "campaign_daily"), "--list parked lists everything that is parked"),
        (("--condition", "late", "--after", short(RERUN)), "use --limit instead of --after"),
    ],
)
def test_contradicting_options_are_refused(cli: CommandLine, arguments: tuple[str, ...], message: str) -> None:
    """The message names what to give instead."""
    result = cli.run("state", "inspect", *arguments)
    assert result.code == 64
    assert message in result.err


def test_late_days_are_those_past_their_deadline(empty_cli: CommandLine) -> None:
    """A fresh day that is due and absent is late, not missing; the days before the first sealed day are neither."""
    sealed = replace(key(), logical_date=TODAY - timedelta(days=3))
    with open_ledger(empty_cli) as ledger:
        accepted_runs(ledger, [sealed])
        publish_runs(ledger, run(sealed, "r1"))
    found = empty_cli.run("state", "inspect", "--condition", "late", "--query", "campaign_daily", "--json").objects
    assert TODAY - timedelta(days=2) in {date.fromisoformat(each["logical_date"]) for each in found}
    assert all(date.fromisoformat(each["logical_date"]) > sealed.logical_date for each in found)


def test_demo_needs_attention(demo_cli: DemoCommandLine) -> None:
    """The demo's two rejected days stand on top, and nothing is wider than the terminal."""
    result = demo_cli.run("state", "inspect")
    assert result.lines[0].startswith("Rejected: The validator rejected the run.")
    assert {line.split()[2] for line in result.lines[2:5] if "2026-03-0" in line} == {"2026-03-06", "2026-03-07"}
    assert widest(result) <= 80


@pytest.mark.parametrize("command", [("state", "inspect"), ("warehouse", "gaps", "--query", "search_term_daily")])
def test_long_reason_stands_below_its_row_and_breaks_no_word(
    empty_cli: CommandLine, command: tuple[str, ...]
) -> None:
    """At 80 columns, a reason with a word that is wider than its column gets the whole width."""
    word = "ad_group_criterion_keyword_match_type_of_the_search_term_view"
    rejected = key(query_name="search_term_daily")
    with open_ledger(empty_cli) as ledger:
        record_verdict(ledger, rejection(registered_runs(ledger, rejected, "r1")[0], f"{word} must not be empty"))
    result = empty_cli.run(*command)
    row = next(number for number, line in enumerate(result.lines) if "2026-02-01" in line)
    assert result.lines[row + 1].rstrip() == f"  {word} must not be"
    assert widest(result) <= 80


def test_ranges_do_not_depend_on_the_number_of_days_before_them() -> None:
    """A ledger may list more days than lie between the first of all dates and the listed ones."""
    first, second = (replace(key(customer), logical_date=date.min) for customer in ("1", "2"))
    missing = DayCondition(
        condition=Condition.MISSING, gap=None, detail="", since=datetime.now(UTC), operator="", attempts=0
    )
    ranges = [
        DayRange(first=each, last=each, condition=missing.condition, describe=lambda _day: missing)
        for each in (second, first)
    ]
    assert [each.first for each in join_ranges(ranges)] == [first, second]
