"""Tests the command `ledger retire-events`."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline_tests.operations.cli.deployment.builders import OTHER, RUN, append_at, make_run
from ads_pipeline_tests.operations.cli.running import MAIN_SCRIPT, CommandLine

REASON = ("--reason", "disk is full", "--operator", "ada")


def test_ended_run_can_be_retired(cli: CommandLine, log: EventLog) -> None:
    """Retiring deletes the events of one run and keeps its snapshot and other runs. A repeat does nothing."""
    log.append_many([*make_run(), *make_run(OTHER)])
    dry = cli.run("ledger", "retire-events", "3f2a91bc", *REASON, "--dry-run")
    assert (dry.code, dry.out) == (0, f"would delete 7 events of run {RUN}\n")
    assert len(log.fetch(RUN)) == 7
    done = cli.run("ledger", "retire-events", "3f2a91bc", *REASON, "--yes")
    (logged,) = cli.run("audit", "--json").objects
    assert (done.code, done.out) == (0, f"deleted 7 events of run {RUN}\naction {logged['action_id']}\n")
    assert (logged["action"], logged["operator"], logged["reason"]) == ("retire_events", "ada", "disk is full")
    assert logged["command"] == "ledger retire-events 3f2a91bc --reason 'disk is full' --operator ada --yes"
    assert logged["filters"] == f"run {RUN}"
    assert (len(log.fetch(RUN)), len(log.fetch(OTHER))) == (0, 7)
    assert (
        cli.run("ledger", "retire-events", RUN, *REASON, "--yes").out
        == f"deleted nothing: run {RUN} has no events any more\n"
    )
    tail = cli.run("events", "tail", RUN)
    assert (tail.code, "its events were retired at" in tail.err) == (64, True)
    text = " ".join(cli.run("events", "tail", "--snapshot", RUN).out.split())
    assert "status FAILED" in text
    assert "the events are deleted" in text


def test_open_run_cannot_be_retired(cli: CommandLine, log: EventLog) -> None:
    """The exit code is 64, and the message has the status of the run."""
    log.append_many(make_run(ended=False))
    for more in ("--yes", "--dry-run"):
        result = cli.run("ledger", "retire-events", RUN, *REASON, more)
        assert (result.code, result.out) == (64, "")
        assert result.err == f"ads-pipeline: run {RUN}: its events cannot be retired while the run is RUNNING\n"
    assert len(log.fetch(RUN)) == 6


def test_runs_are_retired_by_day(cli: CommandLine, log: EventLog, url: str) -> None:
    """--ended-before retires runs that ended before the start of the day in UTC. Later and open runs stay."""
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    append_at(
        url,
        midnight - timedelta(microseconds=1),
        [*make_run("old-1"), *make_run("old-2"), *make_run("open", ended=False)],
    )
    append_at(url, midnight, make_run("new"))
    arguments = ("ledger", "retire-events", "--ended-before", "2026-03-02", *REASON)
    assert cli.run(*arguments, "--dry-run").out == "would delete 14 events of 2 runs\n"
    assert cli.run(*arguments, "--yes").out.startswith("deleted 14 events of 2 runs\naction ")
    logged = cli.run("audit", "--json").objects
    assert {each["filters"] for each in logged} == {"run old-1", "run old-2"}
    assert [run_id for run_id in ("old-1", "old-2", "open", "new") if log.fetch(run_id)] == ["open", "new"]
    nothing = "deleted nothing: no run that ended before 2026-03-02 has events\n"
    assert cli.run(*arguments, "--yes").out == nothing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either a run or --ended-before"),
        ((RUN, "--ended-before", "2026-03-01"), "give either a run or --ended-before"),
        (("--ended-before", "yesterday"), "a real day written YYYY-MM-DD"),
        ((RUN, "--reason", " ", "--yes"), "--reason is empty"),
        ((RUN,), "standard input is not a terminal: use --yes"),
    ],
)
def test_retire_needs_one_target_and_a_confirmation(
    cli: CommandLine, log: EventLog, arguments: tuple[str, ...], message: str
) -> None:
    """Without exactly one target, or without a confirmation, nothing is deleted."""
    log.append_many(make_run())
    result = cli.run("ledger", "retire-events", *REASON, *arguments)
    assert (result.code, result.out) == (64, "")
    assert message in result.err
    assert len(log.fetch(RUN)) == 7


@pytest.mark.parametrize(
    ("answer", "code", "left"), [("y", 0, 0), ("n", 1, 7), ("\x04", 1, 7)], ids=["yes", "no", "end"]
)
def test_retire_asks_for_confirmation_on_a_terminal(
    cli: CommandLine, log: EventLog, answer: str, code: int, left: int
) -> None:
    """On a terminal the command asks with the number of events, and only "y" deletes."""
    log.append_many(make_run())
    exit_code, output = run_with_answer(cli, answer, "ledger", "retire-events", RUN, *REASON)
    assert f"Delete 7 events of run {RUN} for good?" in "".join(output.splitlines())
    assert (exit_code, len(log.fetch(RUN))) == (code, left)


def run_with_answer(cli: CommandLine, answer: str, *arguments: str) -> tuple[int, str]:
    """Run the command on a pseudo-terminal, type the answer, and return the exit code and the output."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN_SCRIPT, *arguments],
        env=cli.environ(),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    written = b""
    with suppress(OSError):  # Linux raises it when the process closes the terminal
        while chunk := os.read(controller, 1 << 16):
            written += chunk
            if b"[y/N]" in chunk:
                os.write(controller, answer.encode() + b"\n")
    os.close(controller)
    return process.wait(timeout=600), written.decode()
