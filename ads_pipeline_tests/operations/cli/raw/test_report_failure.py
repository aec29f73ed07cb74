"""Tests `raw report-failure`: failed fetches of outside extractors count for retries, not as attempts."""

import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ads_pipeline.domain.transitions import Status
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.cli.state.builders import (
    FAILED,
    SUCCESSFUL,
    fill_ledger,
    open_ledger,
    read_all_rows,
    recent_key,
)

ROOT = Path(__file__).parents[4]
NEW = recent_key(150)
LATE = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
TIMEOUT = ("--error-class", "timeout", "--message", "no answer after 60 s")


@pytest.fixture(params=["sqlite", "postgres"])
def cli(request: pytest.FixtureRequest, tmp_path: Path) -> CommandLine:
    url: str = request.getfixturevalue(f"{request.param}_url")
    more = {"ADS_PIPELINE_DATABASE_URL": url} if request.param == "postgres" else {}
    cli = CommandLine(home=tmp_path / "home", more=more)
    fill_ledger(cli)
    return cli


@pytest.mark.invariant("S6")
def test_failed_fetch_counts_for_retries_and_not_as_attempt(cli: CommandLine) -> None:
    """The partition is due again after the delay of the policy; its attempt count and its status stay."""
    result = cli.run("raw", "report-failure", str(NEW), *TIMEOUT, "--at", LATE, "--json")
    assert result.code == 0
    (reported,) = result.objects
    assert (reported["recorded"], reported["next_retry_reason"]) == (True, "timeout; attempt 2 of 6")
    (due,) = cli.run("state", "due", "--json").objects
    assert (due["customer_id"], due["kind"], due["why"]) == ("150", "failed", "timeout; attempt 2 of 6")
    assert due["since"] == reported["next_retry_at"]
    with open_ledger(cli) as ledger:
        state = ledger.states.get(NEW)
    assert (state.status, state.attempt_count) == (Status.PENDING, 0)
    assert cli.run("state", "why", str(NEW)).out.count("FetchFailed") == 1


@pytest.mark.invariant("E4")
def test_repeated_report_changes_nothing(cli: CommandLine) -> None:
    """A report with the same id, or with the same time, counts once; another one counts again."""
    words = ("raw", "report-failure", str(NEW), *TIMEOUT)
    for own in (("--id", "fetch-7"), ("--at", LATE)):
        assert cli.run(*words, *own).lines[0].startswith("recorded failure ")
        before = read_all_rows(cli)
        again = cli.run(*words, *own)
        assert (again.code, again.lines[0].split(" failure ")[0]) == (0, "already recorded:")
        assert read_all_rows(cli) == before
    cli.run(*words)
    with open_ledger(cli) as ledger:
        assert ledger.retry_queue.find_scheduled([NEW])[NEW].failures == 3


@pytest.mark.invariant("L4")
def test_two_failures_of_one_moment_are_both_recorded(cli: CommandLine) -> None:
    """The id names a failure. Two failures of a partition may have the same time."""
    words = ("raw", "report-failure", str(NEW), *TIMEOUT, "--at", LATE)
    for own in ("fetch-1", "fetch-2"):
        result = cli.run(*words, "--id", own)
        assert (result.code, result.lines[0].split(" of ")[0]) == (0, f"recorded failure {own}")
    with open_ledger(cli) as ledger:
        assert ledger.retry_queue.find_scheduled([NEW])[NEW].failures == 2


def test_failed_fetch_is_an_attempt_of_the_raw_asset(cli: CommandLine) -> None:
    """The status of ADR-026 shows the failed attempt; the data and the success stay as they were."""
    cli.run("raw", "report-failure", str(SUCCESSFUL[0]), *TIMEOUT, "--id", "fetch-1")
    found = {each["customer_id"]: each for each in cli.run("state", "inspect", "--json").objects}
    shown = found[SUCCESSFUL[0].customer_id]
    assert (shown["status"], shown["attempt_count"]) == ("success", 1)
    assert (shown["raw_last_attempt_run_id"], shown["raw_last_attempt_outcome"]) == ("fetch-1", "FAILED")
    assert shown["raw_last_materialization_run_id"] == "r1"
    cli.run("raw", "report-failure", str(FAILED[0]), *TIMEOUT, "--id", "old", "--at", LATE)
    shown = next(each for each in cli.run("state", "inspect", "--json").objects if each["customer_id"] == "101")
    assert shown["raw_last_attempt_run_id"] == "r1", "a later attempt stays the last one"


