"""Tests actions that change nothing: they say what was left out and why, and have an exit code of their own."""

import pytest

from ads_pipeline.pipeline.actions import action_preview
from ads_pipeline_tests.ledger.builders import accepted_runs
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.cli.state.builders import (
    FAILED,
    MARKED,
    REASON,
    SUCCESSFUL,
    fill_ledger,
    open_ledger,
    read_all_rows,
    recent_key,
)


@pytest.fixture
def cli(empty_cli: CommandLine) -> CommandLine:
    fill_ledger(empty_cli)
    return empty_cli


def text_of(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


@pytest.mark.invariant("S14")
def test_filter_names_what_its_status_leaves_out(cli: CommandLine) -> None:
    """Each reason has the number of partitions and the first one; the exit code is 3 and nothing is written."""
    before = read_all_rows(cli)
    result = cli.run("state", "retry", "--customer", "120", "--customer", "121", *REASON)
    assert (result.code, result.lines[0]) == (3, "nothing to retry")
    reason = "status is success: reprocess or withdraw a success instead"
    assert f"skipped: 2 partitions, such as {SUCCESSFUL[0]}: {reason}" in text_of(result.lines)
    assert read_all_rows(cli) == before


def test_partial_plan_names_the_rest_too(cli: CommandLine) -> None:
    """What changes and what does not is said together; the exit code is 0, because the plan was executed."""
    result = cli.run("state", "withdraw", "--all", *REASON)
    assert result.code == 0
    assert f"skipped: 5 partitions, such as {FAILED[0]}: status is failed: only a success" in text_of(result.lines)
    assert result.lines[-2] == "withdraw: 2 partitions changed"


def test_filter_without_any_partition_says_so(cli: CommandLine) -> None:
    """A window that holds no partition is named with its options."""
    words = ("--customer", "101", "--since", "2026-01-01", "--until", "2026-01-02")
    result = cli.run("state", "retry", *words, *REASON, "--json")
    assert (result.code, result.out) == (3, "")
    assert result.err.splitlines() == [
        "nothing to retry",
        "no recorded partition matches --customer 101 --since 2026-01-01 --until 2026-01-02",
    ]


def test_large_numbers_are_not_counted_to_the_end(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting stops at a bound, and the line says that there are more."""
    monkeypatch.setattr(action_preview, "LARGEST_COUNT", 3)
    with open_ledger(cli) as ledger:
        accepted_runs(ledger, [recent_key(customer) for customer in range(2001, 2006)])
    result = cli.run("state", "terminal", str(MARKED), *REASON)
    assert (result.code, "already marked as terminal" in text_of(result.lines)) == (3, True)
    result = cli.run("state", "retry", "--all", *REASON, "--dry-run")
    assert f"skipped: more than 3 partitions, such as {SUCCESSFUL[0]}: status is success" in text_of(result.lines)


def test_named_partitions_give_each_reason(cli: CommandLine) -> None:
    """JSON has one skipped object a partition, and the notes count them by reason; a dry run has the same code."""
    for more in ((), ("--dry-run",)):
        result = cli.run("state", "retry", *map(str, [*SUCCESSFUL, MARKED]), *REASON, "--json", *more)
        assert result.code == 3
        assert [each["result"] for each in result.objects] == ["skipped"] * 3
        assert "skipped: 2 partitions, such as" in result.err
        assert f"skipped: {MARKED}: terminal: marked as terminal" in result.err
