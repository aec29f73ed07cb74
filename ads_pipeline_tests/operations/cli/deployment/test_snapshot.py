"""Tests the command `events tail --snapshot`, and how the commands find runs and ledgers."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.testing.event_strategies import PLAN, make_event
from ads_pipeline_tests.operations.cli.deployment.builders import HINT, OTHER, RUN, STEP, make_run
from ads_pipeline_tests.operations.cli.running import CommandLine


def test_snapshot_includes_unfolded_events(cli: CommandLine, log: EventLog) -> None:
    """Events that were appended since the last fold count for the run and its steps. Nothing is stored."""
    log.append_many(make_run(ended=False))
    Follower(log).catch_up()
    log.append_many(
        [
            make_event(RUN, "StepStarted", "fourth"),
            make_event(RUN, "StepCompleted", STEP),
            make_event(RUN, "RunFailed"),
        ]
    )
    log.append_many([make_event(RUN, "StepStarted", "fifth"), make_event(RUN, "StepCompleted", "fourth")])
    log.append(make_event(RUN, "RunStarted", event_data="another payload"))
    result = cli.run("events", "tail", "--snapshot", "3f2a")
    facts = dict(line.split(maxsplit=1) for line in result.lines[:3])
    assert facts == {"run": RUN.ljust(len(facts["run"])), "status": facts["status"], "plan": facts["plan"]}
    text = " ".join(result.out.split())
    for fact in (
        f"run {RUN} status FAILED plan {PLAN} started ",
        "last event 11 steps 2 running, 2 succeeded inconsistent 2 events did not fit the run's status",
        "conflicts 1 event sent again with another payload; the first is kept",
        "2 steps, failed or still running, each with its last event:",
    ):
        assert fact in text
    assert max(map(len, result.lines)) <= 80
    stored = log.get_snapshot(RUN)
    assert stored is not None
    assert stored.status is RunStatus.RUNNING


def test_failed_steps_come_first_with_their_last_event(cli: CommandLine, log: EventLog) -> None:
    """The snapshot lists failed steps, then running ones. --steps adds the others."""
    log.append_many([*make_run(ended=False), make_event(RUN, "StepStarted", "a")])
    result = cli.run("events", "tail", "--snapshot", RUN)
    assert [line.split()[0] for line in result.lines if line.startswith(("FAILED", "RUNNING", "SUCC"))] == [
        "FAILED",
        "RUNNING",
        "RUNNING",
    ]
    assert f'FAILED {STEP} StepFailed rows=1 why="cost_micros must be at least 0" at 20' in " ".join(
        result.out.split()
    )
    assert "third" not in result.out
    all_steps = cli.run("events", "tail", "--snapshot", RUN, "--steps")
    assert "SUCCEEDED  third  StepCompleted  rows=3  at " in all_steps.out
    assert "4 steps, each with its last event" in all_steps.out


def test_snapshot_json_is_one_object(cli: CommandLine, log: EventLog) -> None:
    """The object lists the requested steps, each with every field of its last event."""
    log.append_many(make_run())
    (found,) = cli.run("events", "tail", "--snapshot", RUN, "--json").objects
    assert (found["status"], found["steps"]) == ("FAILED", {"FAILED": 1, "RUNNING": 1, "SUCCEEDED": 1})
    assert [(each["step_id"], each["status"]) for each in found["listed_steps"]] == [
        (STEP, "FAILED"),
        ("second", "RUNNING"),
    ]
    assert found["listed_steps"][0]["last_event"]["run_seq"] == 6
    (all_steps,) = cli.run("events", "tail", "--snapshot", RUN, "--json", "--steps").objects
    assert len(all_steps["listed_steps"]) == 3


def test_list_of_failed_steps_is_limited(cli: CommandLine, log: EventLog) -> None:
    """The snapshot lists at most 50 steps. --steps and --json list all."""
    log.append_many([make_event(RUN, "StepFailed", f"s{number:04}") for number in range(1_200)])
    result = cli.run("events", "tail", "--snapshot", RUN)
    assert result.out.count("StepFailed") == 50
    assert result.lines[-1] == "1,150 more steps; --steps lists all"
    assert cli.run("events", "tail", "--snapshot", RUN, "--steps").out.count("StepFailed") == 1_200
    (found,) = cli.run("events", "tail", "--snapshot", RUN, "--json").objects
    assert all(each["last_event"]["step_id"] == each["step_id"] for each in found["listed_steps"])
    assert len(found["listed_steps"]) == 1_200


@pytest.mark.parametrize(
    "command", [("events", "tail"), ("events", "tail", "--snapshot"), ("ledger", "retire-events")], ids=" ".join
)
@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("nobody", f"run nobody: there is no such run{HINT}"),
        ("3F2A91BC", f"run 3F2A91BC: there is no such run{HINT}"),
        ("3f2", f"run 3f2: there is no such run (give at least 4 characters){HINT}"),
        ("", f"run : there is no such run (give at least 4 characters){HINT}"),
        ("%%%%", f"run %%%%: there is no such run{HINT}"),
        ("r\x1b[31m\udcff", rf"run r\x1b[31m\udcff: there is no such run{HINT}"),
        ("3f2a", f"3f2a matches several runs; give more characters: {RUN}; {OTHER}"),
    ],
)
def test_unknown_or_ambiguous_run_is_a_usage_error(
    cli: CommandLine, log: EventLog, command: tuple[str, ...], prefix: str, message: str
) -> None:
    """The exit code is 64, and one line on standard error says how to find the run."""
    log.append_many([*make_run(), *make_run(OTHER)])
    reason = ("--yes", "--reason", "old") if command[0] == "ledger" else ()
    result = cli.run(*command, prefix, *reason)
    assert (result.code, result.out, result.err) == (64, "", f"ads-pipeline: {message}\n")


@pytest.mark.parametrize("more", [("--follow", "--snapshot"), ("--after", "1", "--snapshot"), ("--steps",)])
def test_snapshot_shows_no_events(cli: CommandLine, log: EventLog, more: tuple[str, ...]) -> None:
    """Options about events are refused with --snapshot, and --steps without it."""
    log.append_many(make_run())
    assert cli.run("events", "tail", RUN, *more).code == 64


def test_full_run_id_is_accepted(cli: CommandLine, log: EventLog) -> None:
    """A full run id is accepted even if it is short or a prefix of others."""
    log.append_many([make_event(run_id, "RunStarted") for run_id in ("r1", "run-1", "run-10")])
    for name in ("r1", "run-1", "run-10"):
        assert cli.run("events", "tail", name, "--json").objects[0]["engine_run_id"] == name


@pytest.mark.parametrize(
    "arguments",
    [
        ("events", "runs"),
        ("events", "tail", "r1"),
        ("events", "tail", "--snapshot", "r1"),
        ("ledger", "retire-events", "r1", "--yes", "--reason", "old"),
    ],
    ids=" ".join,
)
def test_no_command_creates_a_ledger(
    tmp_path: Path, unmigrated_postgres_url: str, arguments: tuple[str, ...]
) -> None:
    """Without a ledger the exit code is 78, and none is created."""
    missing_home = tmp_path / "missing_home"
    result = CommandLine(home=missing_home).run(*arguments)
    assert (result.code, missing_home.exists()) == (78, False)
    assert f"There is no data below {missing_home}" in result.err.replace("\n", "")
    unmigrated = CommandLine(home=missing_home, more={"ADS_PIPELINE_DATABASE_URL": unmigrated_postgres_url})
    assert unmigrated.run(*arguments).code == 78
    engine = sa.create_engine(unmigrated_postgres_url)
    assert sa.inspect(engine).get_schema_names() == ["information_schema", "public"]
    engine.dispose()
