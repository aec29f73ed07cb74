"""Tests that no command answers for a partition that cannot exist, and that a new customer needs a confirmation."""

from datetime import UTC, datetime, timedelta

import pytest

from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.cli.state.builders import DAY, REASON, fill_ledger, read_all_rows

IMPOSSIBLE = {
    "unknown query": ("101/campaign_dayly/2026-03-01", "did you mean campaign_daily?"),
    "malformed customer": ("204-6619385/campaign_daily/2026-03-01", "1 to 20 digits 0-9, without hyphens"),
    "before the start date": ("101/campaign_daily/1999-01-01", "starts at 2024-01-01; give a later day"),
    "future day": ("101/campaign_daily/2999-01-01", "the day has not ended; the last complete day is "),
    "today": ("101/campaign_daily/{today}", "the last complete day is {yesterday}"),
    "another source": ("bing/101/campaign_daily/2026-03-01", "defines the source google_ads"),
}


def with_dates(text: str) -> str:
    """The text with dates of now: midnight may pass after the tests were collected."""
    today = datetime.now(UTC).date()
    return text.format(today=today, yesterday=today - timedelta(days=1))


@pytest.fixture
def cli(empty_cli: CommandLine) -> CommandLine:
    fill_ledger(empty_cli)
    return empty_cli


@pytest.mark.parametrize("case", IMPOSSIBLE)
@pytest.mark.parametrize("command", ["why", "enqueue"])
def test_impossible_partition_is_refused(cli: CommandLine, command: str, case: str) -> None:
    """One line names the cause and what to give instead; the exit code is 64 and nothing is written."""
    word, message = map(with_dates, IMPOSSIBLE[case])
    before = read_all_rows(cli)
    result = cli.run("state", command, word, *(() if command == "why" else (*REASON, "--yes")))
    assert (result.code, result.out) == (64, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert read_all_rows(cli) == before


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (("2023-12-31", "2024-01-02"), "starts at 2024-01-01"),
        (("2026-03-01", "{today}"), "the day has not ended"),
    ],
)
def test_enqueue_refuses_windows_with_impossible_days(
    cli: CommandLine, window: tuple[str, str], message: str
) -> None:
    """A window is not cut silently to the days that can exist."""
    since, until = map(with_dates, window)
    result = cli.run("state", "enqueue", "--since", since, "--until", until, *REASON, "--yes")
    assert (result.code, result.out) == (64, "")
    assert message in result.err


@pytest.mark.invariant("S16")
def test_new_customer_needs_a_confirmation(cli: CommandLine) -> None:
    """A customer without any partition may be misspelt: without a terminal, only --yes enqueues it."""
    words = ("state", "enqueue", f"1011/campaign_daily/{DAY}", *REASON)
    before = read_all_rows(cli)
    refused = cli.run(*words)
    assert (refused.code, refused.out) == (64, "")
    assert "customer 1011 is new: the ledger records no partition of it; did you mean 101?" in refused.err
    assert "--yes" in refused.err
    assert read_all_rows(cli) == before
    dry = cli.run(*words, "--dry-run")
    assert (dry.code, "customer 1011 is new" in " ".join(dry.out.split())) == (0, True)
    assert cli.run(*words, "--yes").lines[-2] == "enqueue: 1 partition changed"
    assert cli.run("state", "enqueue", "1011/campaign_daily/2026-03-01", *REASON).code == 0


def test_why_warns_of_a_customer_that_was_never_seen(cli: CommandLine) -> None:
    """A partition that could exist is explained, with the customers that its id resembles."""
    result = cli.run("state", "why", f"1011/campaign_daily/{DAY}")
    assert result.code == 0
    text = " ".join(result.out.split())
    assert "not recorded" in text
    assert "the ledger records no partition of customer 1011; did you mean 101?" in text
