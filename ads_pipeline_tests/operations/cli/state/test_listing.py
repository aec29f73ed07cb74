"""`state inspect`: filters, pages, the table and the JSON fields."""

from dataclasses import fields

import pytest

from ads_pipeline.domain.transitions import PartitionState
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.builders import sealed_run
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    accepted_runs,
    key,
    record_verdict,
    registered_runs,
    rejection,
    run,
)
from ads_pipeline_tests.operations.cli.running import CommandLine, DemoCommandLine

STATUS_FIELDS = (
    "display_status",
    "stale_since",
    "stale_reasons",
    "last_materialization_run_id",
    "last_materialization_at",
    "last_attempt_run_id",
    "last_attempt_at",
    "last_attempt_outcome",
)
FORECAST_FIELDS = {
    *("next_retry_at", "next_retry_reason", "terminal", "terminal_because", "marked_terminal", "given_up"),
    *("on_hold_until", "condition", "reason", "because", "detail", "operator", "acknowledged_because"),
    *("since", "report", "final_from", "next_command", "customer_name"),
    *("requested", "requested_at", "requested_by_action", "parked", "held_by_run"),
}
EVERY = ("--status", "success", "--status", "failed", "--status", "pending")
HOSTILE = "\x1b[31m[red]\nforged :smile:"


def test_table_has_one_line_per_partition(demo_cli: DemoCommandLine) -> None:
    """The table has one line per partition in key order, then the count of all matches."""
    result = demo_cli.run("state", "inspect", "--customer", "1180250317", "--query", "campaign_daily", *EVERY)
    assert result.lines[0].split() == ["customer", "query", "day", "status", "rows", "attempts", "data"]
    cells = [line.split() for line in result.lines[1:8]]
    assert [row[2] for row in cells] == [f"2026-03-0{day}" for day in range(2, 9)]
    assert cells[1] == ["1180250317", "campaign_daily", "2026-03-03", "success", "3", "2", "current"]
    assert result.lines[8:] == ["", "7 partitions: 7 success"]
    assert (result.code, result.err) == (0, "")


def test_error_messages_follow_the_table(demo_cli: DemoCommandLine) -> None:
    """The validator's message for each failed partition is printed below the table."""
    result = demo_cli.run("state", "inspect", "--status", "failed")
    output = " ".join(result.out.split())
    assert "cost_micros must be at least 0 in 1 row" in output
    assert "the payload has 4 rows, the seal says 6" in output
    assert str(demo_cli.demo.negative_cost) in result.out
    assert result.lines[-1] == "2 partitions: 2 failed"


@pytest.mark.parametrize(("width", "columns"), [("119", []), ("120", ["run"]), ("140", ["updated", "run"])])
def test_wide_terminal_shows_run_and_update_time(demo_cli: DemoCommandLine, width: str, columns: list[str]) -> None:
    """From 120 columns on, the table has the current run; from 140 on, also the last update. No cell is wrapped."""
    wide = CommandLine(home=demo_cli.home, more={"COLUMNS": width})
    result = wide.run("state", "inspect", "--query", "search_term_daily", "--status", "success", "--limit", "1")
    heading, row, *_rest = result.lines
    assert heading.split()[7:] == columns
    assert row.split()[1] == "search_term_daily"
    assert (row.split()[-1].startswith("20260303T043000000Z-")) is ("run" in columns)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ((), 83),
        (("--status", "success"), 81),
        (("--status", "failed", "--status", "success"), 83),
        (("--status", "pending"), 0),
        (("--customer", "1180250317"), 21),
        (("--customer", "1180250317", "--customer", "2046619385"), 42),
        (("--query", "campaign_daily", "--query", "ad_group_daily"), 55),
        (("--query", "keyword_daily"), 0),
        (("--since", "2026-03-08"), 11),
        (("--until", "2026-03-02"), 12),
        (("--since", "2026-03-03", "--until", "2026-03-04", "--query", "campaign_daily"), 8),
        (("--customer", "99"), 0),
    ],
)
def test_filters_are_combined(demo_cli: DemoCommandLine, arguments: tuple[str, ...], count: int) -> None:
    """Values of one option are alternatives, options are conjunctive, and date windows include both ends."""
    assert len(demo_cli.run("state", "inspect", "--json", *arguments).objects) == count


def test_json_has_every_field(demo_cli: DemoCommandLine) -> None:
    """Each line is one object with all fields of key, state and status; the counts go to standard error."""
    result = demo_cli.run("state", "inspect", "--json", "--status", "failed")
    (bad, damaged) = result.objects
    own = {field.name for field in fields(PartitionState)} - {"key"}
    current = {f"{asset}_{name}" for asset in ("raw", "warehouse") for name in STATUS_FIELDS}
    assert bad.keys() == own | current | FORECAST_FIELDS | {"source", "customer_id", "query_name", "logical_date"}
    assert (bad["raw_display_status"], bad["raw_last_attempt_outcome"]) == ("NeverMaterialized", "FAILED")
    assert (bad["customer_id"], bad["logical_date"]) == (demo_cli.demo.negative_cost.key.customer_id, "2026-03-07")
    assert (bad["status"], bad["attempt_count"], bad["current_run_id"]) == ("failed", 1, None)
    assert damaged["error_message"].endswith("the payload has 4 rows, the seal says 6")
    assert result.err == "2 partitions: 2 failed\n"


