"""`state acknowledge`: the work list can be emptied, and readers are told of no data that is not there."""

from dataclasses import replace
from datetime import timedelta

import pytest

from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.sql.ledger_values import StateFilter
from ads_pipeline_tests.ledger.builders import (
    accepted_runs,
    action_request,
    publish_runs,
    registered_runs,
    rejection,
    run,
)
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.cli.state.builders import DAY, REASON, open_ledger, recent_key, record_failures
from ads_pipeline_tests.operations.cli.state.test_control_actions import action_id

REJECTED, RERUN, HIDDEN, ABSENT = (recent_key(customer) for customer in (101, 102, 103, 104))
ACKNOWLEDGE = ("state", "acknowledge")
WINDOW = ("--query", "campaign_daily", "--since", str(DAY))


@pytest.fixture
def cli(empty_cli: CommandLine) -> CommandLine:
    """A rejected day, a readable one with a rejected rerun, a withdrawn one, and one that is absent."""
    with open_ledger(empty_cli) as ledger:
        record_failures(ledger, [REJECTED])
        before = replace(ABSENT, logical_date=DAY - timedelta(days=1))
        readable = [RERUN, HIDDEN, before]
        accepted_runs(ledger, readable)
        publish_runs(ledger, *(run(each, "r1") for each in readable))
        ledger.verdicts.record([rejection(registered_runs(ledger, RERUN, "r2")[0], "clicks are negative")])
        ledger.actions.execute(Action.WITHDRAW, [HIDDEN], action_request(reason="wrong currency"))
    return empty_cli


def needs_you(cli: CommandLine) -> int:
    return len(
        cli.run("state", "inspect", "--condition", "rejected", "--condition", "rejected_rerun", "--json").objects
    )


@pytest.mark.invariant("S16", "L2", "L8")
def test_work_list_can_be_emptied(cli: CommandLine) -> None:
    """Acknowledged days leave the list, and are shown with operator, time and reason. Hidden ones are not in it."""
    assert " need you: " in " ".join(cli.run("state", "inspect").lines)
    result = cli.run(*ACKNOWLEDGE, "--all", *REASON, "--operator", "eva")
    assert (result.code, result.err) == (0, "")
    assert "rejected" in result.out
    lines = cli.run("state", "inspect").lines
    assert "no day needs you" in lines
    assert "1 acknowledged rerun day: --condition acknowledged_rerun lists them" in lines
    assert "1 hidden day: --condition hidden lists them" in lines
    assert cli.run("state", "why").lines[0].startswith("no day needs attention")
    assert "no day needs you" in cli.run("doctor").out
    (rejected,) = cli.run("state", "why", str(REJECTED), "--json").objects
    assert (rejected["condition"], rejected["operator"]) == ("acknowledged", "eva")
    assert rejected["acknowledged_because"] == "the source was down"
    assert "acknowledged by eva at " in cli.run("state", "why", str(RERUN)).out
    with open_ledger(cli) as ledger:
        (logged,) = ledger.audit.parts(action_id(result))
    assert (logged.action, logged.operator, logged.reason) == ("acknowledge", "eva", "the source was down")


@pytest.mark.invariant("L8")
def test_acknowledged_day_is_still_a_gap(cli: CommandLine) -> None:
    """Readers do not get it, so `warehouse gaps` lists it and exits with 1. A readable day stays readable."""
    before = cli.run("warehouse", "gaps", *WINDOW, "--json")
    cli.run(*ACKNOWLEDGE, "--all", *REASON)
    after = cli.run("warehouse", "gaps", *WINDOW, "--json")
    assert (before.code, after.code) == (1, 1)
    gaps = {(each["customer_id"], each["logical_date"]): each["condition"] for each in after.objects}
    assert gaps.keys() == {(each["customer_id"], each["logical_date"]) for each in before.objects}
    assert gaps[REJECTED.customer_id, str(DAY)] == "acknowledged"
    assert gaps[HIDDEN.customer_id, str(DAY)] == "hidden"
    assert (RERUN.customer_id, str(DAY)) not in gaps


@pytest.mark.invariant("L2")
def test_next_event_brings_the_day_back(cli: CommandLine) -> None:
    """Nobody has to clear anything."""
    cli.run(*ACKNOWLEDGE, str(REJECTED), str(RERUN), *REASON)
    assert needs_you(cli) == 0
    with open_ledger(cli) as ledger:
        record_failures(ledger, [REJECTED], run_id="r2")
    assert needs_you(cli) == 1


def test_day_without_a_run_is_acknowledged_without_a_row(cli: CommandLine) -> None:
    """It is selected by its name or by filters, like every other day that needs somebody."""
    with open_ledger(cli) as ledger:
        recorded = ledger.states.count_by_status(StateFilter())
    result = cli.run(*ACKNOWLEDGE, str(ABSENT), *REASON, "--json")
    (row,) = result.objects
    assert (row["now"], row["becomes"], row["result"]) == ("late", "acknowledged", "done")
    listed = cli.run("state", "inspect", "--condition", "late", "--customer", ABSENT.customer_id, "--json").objects
    assert str(DAY) not in {each["logical_date"] for each in listed}
    with open_ledger(cli) as ledger:
        assert ledger.states.count_by_status(StateFilter()) == recorded


def test_days_that_need_nobody_are_left_out(cli: CommandLine) -> None:
    """The preview says why, and the command exits with 3 when nothing is left."""
    cli.run(*ACKNOWLEDGE, str(RERUN), *REASON, "--operator", "eva")
    result = cli.run(*ACKNOWLEDGE, str(HIDDEN), str(RERUN), *REASON)
    assert result.code == 3
    assert result.lines[0] == "nothing to acknowledge"
    assert "it needs nobody: hidden" in result.out
    assert "acknowledged by eva at " in " ".join(result.lines)


@pytest.mark.invariant("S15")
def test_dry_run_writes_nothing(cli: CommandLine) -> None:
    """It prints the preview, and the days still need somebody."""
    dry = cli.run(*ACKNOWLEDGE, "--customer", REJECTED.customer_id, "--query", "campaign_daily", *REASON, "--dry-run")
    assert (dry.code, dry.lines[-1]) == (0, "nothing was changed")
    assert needs_you(cli) == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "no partition is selected"),
        (("--all", "--customer", "101"), "--all selects every partition"),
        ((str(REJECTED), "--all"), "give either partitions or the options that select them"),
        (("101/campaign_daily/2999-01-01",), "the day has not ended"),
        (("--customer", "99"), "99"),
    ],
)
def test_wrong_selection_is_refused(cli: CommandLine, arguments: tuple[str, ...], problem: str) -> None:
    """Before anything is written."""
    result = cli.run(*ACKNOWLEDGE, *arguments, *REASON)
    assert result.code == 64
    assert problem in result.err
