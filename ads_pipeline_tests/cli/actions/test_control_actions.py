"""`state retry` and the other acts: what they show, when they ask, what they change, and what they tell."""

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer

from ads_pipeline.cli.actions import control_actions
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.errors import LedgerUnavailable
from ads_pipeline.ledger.control.control_actions import ControlActions
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
    somebody_answers,
    stock,
)
from ads_pipeline_tests.cli.running import MAIN_SCRIPT, CommandResult, CommandLine
from ads_pipeline_tests.ledger.builders import acceptance, accepted_runs, registered_runs

VERBS = ("retry", "mark-terminal", "clear-terminal", "reprocess", "withdraw")
MANY = [recent(customer) for customer in range(1001, 1024)]
Change = Callable[[], None]


@pytest.fixture
def cli(empty_cli: CommandLine) -> CommandLine:
    stock(empty_cli)
    return empty_cli


def states(cli: CommandLine, *partitions: Any) -> list[PartitionState]:
    with ledger_at(cli) as ledger:
        return list(ledger.states(partitions).values())


def action_id(ended: CommandResult) -> str:
    (found,) = re.findall(r"^act ([0-9a-f-]{36})$", ended.out + ended.err, re.MULTILINE)
    return str(found)


def answers(monkeypatch: pytest.MonkeyPatch, before: Change, *, agrees: bool = True) -> list[str]:
    """Somebody is asked, and meanwhile something happens; the questions that were asked."""
    somebody_answers(monkeypatch)
    asked: list[str] = []

    def confirm(question: str, **_: Any) -> bool:
        asked.append(question)
        before()
        if not agrees:
            raise typer.Abort
        return True

    monkeypatch.setattr(typer, "confirm", confirm)
    return asked


@pytest.mark.parametrize(
    ("verb", "wanted", "changed", "now", "becomes"),
    [
        ("retry", "--all", FAILED, "failed, 1 attempt", "pending"),
        ("mark-terminal", "--all", FAILED, "failed, 1 attempt", "failed, terminal"),
        ("clear-terminal", "--all", [MARKED], "failed, 1 attempt", "failed, not marked"),
        ("reprocess", "--all", GOOD, "success, 3 rows", "success, requested"),
        ("withdraw", "--all", GOOD, "success, 3 rows", "pending, hidden"),
    ],
)
def test_an_act_shows_what_it_does(
    cli: CommandLine, verb: str, wanted: str, changed: list[Any], now: str, becomes: str
) -> None:
    """Each partition with what it is and what it becomes; then how many, and the act's id."""
    ended = cli.run("state", verb, wanted, *BECAUSE)
    assert (ended.code, ended.err) == (0, "")
    assert re.split(" {2,}", ended.lines[0].strip()) == ["customer", "query", "day", "now", "becomes"]
    rows = [re.split(" {2,}", line.strip()) for line in ended.lines[1 : ended.lines.index("")]]
    assert rows == [[each.customer_id, "campaign_daily", str(DAY), now, becomes] for each in changed]
    many = "1 partition" if len(changed) == 1 else f"{len(changed)} partitions"
    assert f"{many} to {verb}: " in ended.out
    assert ended.lines[-2:] == [f"{verb}: {many} changed", f"act {action_id(ended)}"]
    for key in changed:
        with ledger_at(cli) as ledger:
            assert ledger.partition_actions(key)[-1].action_id == action_id(ended)


@pytest.mark.invariant("S14")
@pytest.mark.parametrize("verb", VERBS)
def test_an_act_that_is_typed_again_finds_nothing_to_do(cli: CommandLine, verb: str) -> None:
    """It says so, ends with 0, and adds nothing to the log of acts."""
    cli.run("state", verb, "--all", *BECAUSE)
    before = digest(cli)
    again = cli.run("state", verb, "--all", *BECAUSE)
    assert again.code == 0
    assert again.lines[0] == f"nothing to {verb}"
    assert digest(cli) == before


@pytest.mark.invariant("S15")
@pytest.mark.parametrize("verb", VERBS)
def test_a_dry_run_writes_nothing(cli: CommandLine, verb: str) -> None:
    """It shows what the act itself shows, asks nobody, and every row of every table stays as it is."""
    before = digest(cli)
    dry = cli.run("state", verb, "--all", *BECAUSE, "--dry-run")
    assert (dry.code, dry.lines[-1]) == (0, "nothing was changed")
    assert digest(cli) == before
    done = cli.run("state", verb, "--all", *BECAUSE)
    assert done.lines[: len(dry.lines) - 1] == dry.lines[:-1]


