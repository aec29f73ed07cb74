"""The command `ads-pipeline metrics`: OpenMetrics text that parsers accept, and the numbers in it."""

import re
import stat
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client import parser as older_text
from prometheus_client.openmetrics import parser as openmetrics

from ads_pipeline.domain.days.conditions import CONDITIONS, Condition
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.write_steps.leases import Lease
from ads_pipeline.operations.metrics import COUNTED, METRICS, PREFIX
from ads_pipeline_tests.ledger.builders import (
    accepted_runs,
    action_request,
    key,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
    run,
)
from ads_pipeline_tests.operations.cli.running import CommandLine, CommandResult, DemoCommandLine

Parser = Callable[[str], Iterable[Metric]]
PARSERS: list[Parser] = [openmetrics.text_string_to_metric_families, older_text.text_string_to_metric_families]
CUSTOMER = key().customer_id
Series = dict[tuple[str, tuple[str, ...]], float]


def parse(text: str, parser: Parser = PARSERS[0]) -> Series:
    """Each sample by its name, without the prefix, and its labels, without the workspace."""
    return {
        (
            sample.name.removeprefix(PREFIX),
            tuple(sample.labels[name] for name in METRICS[family.name.removeprefix(PREFIX)][1]),
        ): sample.value
        for family in parser(text)
        for sample in family.samples
    }


def open_ledger(cli: CommandLine) -> AbstractContextManager[Ledger]:
    return Ledger.opened(f"sqlite:///{cli.home / 'ledger.db'}")


def metrics(cli: CommandLine) -> Series:
    result = cli.run("metrics")
    assert (result.code, result.err) == (0, "")
    return parse(result.out)


@pytest.fixture
def cli(empty_cli: CommandLine) -> CommandLine:
    """One loaded, one rejected, one withdrawn and one requested day; all later days are missing or late."""
    with open_ledger(empty_cli) as ledger:
        accepted_runs(ledger, [key(day=1), key(day=3)])
        publish_runs(ledger, run(key(day=1), "r1"), run(key(day=3), "r1"))
        record_verdict(ledger, rejection(registered_runs(ledger, key(day=2), "r1")[0]))
        ledger.actions.execute(Action.WITHDRAW, [key(day=3)], action_request("a1"))
        ledger.actions.execute(Action.ENQUEUE, [key(day=4)], action_request("a2"))
        registered_runs(ledger, key(query_name="search_term_daily", day=3), "r1")
        ledger.actions.park(
            Parking(source="google_ads", scope="query", name="search_term_daily", error_class="operator", why="big"),
            action_request("a3"),
        )
    return empty_cli


@pytest.mark.parametrize("parser", PARSERS)
def test_parsers_accept_the_text(cli: CommandLine, parser: Parser) -> None:
    """That of OpenMetrics, and that of the older text which node_exporter reads. All samples are gauges."""
    text = cli.run("metrics").out
    families = list(parser(text))
    assert [family.name for family in families] == [PREFIX + name for name in METRICS]
    assert {family.type for family in families} == {"gauge"}
    assert text.endswith("# EOF\n")
    labels = {
        (name, value) for family in families for sample in family.samples for name, value in sample.labels.items()
    }
    assert ("workspace", "google_ads") in labels
    assert not {name for name, value in labels if "customer" in name or value == CUSTOMER}


def test_days_and_partitions_are_counted(cli: CommandLine) -> None:
    """Every condition of every query has a number, also zero, so that an alert sees when it is over."""
    found = metrics(cli)
    days = {labels: number for (name, labels), number in found.items() if name == "days"}
    assert {condition for _query, condition in days} == set(COUNTED)
    assert days["campaign_daily", Condition.REJECTED] == days["campaign_daily", Condition.HIDDEN] == 1
    assert days["campaign_daily", Condition.PARKED] == 0 < days["search_term_daily", Condition.PARKED]
    today = datetime.now(UTC)
    due = (today - timedelta(hours=12)).date() - timedelta(days=1)
    absent = (due - key(day=3).logical_date).days
    assert days["campaign_daily", Condition.MISSING] + days["campaign_daily", Condition.LATE] == absent
    assert [found["partitions", ("campaign_daily", status)] for status in ("pending", "success", "failed")] == [
        2,
        1,
        1,
    ]
    assert found["partitions", ("search_term_daily", "success")] == 0


