"""`audit`: what was done, by whom and on what; which failures are terminal; every verdict; what is parked."""

from dataclasses import replace

import pytest

from ads_pipeline.domain.transitions import Action
from ads_pipeline.pipeline import operator_actions
from ads_pipeline_tests.cli.actions.builders import (
    BECAUSE,
    DAY,
    FAILED,
    GOOD,
    MARKED,
    digest,
    fail,
    ledger_at,
    recent,
    stock,
)
from ads_pipeline_tests.cli.running import CommandResult, CommandLine
from ads_pipeline_tests.ledger.builders import accepted_runs, action_request


@pytest.fixture
def cli(empty_cli: CommandLine) -> CommandLine:
    stock(empty_cli)
    return empty_cli


def last(ended: CommandResult) -> str:
    """From where the page says to go on."""
    return (ended.out + ended.err).splitlines()[-1].split()[-1]


def pages(cli: CommandLine, *words: str) -> list[dict[str, object]]:
    """Everything that a command lists, two at a time."""
    found, more = [], tuple[str, ...]()
    for _page in range(20):
        ended = cli.run(*words, "--json", "--limit", "2", *more)
        found += ended.objects
        if "more follow" not in ended.err:
            break
        more = ("--after", last(ended))
    return found


def test_acts_are_listed_newest_first(cli: CommandLine) -> None:
    """Who, when, by which words, with which filters and why, and on how many partitions."""
    cli.run("state", "retry", "--customer", "101", *BECAUSE, "--operator", "ada")
    cli.run("state", "withdraw", "--all", "--reason", "wrong currency", "--operator", "bob")
    ended = cli.run("audit", "acts")
    assert (ended.code, ended.err, ended.lines[-1]) == (0, "", "3 acts")
    first, second, third = (line for line in ended.lines if line.startswith("20"))
    assert first.endswith("withdraw by bob, 2 partitions")
    assert second.endswith("requeue by ada, 1 partition")
    assert third.endswith("mark_terminal by ada, 1 partition")
    told = " ".join(ended.out.split())
    command = "state retry --customer 101 --reason 'the source was down' --operator ada"
    assert f"reason the source was down command {command} filters --customer 101 act " in told
    assert max(map(len, ended.lines)) <= 80
    known = cli.run("audit", "acts", "--json").objects[1]
    assert (known["act"], known["operator"], known["command"]) == ("requeue", "ada", command)
    assert (known["filters"], known["reason"], known["partitions_changed"]) == (
        "--customer 101",
        "the source was down",
        1,
    )
    assert known["acted_at"].startswith("20")


def test_the_partitions_of_an_act_are_listed(cli: CommandLine) -> None:
    """Each with what it was before; an id that no act has is a mistake."""
    cli.run("state", "withdraw", "--all", *BECAUSE)
    act_id = cli.run("audit", "acts", "--json").objects[0]["act_id"]
    ended = cli.run("audit", "acts", "--act", act_id)
    rows = [line.split() for line in ended.lines[-4:-2]]
    assert rows == [[each.customer_id, "campaign_daily", str(DAY), "success"] for each in GOOD]
    assert ended.lines[-1] == "2 partitions"
    wrong = cli.run("audit", "acts", "--act", f"{act_id}0")
    assert (wrong.code, wrong.out) == (64, "")
    assert '"ads-pipeline audit acts" lists them' in wrong.err


def test_a_large_act_is_one_for_who_asks(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was logged in portions and with the marks it cleared; its own id finds every partition once."""
    monkeypatch.setattr(operator_actions, "AT_ONCE", 2)
    ended = cli.run("state", "retry", "--all", "--clear-terminal", *BECAUSE)
    act_id = ended.lines[-1].removeprefix("act ")
    listed = pages(cli, "audit", "acts", "--act", act_id)
    assert [each["customer_id"] for each in listed] == [each.customer_id for each in [*FAILED, MARKED]]
    assert {each["status_before"] for each in listed} == {"failed"}


def test_pages_of_acts_make_the_whole(cli: CommandLine) -> None:
    """Also where several acts are of one moment, each is listed once."""
    with ledger_at(cli) as ledger:
        for number in range(5):
            ledger.execute(Action.REPROCESS, GOOD, action_request(f"a-{number}"))
    whole = cli.run("audit", "acts", "--json").objects
    assert pages(cli, "audit", "acts") == whole
    assert len(whole) == 6


def test_terminal_failures_are_listed_with_why(cli: CommandLine) -> None:
    """Marked, tried too often, too old; a failure that is tried again is not among them, and pages make the whole."""
    worn, old = recent(130), replace(recent(131), logical_date=DAY.replace(year=DAY.year - 1, day=1))
    with ledger_at(cli) as ledger:
        for number in range(6):
            fail(ledger, [worn], f"r{number}")
        fail(ledger, [old])
    ended = cli.run("audit", "terminal")
    assert (ended.code, ended.lines[-1]) == (0, "3 terminal failures")
    assert max(map(len, ended.lines)) <= 80
    known = cli.run("audit", "terminal", "--json").objects
    assert [(each["customer_id"], each["terminal"], each["attempt_count"]) for each in known] == [
        ("110", "marked", 1),
        ("130", "too_many_attempts", 6),
        ("131", "too_old", 1),
    ]
    assert known[1]["why"] == "6 failures in a row, 6 are allowed; find the cause"
    assert pages(cli, "audit", "terminal") == known
    assert cli.run("audit", "terminal", "--customer", "130", "--json").objects == known[1:2]
    misspelt = cli.run("audit", "terminal", "--query", "campaign_dayly")
    assert misspelt.lines[0] == "0 terminal failures"
    assert "campaign_dayly is no query of" in misspelt.out


def test_attempts_of_what_matches_are_listed(cli: CommandLine) -> None:
    """Each verdict with its outcome, what it did, the class of the error and the words; pages make the whole."""
    with ledger_at(cli) as ledger:
        accepted_runs(ledger, FAILED[:1], "r2")
        fail(ledger, FAILED[:1], "r3", "damaged")
    ended = cli.run("audit", "attempts", "--customer", "101")
    assert ended.lines[0] == str(FAILED[0])
    words = [" ".join(line.split()) for line in ended.lines[1:4]]
    assert words[0].startswith("1 r1 rejected, failed at 20")
    assert words[0].endswith("contract: its rows are bad")
    assert words[1].startswith("2 r2 accepted, promoted at 20")
    assert words[2].startswith("3 r3 rejected, set aside at 20")
    known = cli.run("audit", "attempts", "--json").objects
    assert [(each["attempt_no"], each["outcome"], each["effect"], each["error_class"]) for each in known[:3]] == [
        (1, "rejected", "failed", "contract"),
        (2, "accepted", "promoted", None),
        (3, "rejected", "set_aside", "damaged"),
    ]
    assert len(known) == 9
    assert pages(cli, "audit", "attempts") == known


@pytest.mark.parametrize("name", ["acts", "terminal", "attempts", "parked"])
def test_an_empty_ledger_has_nothing_to_tell(empty_cli: CommandLine, name: str) -> None:
    """It is no error, and looking writes nothing."""
    before = digest(empty_cli)
    ended = empty_cli.run("audit", name)
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines[-1].startswith("0 ")
    assert empty_cli.run("audit", name, "--json").out == ""
    assert digest(empty_cli) == before