@pytest.mark.invariant("S16")
def test_an_act_is_logged_as_it_was_typed(cli: CommandLine) -> None:
    """Who, by which words, with which filters and why, and when, in the very transaction that changed the states."""
    words = (
        "state",
        "retry",
        "--customer",
        "101",
        "--since",
        str(DAY),
        "--reason",
        "it's fixed",
        "--operator",
        "ada",
    )
    ended = cli.run(*words)
    with ledger_at(cli) as ledger:
        (act,) = ledger.partition_actions(FAILED[0])
        state = ledger.state(FAILED[0])
    assert (act.action_id, act.action, act.operator) == (action_id(ended), "requeue", "ada")
    assert (act.command, act.reason) == (shlex.join(words), "it's fixed")
    assert (act.status_before, act.performed_at) == (Status.FAILED, state.updated_at)
    logged = next(row for row in digest(cli)["control_actions"] if act.action_id in row)
    assert f"--customer 101 --since {DAY}" in logged


@pytest.mark.invariant("S16")
def test_more_than_twenty_are_asked_about(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No changes nothing and ends with 1, yes does it, and --yes is not asked; twenty are done at once."""
    with ledger_at(cli) as ledger:
        fail(ledger, MANY)
    before = digest(cli)
    asked = answers(monkeypatch, lambda: None, agrees=False)
    refused = cli.run("state", "retry", "--all", *BECAUSE)
    assert (refused.code, asked) == (1, ["retry 27 partitions?"])
    assert "and 7 more" in refused.lines
    assert digest(cli) == before
    asked = answers(monkeypatch, lambda: None)
    assert cli.run("state", "retry", *map(str, MANY[:20]), *BECAUSE).code == 0
    assert asked == []
    assert cli.run("state", "mark-terminal", *map(str, FAILED), *BECAUSE, "--yes").code == 0
    with ledger_at(cli) as ledger:
        accepted_runs(ledger, [recent(customer) for customer in range(2001, 2031)])
    assert cli.run("state", "reprocess", "--all", *BECAUSE).code == 0
    assert asked == ["reprocess 32 partitions?"]
    assert cli.run("state", "withdraw", "--all", *BECAUSE, "--yes").code == 0
    assert asked == ["reprocess 32 partitions?"]


@pytest.mark.invariant("S16")
@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_somebody_at_a_terminal_is_asked(cli: CommandLine, answer: bytes, code: int) -> None:
    """The question stands on standard error, so that the answer can be piped; only yes changes anything."""
    with ledger_at(cli) as ledger:
        fail(ledger, MANY)
    keyboard, terminal = pty.openpty()
    words = ("state", "retry", "--all", *BECAUSE, "--json")
    started = subprocess.Popen(
        [sys.executable, "-c", MAIN_SCRIPT, *words],
        env=cli.environ(),
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.write(keyboard, answer)
    out, err = started.communicate(timeout=60)
    os.close(keyboard)
    os.close(terminal)
    assert started.returncode == code
    assert b"retry 27 partitions? [y/N]:" in err
    assert len(out.strip().splitlines()) == (0 if code else 28)
    assert states(cli, MANY[0])[0].status is (Status.FAILED if code else Status.PENDING)


@pytest.mark.invariant("S16")
def test_where_nobody_can_be_asked_nothing_is_done(cli: CommandLine) -> None:
    """A script has to say --yes; it is told so, and the code is 64."""
    with ledger_at(cli) as ledger:
        fail(ledger, MANY)
    before = digest(cli)
    ended = cli.run("state", "retry", "--all", *BECAUSE)
    assert (ended.code, ended.out) == (64, "")
    assert "27 partitions would change and nobody can be asked here" in ended.err
    assert digest(cli) == before
    assert cli.run("state", "retry", "--all", *BECAUSE, "--yes").code == 0


@pytest.mark.invariant("S16")
def test_every_partition_must_be_said(cli: CommandLine) -> None:
    """An act without a name and without a filter is refused, unless --all says that it is meant."""
    ended = cli.run("state", "retry", *BECAUSE, "--yes")
    assert (ended.code, ended.out) == (64, "")
    assert "--all" in ended.err


@pytest.mark.invariant("S13", "S14")
def test_only_what_was_previewed_is_touched(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails again or is mended while somebody is asked is left alone and named; the rest is done."""
    again, mended, *others = MANY
    newcomer = recent(9999)
    with ledger_at(cli) as ledger:
        fail(ledger, MANY)

    def meanwhile() -> None:
        with ledger_at(cli) as ledger:
            fail(ledger, [again, newcomer], "r2")
            (good,) = registered_runs(ledger, mended, "r2")
            ledger.record_verdict(acceptance(good))

    answers(monkeypatch, meanwhile)
    ended = cli.run("state", "retry", "--query", "campaign_daily", *BECAUSE)
    assert ended.code == 2
    assert f"left: {again}: it was failed after 1 attempt when it was looked at and is failed after 2" in ended.err
    assert f"left: {mended}: it was failed after 1 attempt when it was looked at and is success after 2" in ended.err
    assert ended.lines[-5:] == [
        "retry: 25 partitions changed, 2 left",
        f"act {action_id(ended)}",
        "what is left, to look at again:",
        f"  {again} \\",
        f"  {mended}",
    ]
    with ledger_at(cli) as ledger:
        found = ledger.states([again, mended, newcomer, MARKED, *others, *FAILED])
    assert [state.status for state in found.values()] == [
        *(Status.FAILED, Status.SUCCESS, Status.FAILED, Status.FAILED),
        *[Status.PENDING] * 25,
    ]
    pasted = shlex.split(" ".join(ended.lines[-2:]).replace("\\", ""))
    assert cli.run("state", "retry", *pasted, *BECAUSE).lines[-2] == "retry: 1 partition changed"


@pytest.mark.invariant("S14")
def test_an_outage_on_the_way_leaves_the_rest_named(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done stands; the code is 2, and what remains can be pasted as arguments."""
    monkeypatch.setattr(operator_actions, "PARTITIONS_PER_TRANSACTION", 3)
    carry_out, calls = ControlActions.execute, [0]

    def fails_second(self: ControlActions, *words: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise LedgerUnavailable("busy")
        return carry_out(self, *words, **more)

    monkeypatch.setattr(ControlActions, "execute", fails_second)
    ended = cli.run("state", "retry", "--all", *BECAUSE)
    assert ended.code == 2
    assert ended.err == f"left: {FAILED[3]}: busy\n"
    assert ended.lines[-4] == "retry: 3 partitions changed, 1 left"
    assert ended.lines[-1] == f"  {FAILED[3]}"
    assert cli.run("state", "retry", ended.lines[-1].strip(), *BECAUSE).code == 0


def test_terminal_ones_need_a_word(cli: CommandLine) -> None:
    """They are left out and counted; --clear-terminal takes them along, and clears their marks before."""
    left = cli.run("state", "retry", str(MARKED), *BECAUSE)
    assert left.lines[0] == "nothing to retry"
    assert "terminal: marked as terminal; clear the marker" in " ".join(left.out.split())
    done = cli.run("state", "retry", str(MARKED), *BECAUSE, "--clear-terminal")
    assert "pending, mark cleared" in done.out
    assert states(cli, MARKED)[0].status is Status.PENDING
    with ledger_at(cli) as ledger:
        assert ledger.retry_queue.find_marked([MARKED]) == set()
        assert [act.action for act in ledger.partition_actions(MARKED)[1:]] == ["clear_terminal", "requeue"]


def test_what_raw_knows_nothing_of_needs_a_word(cli: CommandLine) -> None:
    """Fetching it again would find the same nothing; --force does it all the same."""
    (cli.home / "raw").mkdir()
    left = cli.run("state", "retry", str(FAILED[0]), *BECAUSE)
    assert "raw holds no run of it" in left.out
    assert states(cli, FAILED[0])[0].status is Status.FAILED
    assert cli.run("state", "retry", str(FAILED[0]), *BECAUSE, "--force").code == 0
    assert states(cli, FAILED[0])[0].status is Status.PENDING


def test_a_class_of_errors_narrows(cli: CommandLine) -> None:
    """Only partitions whose last failure was of that class are meant; a class that nothing has is a mistake."""
    with ledger_at(cli) as ledger:
        fail(ledger, FAILED[:1], "r2", "quota_exhausted")
    done = cli.run("state", "retry", "--error-class", "quota_exhausted", *BECAUSE)
    assert "retry: 1 partition changed" in done.lines
    assert [state.status for state in states(cli, *FAILED[:2])] == [Status.PENDING, Status.FAILED]
    assert "nothing to retry" in cli.run("state", "retry", "--error-class", "damaged", *BECAUSE).lines
    wrong = cli.run("state", "retry", "--error-class", "contrct", *BECAUSE)
    assert wrong.code == 64
    assert "did you mean contract?" in wrong.err


def test_a_program_gets_a_line_for_each_partition(cli: CommandLine) -> None:
    """Planned, done or left out, each with what it was and is; what people are told goes to standard error."""
    words = ("state", "retry", str(FAILED[0]), str(MARKED), *BECAUSE, "--json")
    dry, done = cli.run(*words, "--dry-run"), cli.run(*words)
    assert [each["result"] for each in dry.objects] == ["planned", "left out"]
    assert [each["result"] for each in done.objects] == ["done", "left out"]
    assert done.objects[0] | {"action_id": None} == {
        "source": "google_ads",
        "customer_id": "101",
        "query_name": "campaign_daily",
        "logical_date": str(DAY),
        "action": "retry",
        "action_id": None,
        "now": "failed, 1 attempt",
        "becomes": "pending",
        "result": "done",
        "why": None,
    }
    assert done.objects[1]["why"].startswith("terminal: ")
    assert {each["action_id"] for each in done.objects} == {action_id(done)}


@pytest.mark.parametrize("verb", VERBS)
def test_a_preview_fits_eighty_columns_without_colours(cli: CommandLine, verb: str) -> None:
    """Also where the partitions have long names, and what is left out has long reasons."""
    with ledger_at(cli) as ledger:
        fail(ledger, [recent("1" * 20, "search_term_daily")])
        accepted_runs(ledger, [recent("2" * 20, "search_term_daily")])
    ended = cli.run("state", verb, "--all", *BECAUSE, "--dry-run")
    assert max(map(len, ended.lines)) <= 80
    assert "\x1b" not in ended.out


def test_hostile_words_reach_no_terminal(cli: CommandLine) -> None:
    """Neither the reason nor the operator's name can colour or break a line wherever the act is told."""
    cli.run("state", "withdraw", str(GOOD[0]), "--reason", "\x1b[31mred\n", "--operator", "a\x1b[0m")
    told = cli.run("state", "why", str(GOOD[0]))
    assert all(line.isprintable() for line in told.lines)


def test_each_act_has_a_verb() -> None:
    """What operators may do to partitions, the command line offers; a backfill is of those that are not recorded."""
    assert set(control_actions.ACTION_COMMANDS) == set(operator_actions.CANDIDATES)
    assert tuple(verb.name for verb in control_actions.ACTION_COMMANDS.values()) == ("enqueue", *VERBS)


def test_a_backfill_is_asked_for(cli: CommandLine) -> None:
    """Each day of each query and customer that nobody has heard of, and nothing that is recorded; then it is due."""
    words = ("--customer", "1", "--query", "campaign_daily", "--since", "2026-01-01", "--until", "2026-01-03")
    ended = cli.run("state", "enqueue", *words, "--reason", "moved here")
    assert (ended.code, ended.lines[-2]) == (0, "enqueue: 3 partitions changed")
    again = cli.run("state", "enqueue", *words, "--reason", "moved here")
    assert (again.code, again.lines[0]) == (0, "nothing to enqueue")
    assert "it is recorded already" in " ".join(again.out.split())
    due = [f"{each['customer_id']}/{each['logical_date']}" for each in cli.run("state", "due", "--json").objects]
    assert [each for each in due if each.startswith("1/")] == [f"1/2026-01-0{day}" for day in (1, 2, 3)]
    assert cli.run("state", "enqueue", str(GOOD[0]), "--reason", "x").lines[0] == "nothing to enqueue"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--since", "2026-01-01"),
        ("--since", "2026-01-01", "--until", "2999-01-01"),
        ("--since", "2026-01-02", "--until", "2026-01-01"),
        ("1/campaign_daily/2026-01-01", "--since", "2026-01-01"),
        ("elsewhere/1/campaign_daily/2026-01-01",),
        ("--query", "campaign", "--since", "2026-01-01", "--until", "2026-01-01"),
    ],
    ids=" ".join,
)
def test_a_backfill_says_its_days(cli: CommandLine, words: tuple[str, ...]) -> None:
    """Without both ends, or beyond today, or of what is not in the query file, nothing is enqueued."""
    before = digest(cli)
    assert cli.run("state", "enqueue", *words, "--reason", "x").code == 64
    assert digest(cli) == before