@pytest.mark.parametrize("limit", [1, 40, 82, 83, 10_000])
def test_pages_cover_every_partition_once(demo_cli: DemoCommandLine, limit: int) -> None:
    """Following --after returns each partition once, and the last page names no next key."""
    seen: list[str] = []
    more: tuple[str, ...] = ()
    for _page in range(3):
        result = demo_cli.run("state", "inspect", "--json", "--limit", str(limit), *more)
        seen += [f"{each['customer_id']}/{each['query_name']}/{each['logical_date']}" for each in result.objects]
        notes = result.err.splitlines()
        if len(notes) == 1:
            break
        assert notes[1] == f"{83 - len(seen)} more follow; continue with"
        more = tuple(notes[2].split())
    assert seen == sorted(set(seen))
    assert len(seen) == min(83, 3 * limit)


def test_counts_stop_at_a_limit(demo_cli: DemoCommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A status with more partitions than the limit is reported as "more than" the limit."""
    monkeypatch.setattr("ads_pipeline.operations.cli.state.recorded.LARGEST_COUNT", 40)
    result = demo_cli.run("state", "inspect", *EVERY, "--limit", "50")
    assert result.lines[-3:-1] == [
        "more than 42 partitions: more than 40 success, 2 failed",
        "33 more follow; continue with",
    ]
    monkeypatch.setattr("ads_pipeline.operations.cli.state.recorded.LARGEST_COUNT", 30)
    result = demo_cli.run("state", "inspect", *EVERY, "--limit", "50")
    assert result.lines[-2] == "more than 30 more follow; continue with"


def test_lines_fit_80_columns(demo_cli: DemoCommandLine) -> None:
    """No line of the table, the messages or the notes is wider than 80 columns."""
    result = demo_cli.run("state", "inspect", *EVERY, "--limit", "70")
    assert max(map(len, result.lines)) <= 80
    assert "--after google_ads/4727351908/" in result.out


def test_empty_result_repeats_the_filters(empty_cli: CommandLine) -> None:
    """An empty result is no error, and says what was looked for."""
    assert empty_cli.run("state", "inspect").lines == ["no day needs you", "no partition is recorded"]
    result = empty_cli.run("state", "inspect", "--query", "campaign_daily", "--status", "failed")
    assert (result.code, result.lines) == (
        0,
        ["0 recorded partitions match --query campaign_daily --status failed"],
    )


def test_error_messages_are_escaped(empty_cli: CommandLine) -> None:
    """A message with control characters or markup is printed escaped, on one line."""
    bad = run(key(), "r1")
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        ledger.registrations.register([sealed_run(bad, 1)])
        record_verdict(ledger, rejection(bad, HOSTILE))
    result = empty_cli.run("state", "inspect", *EVERY)
    assert rf"{bad}: \x1b[31m[red]\nforged :smile: in 1 row" in " ".join(result.out.split())
    assert all(line.isprintable() for line in result.lines)
    (state,) = empty_cli.run("state", "inspect", "--json").objects
    assert state["error_message"] == r"r1: \x1b[31m[red]\nforged :smile: in 1 row"


def test_data_column_shows_staleness_beside_status(empty_cli: CommandLine) -> None:
    """A success is first "not loaded", then "current", then "bad rerun"; its status stays success."""
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        accepted_runs(ledger, [key()])
        assert _row_cells(empty_cli) == ["success", "3", "1", "not", "loaded"]
        ledger.loads.publish([run(key(), "r1")], table_version=0)
        assert _row_cells(empty_cli) == ["success", "3", "1", "current"]
        (newer, worse) = registered_runs(ledger, key(), "r2", "r3")
        record_verdict(ledger, acceptance(newer))
        assert _row_cells(empty_cli) == ["success", "3", "2", "not", "loaded"]
        (output,) = empty_cli.run("state", "inspect", "--json").objects
        assert (output["warehouse_display_status"], output["warehouse_stale_reasons"]) == (
            "Stale",
            ["UPSTREAM_CHANGED"],
        )
        assert output["warehouse_stale_since"] == output["raw_last_materialization_at"]
        ledger.loads.publish([newer], table_version=1)
        record_verdict(ledger, rejection(worse))
        assert _row_cells(empty_cli) == ["success", "3", "3", "bad", "rerun"]
        (output,) = empty_cli.run("state", "inspect", "--json").objects
        assert output["raw_display_status"] == "MaterializedButLastAttemptFailed"
        assert (output["current_run_id"], output["raw_last_attempt_run_id"]) == ("r2", "r3")


def _row_cells(cli: CommandLine) -> list[str]:
    return cli.run("state", "inspect", *EVERY).lines[1].split()[3:]
