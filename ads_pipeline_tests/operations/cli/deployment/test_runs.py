"""Tests the command `events runs`."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.operations.cli.command_line.event_tables import shorten_names
from ads_pipeline.testing.event_strategies import make_event
from ads_pipeline_tests.operations.cli.deployment.builders import OTHER, RUN, STEP, append_at, make_run
from ads_pipeline_tests.operations.cli.running import CommandLine


def test_runs_are_listed_newest_first(cli: CommandLine, log: EventLog, url: str) -> None:
    """Each line has a short run id, status, event count, step counts, start and end, without repeating the day."""
    start = datetime(2026, 3, 2, 4, 30, tzinfo=UTC)
    append_at(
        url,
        start,
        [make_event(RUN, "RunStarted"), make_event(RUN, "StepFailed", "s1"), make_event(RUN, "StepCompleted", "s2")],
    )
    append_at(url, start + timedelta(minutes=5), [make_event(RUN, "RunFailed")])
    append_at(url, start + timedelta(minutes=1), [make_event("another-run", "StepStarted", STEP)])
    Follower(log).catch_up()
    result = cli.run("events", "runs")
    assert [line.rstrip() for line in result.lines] == [
        "run       status   events  steps                  started            ended",
        "another-  RUNNING       1  1 running              2026-03-02 04:31Z",
        "3f2a91bc  FAILED        4  1 failed, 1 succeeded  2026-03-02 04:30Z  04:35Z",
    ]
    assert (result.code, result.err) == (0, "")


def test_lines_fit_eighty_columns(cli: CommandLine, log: EventLog, url: str) -> None:
    """Lines fit 80 columns with long run ids and with runs that end on another day."""
    start = datetime(2026, 3, 2, 23, 59, tzinfo=UTC)
    for run_id in ("r" * 95 + "1", "r" * 95 + "2"):
        append_at(url, start, make_run(run_id, ended=False))
        log.append(make_event(run_id, "RunFailed"))
    Follower(log).catch_up()
    for arguments in (("runs",), ("tail", "r" * 95 + "1"), ("tail", "--snapshot", "r" * 95 + "1")):
        assert max(map(len, cli.run("events", *arguments).lines)) <= 80


def test_wide_terminal_shows_full_run_ids(cli: CommandLine, log: EventLog) -> None:
    """With 130 columns the list shows full run ids."""
    log.append_many(make_run())
    wide = CommandLine(home=cli.home, more=dict(cli.more) | {"COLUMNS": "130"}).run("events", "runs")
    assert wide.lines[1].startswith(RUN)


def test_shortened_run_ids_are_unique() -> None:
    """Run ids are cut to eight characters, or to more for uniqueness. A prefix of another id stays whole."""
    names = [RUN, OTHER, "3f2a91cd-3", "run-1", "run-10", "x"]
    assert list(shorten_names(names).values()) == ["3f2a91bc", "3f2a91cd-2", "3f2a91cd-3", "run-1", "run-10", "x"]


def test_lagging_stale_and_retired_runs_are_marked(cli: CommandLine, log: EventLog, backdoor: sa.Engine) -> None:
    """The list marks runs with unfolded events, with a stale snapshot, and without events after a retirement."""
    for run_id in ("gone", "torn", "late"):
        log.append_many(make_run(run_id))
    Follower(log).catch_up()
    log.retire("gone")
    log.append(make_event("late", "NoteTaken"))
    with backdoor.begin() as connection:
        connection.execute(
            sa.text("UPDATE run_head SET stale_since = '2026-03-02T04:30:00.000000Z' WHERE engine_run_id = 'torn'")
        )
    cells = cli.run("events", "runs").out.split()
    assert all(cells.count(mark) == 1 for mark in ("retired", "stale", "behind"))


def test_lag_is_printed_below_the_runs(cli: CommandLine, url: str) -> None:
    """A lag above one second is printed below the runs, and not after a follower has caught up."""
    append_at(url, datetime.now(UTC) - timedelta(minutes=5), make_run())
    result = cli.run("events", "runs")
    assert result.lines[1].split() == ["3f2a91bc", "behind", "7"]
    assert result.lines[-1].startswith("the snapshots are 30")
    cli.fold_events()
    assert "the snapshots" not in cli.run("events", "runs").out


def test_limit_mentions_older_runs(cli: CommandLine, log: EventLog) -> None:
    """With more runs than the limit, a note says that there are older runs."""
    log.append_many([make_event(f"run-{number}", "RunStarted") for number in range(3)])
    result = cli.run("events", "runs", "--json", "--limit", "2")
    assert len(result.objects) == 2
    assert result.err.splitlines()[0] == "there are older runs; --limit shows more"  # a note about lag may follow
    assert len(cli.run("events", "runs", "--json", "--limit", "3").objects) == 3


def test_runs_json_has_head_and_snapshot_fields(cli: CommandLine, log: EventLog) -> None:
    """Each object has every field of head and snapshot. Without a snapshot its fields are null."""
    log.append_many(make_run())
    (before,) = cli.run("events", "runs", "--json").objects
    assert (before["engine_run_id"], before["events"], before["projected_seq"], before["status"]) == (RUN, 7, 0, None)
    Follower(log).catch_up()
    (after,) = cli.run("events", "runs", "--json").objects
    assert after["steps"] == {"FAILED": 1, "RUNNING": 1, "SUCCEEDED": 1}
    assert (after["status"], after["last_event_seq"], after["payload_conflicts"]) == ("FAILED", 7, 0)
    assert datetime.fromisoformat(after["ended_at"]).tzinfo is not None
    assert before.keys() == after.keys()


def test_empty_log_prints_a_note(cli: CommandLine) -> None:
    """Without runs, the command prints a note and succeeds."""
    assert cli.run("events", "runs").lines == ["", "no run has events yet"]
