"""Tests `state retry` and the other control actions: preview, confirmation, changes and report."""

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer

from ads_pipeline.domain.errors import LedgerUnavailable
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.operations.cli.groups import ACTIONS
from ads_pipeline.pipeline.actions import operator_actions
from ads_pipeline_tests.ledger.builders import acceptance, accepted_runs, record_verdict, registered_runs
from ads_pipeline_tests.operations.cli.running import MAIN_SCRIPT, CommandLine, CommandResult
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
    seal_runs,
    simulate_terminal,
)

VERBS = ("acknowledge", "retry", "terminal", "terminal --clear", "reprocess", "withdraw")
NAMES = {"terminal": "mark terminal", "terminal --clear": "clear terminal"}  # of the others the verb
MANY = [recent_key(customer) for customer in range(1001, 1024)]
Change = Callable[[], None]


@pytest.fixture
def cli(empty_cli: CommandLine) -> CommandLine:
    fill_ledger(empty_cli)
    return empty_cli


def states(cli: CommandLine, *partitions: Any) -> list[PartitionState]:
    with open_ledger(cli) as ledger:
        return list(ledger.states.get_many(partitions).values())


def action_id(result: CommandResult) -> str:
    (found,) = re.findall(r"^action ([0-9a-f-]{36})$", result.out + result.err, re.MULTILINE)
    return str(found)


def confirm_after(monkeypatch: pytest.MonkeyPatch, before: Change, *, agree: bool = True) -> list[str]:
    """Run `before` at each confirmation and answer it. Returns the questions, filled as they are asked."""
    simulate_terminal(monkeypatch)
    questions: list[str] = []

    def confirm(question: str, **_: Any) -> bool:
        questions.append(question)
        before()
        if not agree:
            raise typer.Abort
        return True

    monkeypatch.setattr(typer, "confirm", confirm)
    return questions


@pytest.mark.parametrize(
    ("verb", "option", "changed", "now", "becomes"),
    [
        ("retry", "--all", FAILED, "failed, 1 attempt", "pending"),
        ("terminal", "--all", FAILED, "failed, 1 attempt", "failed, terminal"),
        ("terminal --clear", "--all", [MARKED], "failed, 1 attempt", "failed, not marked"),
        ("reprocess", "--all", SUCCESSFUL, "success, 3 rows", "success, requested"),
        ("withdraw", "--all", SUCCESSFUL, "success, 3 rows", "pending, nothing to read"),
    ],
)
def test_preview_and_result_are_printed(
    cli: CommandLine, verb: str, option: str, changed: list[Any], now: str, becomes: str
) -> None:
    """The preview lists each partition before and after; the result has the count and the action's id."""
    result = cli.run("state", *verb.split(), option, *REASON)
    assert (result.code, result.err) == (0, "")
    assert re.split(" {2,}", result.lines[0].strip()) == ["customer", "query", "day", "now", "becomes"]
    rows = [re.split(" {2,}", line.strip()) for line in result.lines[1 : result.lines.index("")]]
    assert rows == [[each.customer_id, "campaign_daily", str(DAY), now, becomes] for each in changed]
    count = "1 partition" if len(changed) == 1 else f"{len(changed)} partitions"
    assert f"{count} to {NAMES.get(verb, verb)}: " in result.out
    assert result.lines[-2:] == [f"{NAMES.get(verb, verb)}: {count} changed", f"action {action_id(result)}"]
    for key in changed:
        with open_ledger(cli) as ledger:
            assert ledger.audit.of_partition(key)[-1].action_id == action_id(result)


@pytest.mark.invariant("S14")
@pytest.mark.parametrize("verb", VERBS)
def test_repeated_action_changes_nothing(cli: CommandLine, verb: str) -> None:
    """The second command says so, exits with 3 and adds nothing to the log."""
    cli.run("state", *verb.split(), "--all", *REASON)
    before = read_all_rows(cli)
    again = cli.run("state", *verb.split(), "--all", *REASON)
    assert again.code == 3
    assert again.lines[0] == f"nothing to {NAMES.get(verb, verb)}"
    assert read_all_rows(cli) == before