def test_error_class_decides_what_follows(cli: CommandLine) -> None:
    """An exhausted quota waits as long as the source said, and an account without access is parked."""
    until = (datetime.now(UTC) + timedelta(hours=9)).isoformat(timespec="microseconds")
    words = ("--error-class", "quota_exhausted", "--message", "no more today", "--wait-until", until, "--json")
    (waiting,) = cli.run("raw", "report-failure", str(NEW), *words).objects
    assert waiting["next_retry_at"] == until
    no_access = ("--error-class", "permission_denied", "--message", "no access")
    parked = cli.run("raw", "report-failure", str(FAILED[0]), *no_access)
    assert any(line.startswith("parked: account 101 since 20") for line in parked.lines)
    assert "permission_denied: no access" in cli.run("state", "inspect", "--list", "parked").out
    assert cli.run("state", "release", "--customer", "101", "--reason", "fixed").code == 0


def test_message_is_escaped_and_cut(cli: CommandLine) -> None:
    """The message of an outside program cannot colour a line, and at most 2,000 characters are stored."""
    hostile = "\x1b[31mred\n" + "x" * 5_000
    result = cli.run("raw", "report-failure", str(NEW), "--error-class", "permission_denied", "--message", hostile)
    assert all(line.isprintable() for line in result.lines)
    (parking,) = cli.run("state", "inspect", "--list", "parked", "--json").objects
    assert parking["why"].startswith(r"\x1b[31mred\nxxx")
    assert len(parking["why"]) == 2_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("7/campaign_dayly/2026-03-01", *TIMEOUT), "did you mean campaign_daily?"),
        (("204-6619385/campaign_daily/2026-03-01", *TIMEOUT), "without hyphens"),
        (("7/campaign_daily/2999-01-01", *TIMEOUT), "the day has not ended"),
        (("7/campaign_daily/1999-01-01", *TIMEOUT), "starts at 2024-01-01"),
        ((str(NEW), "--error-class", "timeout", "--message", " "), "--message is empty"),
        ((str(NEW), "--error-class", "No!", "--message", "x"), "error_class: 'No!' is refused"),
        ((str(NEW), *TIMEOUT, "--at", "2026-03-01T01:00:00"), "with its UTC offset"),
        ((str(NEW), *TIMEOUT, "--wait-until", "soon"), "with its UTC offset"),
        ((str(NEW), *TIMEOUT, "--id", "../x"), "failure_id: '../x' is refused"),
    ],
)
def test_impossible_report_is_refused(empty_cli: CommandLine, words: tuple[str, ...], message: str) -> None:
    """A wrong partition, class, time or id ends with 64 and one line; nothing is stored."""
    before = read_all_rows(empty_cli)
    result = empty_cli.run("raw", "report-failure", *words)
    assert (result.code, result.out) == (64, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert read_all_rows(empty_cli) == before


def test_documented_reports_are_one_failure(empty_cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command and the Python code of the raw format's page report the same failure once."""
    page = (ROOT / "docs" / "raw-format.md").read_text()
    (line,) = re.findall(r"^ads-pipeline (raw report-failure (?:.*\\\n)*.*)$", page, re.MULTILINE)
    reported = empty_cli.run(*shlex.split(line.replace("\\\n", " ")))
    assert reported.out.startswith("recorded failure 20260304T050607Z-1 of")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    before = read_all_rows(empty_cli)
    monkeypatch.setenv("ADS_PIPELINE_HOME", str(empty_cli.home))
    exec(code, {})
    assert read_all_rows(empty_cli) == before