def test_oldest_overdue_day_is_its_deadline(cli: CommandLine) -> None:
    """A query without an overdue day has no such sample."""
    found = metrics(cli)
    deadline = datetime.combine(date(2026, 2, 5), time(12), UTC)
    assert found["overdue_since_timestamp_seconds", ("campaign_daily",)] == deadline.timestamp()
    assert ("overdue_since_timestamp_seconds", ("search_term_daily",)) not in found


def test_retries_parkings_and_running_partitions_are_counted(cli: CommandLine) -> None:
    """A partition that a live run has claimed is in progress, and no longer due."""
    found = metrics(cli)
    assert found["due_partitions", ("backfill", "request")] == 1
    assert (found["parked", ("query",)], found["parked", ("customer",)]) == (1, 0)
    assert found["partitions_in_progress", ("backfill",)] == 0
    with open_ledger(cli) as ledger, Lease.held(ledger.engine, "run-1", duration=timedelta(minutes=5)) as lease:
        lease.claim([key(day=4)])
        found = metrics(cli)
    assert found["partitions_in_progress", ("backfill",)] == 1
    assert found["due_partitions", ("backfill", "request")] == 0


def test_last_load_and_event_position(cli: CommandLine) -> None:
    """A query that was never loaded has no sample."""
    before = metrics(cli)
    now = datetime.now(UTC).timestamp()
    assert now - 600 < before["last_load_timestamp_seconds", ("campaign_daily",)] <= now + 60
    assert now - 600 < before["last_event_timestamp_seconds", ()] <= now + 60
    assert ("last_load_timestamp_seconds", ("search_term_daily",)) not in before
    with open_ledger(cli) as ledger:
        ledger.actions.execute(Action.ENQUEUE, [key(day=5)], action_request("a9"))
    after = metrics(cli)
    assert after["event_log_position", ()] > before["event_log_position", ()]
    assert after["event_lag_seconds", ()] == 0


def test_empty_ledger_has_metrics(empty_cli: CommandLine) -> None:
    """Without any partition everything is zero, and times are left out."""
    found = metrics(empty_cli)
    assert {number for (name, _labels), number in found.items() if name != "build_info"} == {0}
    assert not [name for name, _labels in found if "timestamp" in name]


def test_output_replaces_the_file(cli: CommandLine, tmp_path: Path) -> None:
    """Atomically: no other file remains, and other users may read it as the umask says."""
    path = tmp_path / "textfile" / "ads_pipeline.prom"
    path.parent.mkdir()
    path.write_text("old")
    umask = stat.S_IWGRP | stat.S_IWOTH
    assert cli.process("metrics", "--output", str(path)) == CommandResult(code=0, out="", err="")
    assert parse(path.read_text()).keys() == metrics(cli).keys()
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert list(path.parent.iterdir()) == [path]


def test_failure_leaves_the_file(tmp_path: Path) -> None:
    """Without a ledger the old file stays, and its age shows that it is old."""
    path = tmp_path / "ads_pipeline.prom"
    path.write_text("old")
    result = CommandLine(home=tmp_path / "nowhere").process("metrics", "--output", str(path))
    assert result.code != 0
    assert result.err
    assert path.read_text() == "old"


def test_directory_that_is_missing_is_named(cli: CommandLine, tmp_path: Path) -> None:
    """In one line, with what to write instead."""
    path = tmp_path / "missing" / "ads_pipeline.prom"
    result = cli.process("metrics", "--output", str(path))
    assert result.code == 64
    assert str(path) in result.err
    assert len(result.err.splitlines()) == 1


def test_metrics_of_the_demo(demo_cli: DemoCommandLine) -> None:
    """They agree with the list of days that need attention."""
    found = metrics(demo_cli)
    listed = demo_cli.run("state", "inspect", "--condition", "rejected", "--json").objects
    rejected = [number for (name, labels), number in found.items() if name == "days" and labels[1] == "rejected"]
    assert sum(rejected) == len(listed) > 0


def test_conditions_that_need_an_operator_are_counted() -> None:
    """A new condition is counted as soon as it needs an operator."""
    assert {name for name, text in CONDITIONS.items() if text.needs_operator} < set(COUNTED)
    assert all(re.fullmatch(r"[a-z_]+", name) for name in METRICS)