@pytest.mark.invariant("S15")
@pytest.mark.parametrize("verb", VERBS)
def test_dry_run_writes_nothing(cli: CommandLine, verb: str) -> None:
    """A dry run prints the same preview, asks nothing, and leaves every row unchanged."""
    before = read_all_rows(cli)
    dry = cli.run("state", *verb.split(), "--all", *REASON, "--dry-run")
    assert (dry.code, dry.lines[-1]) == (0, "nothing was changed")
    assert read_all_rows(cli) == before
    done = cli.run("state", *verb.split(), "--all", *REASON)
    assert done.lines[: len(dry.lines) - 1] == dry.lines[:-1]


@pytest.mark.invariant("S16")
def test_action_is_logged_with_its_command_line(cli: CommandLine) -> None:
    """The log has operator, command, filters, reason and the time of the state change."""
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
    result = cli.run(*words)
    with open_ledger(cli) as ledger:
        (logged,) = ledger.audit.of_partition(FAILED[0])
        state = ledger.states.get(FAILED[0])
    assert (logged.action_id, logged.action, logged.operator) == (action_id(result), "requeue", "ada")
    assert (logged.command, logged.reason) == (shlex.join(words), "it's fixed")
    assert (logged.status_before, logged.performed_at) == (Status.FAILED, state.updated_at)
    row = next(row for row in read_all_rows(cli)["control_actions"] if logged.action_id in row)
    assert f"--customer 101 --since {DAY}" in row


