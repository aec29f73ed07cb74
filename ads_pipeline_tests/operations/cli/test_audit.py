"""`audit`, and the lists of terminal failures, verdicts, and parked accounts and queries."""

from dataclasses import replace

import pytest

from ads_pipeline.domain.transitions import Action
from ads_pipeline.pipeline.actions import operator_actions
from ads_pipeline_tests.ledger.builders import accepted_runs, action_request
from ads_pipeline_tests.operations.cli.running import CommandLine, CommandResult
from ads_pipeline_tests.operations.cli.state.builders import (
    DAY,
    FAILED,
    MARKED,
    REASON,
    SUCCESSFUL,
    fill_ledger,
    open_ledger,
    read_all_rows,
    recent_key,
    record_failures,
)


@pytest.fixture
def cli(empty_cli: CommandLine) -> CommandLine:
    fill_ledger(empty_cli)
    return empty_cli


def next_page_key(result: CommandResult) -> str:
    """The key that the page prints for --after."""
    return (result.out + result.err).splitlines()[-1].split()[-1]


def pages(cli: CommandLine, *arguments: str) -> list[dict[str, object]]:
    """All entries that a command lists, read in pages of two."""
    found, more = [], tuple[str, ...]()
    for _page in range(20):
        result = cli.run(*arguments, "--json", "--limit", "2", *more)
        found += result.objects
        if "more follow" not in result.err:
            break
        more = ("--after", next_page_key(result))
    return found


def test_actions_are_listed_newest_first(cli: CommandLine) -> None:
    """Each entry has operator, time, command, filters, reason and the number of partitions."""
    cli.run("state", "retry", "--customer", "101", *REASON, "--operator", "ada")
    cli.run("state", "withdraw", "--all", "--reason", "unknown currency", "--operator", "bob")
    result = cli.run(
        "audit",
    )
    assert (result.code, result.err, result.lines[-1]) == (0, "", "3 actions")
    first, second, third = (line for line in result.lines if line.startswith("20"))
    assert first.endswith("withdraw by bob, 2 partitions")
    assert second.endswith("requeue by ada, 1 partition")
    assert third.endswith("mark_terminal by ada, 1 partition")
    output = " ".join(result.out.split())
    command = "state retry --customer 101 --reason 'the source was down' --operator ada"
    assert f"reason the source was down command {command} filters --customer 101 action " in output
    assert max(map(len, result.lines)) <= 80
    objects = cli.run("audit", "--json").objects[1]
    assert (objects["action"], objects["operator"], objects["command"]) == ("requeue", "ada", command)
    assert (objects["filters"], objects["reason"], objects["partitions_changed"]) == (
        "--customer 101",
        "the source was down",
        1,
    )
    assert objects["performed_at"].startswith("20")


def test_partitions_of_an_action_are_listed(cli: CommandLine) -> None:
    """Each partition is listed with its status before the action; an unknown action id is an error."""
    cli.run("state", "withdraw", "--all", *REASON)
    action_id = cli.run("audit", "--json").objects[0]["action_id"]
    result = cli.run("audit", "--action", action_id)
    rows = [line.split() for line in result.lines[-4:-2]]
    assert rows == [[each.customer_id, "campaign_daily", str(DAY), "success"] for each in SUCCESSFUL]
    assert result.lines[-1] == "2 partitions"
    unknown = cli.run("audit", "--action", f"{action_id}0")
    assert (unknown.code, unknown.out) == (64, "")
    assert '"ads-pipeline audit" lists them' in unknown.err