@pytest.mark.invariant("S16")
def test_more_than_twenty_changes_need_confirmation(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "No" exits with 1 and changes nothing, "yes" proceeds, --yes skips the question, and 20 changes need none."""
    with open_ledger(cli) as ledger:
        record_failures(ledger, MANY)
    seal_runs(cli, MANY)
    before = read_all_rows(cli)
    questions = confirm_after(monkeypatch, lambda: None, agree=False)
    refused = cli.run("state", "retry", "--all", *REASON)
    assert (refused.code, questions) == (1, ["retry 27 partitions?"])
    assert "and 7 more" in refused.lines
    assert read_all_rows(cli) == before
    questions = confirm_after(monkeypatch, lambda: None)
    assert cli.run("state", "retry", *map(str, MANY[:20]), *REASON).code == 0
    assert questions == []
    assert cli.run("state", "terminal", *map(str, FAILED), *REASON, "--yes").code == 0
    with open_ledger(cli) as ledger:
        accepted_runs(ledger, [recent_key(customer) for customer in range(2001, 2031)])
    assert cli.run("state", "reprocess", "--all", *REASON).code == 0
    assert questions == ["reprocess 32 partitions?"]
    assert cli.run("state", "withdraw", "--all", *REASON, "--yes").code == 0
    assert questions == ["reprocess 32 partitions?"]


@pytest.mark.invariant("S16")
@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_question_goes_to_standard_error(cli: CommandLine, answer: bytes, code: int) -> None:
    """The question does not mix with piped output, and only "yes" changes anything."""
    with open_ledger(cli) as ledger:
        record_failures(ledger, MANY)
    seal_runs(cli, MANY)
    keyboard, terminal = pty.openpty()
    words = ("state", "retry", "--all", *REASON, "--json")
    started = subprocess.Popen(
        [sys.executable, "-c", MAIN_SCRIPT, *words],
        env=cli.environ(),
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.write(keyboard, answer)
    out, err = started.communicate(timeout=600)
    os.close(keyboard)
    os.close(terminal)
    assert started.returncode == code
    assert b"retry 27 partitions? [y/N]:" in err
    assert len(out.strip().splitlines()) == (0 if code else 28)
    assert states(cli, MANY[0])[0].status is (Status.FAILED if code else Status.PENDING)


@pytest.mark.invariant("S16")
def test_without_terminal_confirmation_needs_yes(cli: CommandLine) -> None:
    """A script without --yes exits with 64 and changes nothing."""
    with open_ledger(cli) as ledger:
        record_failures(ledger, MANY)
    seal_runs(cli, MANY)
    before = read_all_rows(cli)
    result = cli.run("state", "retry", "--all", *REASON)
    assert (result.code, result.out) == (64, "")
    assert "27 partitions would change, and there is no terminal to ask" in result.err
    assert read_all_rows(cli) == before
    assert cli.run("state", "retry", "--all", *REASON, "--yes").code == 0


@pytest.mark.invariant("S16")
def test_selecting_every_partition_needs_all(cli: CommandLine) -> None:
    """An action without partitions and filters is refused unless --all is given."""
    result = cli.run("state", "retry", *REASON, "--yes")
    assert (result.code, result.out) == (64, "")
    assert "--all" in result.err


@pytest.mark.invariant("S13", "S14")
def test_partitions_changed_after_the_preview_remain(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that fails again or succeeds during the confirmation is not changed; the others are."""
    failed_again, succeeded, *others = MANY
    newly_failed = recent_key(9999)
    with open_ledger(cli) as ledger:
        record_failures(ledger, MANY)
    seal_runs(cli, MANY)

    def meanwhile() -> None:
        with open_ledger(cli) as ledger:
            record_failures(ledger, [failed_again, newly_failed], "r2")
            (accepted,) = registered_runs(ledger, succeeded, "r2")
            record_verdict(ledger, acceptance(accepted))

    confirm_after(monkeypatch, meanwhile)
    result = cli.run("state", "retry", "--query", "campaign_daily", *REASON)
    assert result.code == 2
    assert (
        f"remaining: {failed_again}: it was failed after 1 attempt in the preview and is failed after 2" in result.err
    )
    assert (
        f"remaining: {succeeded}: it was failed after 1 attempt in the preview and is success after 2" in result.err
    )
    assert result.lines[-5:] == [
        "retry: 25 partitions changed, 2 remaining",
        f"action {action_id(result)}",
        "remaining, to preview again:",
        f"  {failed_again} \\",
        f"  {succeeded}",
    ]
    with open_ledger(cli) as ledger:
        found = ledger.states.get_many([failed_again, succeeded, newly_failed, MARKED, *others, *FAILED])
    assert [state.status for state in found.values()] == [
        *(Status.FAILED, Status.SUCCESS, Status.FAILED, Status.FAILED),
        *[Status.PENDING] * 25,
    ]
    remaining = shlex.split(" ".join(result.lines[-2:]).replace("\\", ""))
    assert cli.run("state", "retry", *remaining, *REASON).lines[-2] == "retry: 1 partition changed"


@pytest.mark.invariant("S14")
def test_outage_lists_remaining_partitions(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished batches stay, the exit code is 2, and the remaining partitions are printed as arguments."""
    monkeypatch.setattr(operator_actions, "PARTITIONS_PER_TRANSACTION", 3)
    execute, calls = ControlActions.execute, [0]

    def fail_second_call(self: ControlActions, *args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise LedgerUnavailable("busy")
        return execute(self, *args, **kwargs)

    monkeypatch.setattr(ControlActions, "execute", fail_second_call)
    result = cli.run("state", "retry", "--all", *REASON)
    assert result.code == 2
    assert result.err == f"remaining: {FAILED[3]}: busy\n"
    assert result.lines[-4] == "retry: 3 partitions changed, 1 remaining"
    assert result.lines[-1] == f"  {FAILED[3]}"
    assert cli.run("state", "retry", result.lines[-1].strip(), *REASON).code == 0


def test_terminal_partitions_need_clear_terminal(cli: CommandLine) -> None:
    """They are skipped; --clear-terminal includes them and clears their marks first."""
    skipped = cli.run("state", "retry", str(MARKED), *REASON)
    assert skipped.lines[0] == "nothing to retry"
    assert "terminal: marked as terminal; clear the mark" in " ".join(skipped.out.split())
    done = cli.run("state", "retry", str(MARKED), *REASON, "--clear-terminal")
    assert "pending, mark cleared" in done.out
    assert states(cli, MARKED)[0].status is Status.PENDING
    with open_ledger(cli) as ledger:
        assert ledger.retry_queue.find_marked([MARKED]) == set()
        assert [logged.action for logged in ledger.audit.of_partition(MARKED)[1:]] == ["clear_terminal", "requeue"]


def test_partitions_without_sealed_run_need_force(cli: CommandLine) -> None:
    """A retry skips a partition without a sealed run unless --force is given."""
    shutil.rmtree(cli.home / "raw" / FAILED[0].path)
    skipped = cli.run("state", "retry", str(FAILED[0]), *REASON)
    assert "no sealed run on disk" in skipped.out
    assert states(cli, FAILED[0])[0].status is Status.FAILED
    assert cli.run("state", "retry", str(FAILED[0]), *REASON, "--force").code == 0
    assert states(cli, FAILED[0])[0].status is Status.PENDING


def test_error_class_filters_failures(cli: CommandLine) -> None:
    """Only partitions whose last failure has that class are selected; an unknown class is refused."""
    with open_ledger(cli) as ledger:
        record_failures(ledger, FAILED[:1], "r2", "quota_exhausted")
    done = cli.run("state", "retry", "--error-class", "quota_exhausted", *REASON)
    assert "retry: 1 partition changed" in done.lines
    assert [state.status for state in states(cli, *FAILED[:2])] == [Status.PENDING, Status.FAILED]
    assert "nothing to retry" in cli.run("state", "retry", "--error-class", "damaged", *REASON).lines
    unknown = cli.run("state", "retry", "--error-class", "contrct", *REASON)
    assert unknown.code == 64
    assert "did you mean contract?" in unknown.err


def test_json_has_one_line_per_partition(cli: CommandLine) -> None:
    """Each line has the result, the old and the new description; notes go to standard error."""
    words = ("state", "retry", str(FAILED[0]), str(MARKED), *REASON, "--json")
    dry, done = cli.run(*words, "--dry-run"), cli.run(*words)
    assert [each["result"] for each in dry.objects] == ["planned", "skipped"]
    assert [each["result"] for each in done.objects] == ["done", "skipped"]
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
def test_preview_fits_eighty_columns_without_colours(cli: CommandLine, verb: str) -> None:
    """The preview fits also with long partition names and long skip reasons."""
    with open_ledger(cli) as ledger:
        record_failures(ledger, [recent_key("1" * 20, "search_term_daily")])
        accepted_runs(ledger, [recent_key("2" * 20, "search_term_daily")])
    result = cli.run("state", *verb.split(), "--all", *REASON, "--dry-run")
    assert max(map(len, result.lines)) <= 80
    assert "\x1b" not in result.out


def test_hostile_text_is_escaped(cli: CommandLine) -> None:
    """Neither the reason nor the operator's name can colour or break a line."""
    cli.run("state", "withdraw", str(SUCCESSFUL[0]), "--reason", "\x1b[31mred\n", "--operator", "a\x1b[0m")
    report = cli.run("state", "why", str(SUCCESSFUL[0]))
    assert all(line.isprintable() for line in report.lines)


def test_every_action_has_a_command() -> None:
    """The command line offers every action of the table."""
    commands = set(ACTIONS) - {"terminal"} | {*NAMES.values()}
    assert commands == {action.name for action in operator_actions.ACTIONS}
    assert {action.name for action in operator_actions.ACTIONS if action.control} == {
        "enqueue",
        *(NAMES.get(verb, verb) for verb in VERBS),
    }


def test_enqueue_requests_unrecorded_partitions(cli: CommandLine) -> None:
    """Each unrecorded day of the selected queries and customers becomes due; recorded ones are skipped."""
    words = ("--customer", "1", "--query", "campaign_daily", "--since", "2026-01-01", "--until", "2026-01-03")
    result = cli.run("state", "enqueue", *words, "--reason", "moved here", "--yes")
    assert (result.code, result.lines[-2]) == (0, "enqueue: 3 partitions changed")
    again = cli.run("state", "enqueue", *words, "--reason", "moved here")
    assert (again.code, again.lines[0]) == (3, "nothing to enqueue")
    assert "already recorded" in " ".join(again.out.split())
    due = [f"{each['customer_id']}/{each['logical_date']}" for each in cli.run("state", "due", "--json").objects]
    assert [each for each in due if each.startswith("1/")] == [f"1/2026-01-0{day}" for day in (1, 2, 3)]
    assert cli.run("state", "enqueue", str(SUCCESSFUL[0]), "--reason", "x").lines[0] == "nothing to enqueue"


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
def test_enqueue_needs_valid_days(cli: CommandLine, words: tuple[str, ...]) -> None:
    """A missing end, a future day, a wrong order or an undefined query enqueues nothing."""
    before = read_all_rows(cli)
    assert cli.run("state", "enqueue", *words, "--reason", "x").code == 64
    assert read_all_rows(cli) == before