def test_action_in_several_transactions_is_listed_as_one(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An action split over several transactions lists every partition once under its id."""
    monkeypatch.setattr(operator_actions, "PARTITIONS_PER_TRANSACTION", 2)
    result = cli.run("state", "retry", "--all", "--clear-terminal", *REASON)
    action_id = result.lines[-1].removeprefix("action ")
    listed = pages(cli, "audit", "--action", action_id)
    assert [each["customer_id"] for each in listed] == [each.customer_id for each in [*FAILED, MARKED]]
    assert {each["status_before"] for each in listed} == {"failed"}


def test_pages_cover_every_action_once(cli: CommandLine) -> None:
    """Actions with the same timestamp are each listed once."""
    with open_ledger(cli) as ledger:
        for number in range(5):
            ledger.actions.execute(Action.REPROCESS, SUCCESSFUL, action_request(f"a-{number}"))
    whole = cli.run("audit", "--json").objects
    assert pages(cli, "audit") == whole
    assert len(whole) == 6


def test_terminal_failures_are_listed_with_reason(cli: CommandLine) -> None:
    """Marked, exhausted and too old failures are listed; retryable ones are not. Pages cover every entry."""
    exhausted, old = recent_key(130), replace(recent_key(131), logical_date=DAY.replace(year=DAY.year - 1, day=1))
    with open_ledger(cli) as ledger:
        for number in range(6):
            record_failures(ledger, [exhausted], f"r{number}")
        record_failures(ledger, [old])
    result = cli.run("state", "inspect", "--list", "terminal")
    assert (result.code, result.lines[-1]) == (0, "3 terminal failures")
    assert max(map(len, result.lines)) <= 80
    objects = cli.run("state", "inspect", "--list", "terminal", "--json").objects
    assert [(each["customer_id"], each["terminal"], each["attempt_count"]) for each in objects] == [
        ("110", "marked", 1),
        ("130", "too_many_attempts", 6),
        ("131", "too_old", 1),
    ]
    assert objects[1]["terminal_because"] == "6 failures in a row, 6 are allowed; find the cause"
    assert pages(cli, "state", "inspect", "--list", "terminal") == objects
    assert cli.run("state", "inspect", "--list", "terminal", "--customer", "130", "--json").objects == objects[1:2]
    misspelt = cli.run("state", "inspect", "--list", "terminal", "--query", "campaign_dayly")
    assert (misspelt.code, misspelt.out) == (64, "")
    assert "did you mean campaign_daily?" in misspelt.err


def test_attempts_of_matching_partitions_are_listed(cli: CommandLine) -> None:
    """Each verdict has outcome, effect, error class and message. Pages cover every attempt."""
    with open_ledger(cli) as ledger:
        accepted_runs(ledger, FAILED[:1], "r2")
        record_failures(ledger, FAILED[:1], "r3", "damaged")
    result = cli.run("state", "why", "--attempts", "--customer", "101")
    assert result.lines[0] == str(FAILED[0])
    arguments = [" ".join(line.split()) for line in result.lines[1:4]]
    assert arguments[0].startswith("1 r1 rejected, failed at 20")
    assert arguments[0].endswith("contract: its rows are bad")
    assert arguments[1].startswith("2 r2 accepted, promoted at 20")
    assert arguments[2].startswith("3 r3 rejected, set aside at 20")
    objects = cli.run("state", "why", "--attempts", "--json").objects
    assert [(each["attempt_no"], each["outcome"], each["effect"], each["error_class"]) for each in objects[:3]] == [
        (1, "rejected", "failed", "contract"),
        (2, "accepted", "promoted", None),
        (3, "rejected", "set_aside", "damaged"),
    ]
    assert len(objects) == 9
    assert pages(cli, "state", "why", "--attempts") == objects
    assert cli.run("state", "why", str(FAILED[0]), "--attempts", "--json").objects == objects[:3]
    assert cli.run("state", "why", str(FAILED[0]), "--customer", "101").code == 64
    assert cli.run("state", "why", "--after", f"{FAILED[0]}/1").code == 64
    (urgent,) = cli.run("state", "why", "--customer", "104", "--json").objects
    assert urgent["customer_id"] == "104"


@pytest.mark.parametrize(
    "arguments",
    [
        ("audit",),
        ("state", "inspect", "--list", "terminal"),
        ("state", "inspect", "--list", "parked"),
        ("state", "why", "--attempts"),
    ],
    ids=" ".join,
)
def test_empty_ledger_lists_nothing(empty_cli: CommandLine, arguments: tuple[str, ...]) -> None:
    """An empty list is no error, and listing writes nothing."""
    before = read_all_rows(empty_cli)
    result = empty_cli.run(*arguments)
    assert (result.code, result.err) == (0, "")
    assert result.lines[-1].startswith("0 ")
    assert empty_cli.run(*arguments, "--json").out == ""
    assert read_all_rows(empty_cli) == before
