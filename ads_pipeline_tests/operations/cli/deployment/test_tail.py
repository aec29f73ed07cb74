"""Tests the command `events tail`."""

import json
import signal
from typing import Any

import pytest

from ads_pipeline.domain.run_events import Event
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.operations.cli.command_line.event_tables import FIELDS, format_event_data
from ads_pipeline.testing.event_strategies import make_event
from ads_pipeline_tests.operations.cli.deployment.builders import (
    HOSTILE,
    OTHER,
    RUN,
    STEP,
    make_run,
    read_line,
    running,
)
from ads_pipeline_tests.operations.cli.running import CommandLine


def test_tail_prints_events_in_order(cli: CommandLine, log: EventLog) -> None:
    """Each line has sequence number, time, step, type and data, within 80 columns."""
    log.append_many(make_run())
    result = cli.run("events", "tail", RUN)
    assert [line.split()[0] for line in result.lines if line[:5].strip()] == [str(seq) for seq in range(1, 8)]
    assert result.lines[0].split()[-1] == "RunStarted"
    text = " ".join(result.out.split())
    assert f'{STEP} StepFailed rows=1 why="cost_micros must be at least 0"' in text
    assert max(map(len, result.lines)) <= 80
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize("limit", [1, 2, 6, 7, 10_000])
def test_pages_contain_each_event_once(cli: CommandLine, log: EventLog, limit: int) -> None:
    """Continuing with the printed option gives each event once. The last page prints no option."""
    log.append_many(make_run())
    seen: list[int] = []
    more: tuple[str, ...] = ()
    while True:
        result = cli.run("events", "tail", RUN, "--json", "--limit", str(limit), *more)
        seen += [each["run_seq"] for each in result.objects]
        if not result.err:
            break
        note, option = result.err.splitlines()
        assert note == f"{7 - len(seen)} more follow; continue with"
        more = tuple(option.split())
    assert seen == list(range(1, 8))


def test_page_after_the_last_event_is_empty(cli: CommandLine, log: EventLog) -> None:
    """After the last event the page is empty. A sequence number beyond it is a usage error."""
    log.append_many(make_run())
    assert "which is the last" in cli.run("events", "tail", RUN, "--after", "7").out
    beyond = cli.run("events", "tail", RUN, "--after", str(2**70))
    assert (beyond.code, beyond.out) == (64, "")
    assert "is beyond the last event" in beyond.err


def test_tail_json_has_every_field(cli: CommandLine, log: EventLog) -> None:
    """Each --json line has every field, from which the same event can be created."""
    event = make_event(
        RUN,
        "StepFailed",
        STEP,
        event_data={"text": HOSTILE, "é": [1, -0.5, None, True, {"deep": 2**62}]},
        engine_run_ref={"dagster": "x"},
        logical_attempt_id=3,
        engine_attempt_id=2,
        adapter_version="7",
        caused_by_signal_id="signal-1",
        parent_event_id="12345678-1234-4234-8234-123456789abc",
    )
    log.append(event)
    result = cli.run("events", "tail", RUN, "--json")
    (fields,) = result.objects
    assert tuple(fields) == FIELDS
    (logged,) = log.fetch(RUN)
    assigned = {name: fields.pop(name) for name in ("run_seq", "persisted_at", "idempotency_key")}
    assert Event(**fields) == event
    assert assigned == {
        "run_seq": 1,
        "persisted_at": logged.persisted_at.isoformat(timespec="microseconds"),
        "idempotency_key": event.idempotency_key,
    }
    assert all(line.isprintable() for line in result.lines)


def test_event_text_is_escaped(cli: CommandLine, log: EventLog) -> None:
    """Event data with control characters and markup is printed as plain text on one line."""
    log.append(make_event(RUN, "StepFailed", STEP, event_data={HOSTILE: HOSTILE}))
    for more in ((), ("--snapshot",)):
        result = cli.run("events", "tail", RUN, *more)
        assert all(line.isprintable() for line in result.out.split("\n"))
        assert "[red]" in result.out
        assert ":smile:" in result.out


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, ""),
        ({"rows": 3, "of": "r1"}, "rows=3  of=r1"),
        ({"why": "two words", "empty": "", "none": None}, 'why="two words"  empty=""  none=null'),
        ({"a": {"b": [1]}}, 'a={"b": [1]}'),
        ([1, "x"], '[1, "x"]'),
        ("word", "word"),
        (False, "false"),
        ("x" * 1000, "x" * 159 + "…"),
    ],
)
def test_event_data_is_formatted_on_one_line(data: Any, text: str) -> None:
    """An object is printed as name=value pairs, any other value as JSON, cut to one line."""
    assert format_event_data(data) == text


def test_tail_follow_prints_new_events(cli: CommandLine, log: EventLog) -> None:
    """Each event is printed when it is appended. After the last event of an ended run the exit code is 0."""
    log.append(make_event(RUN, "RunStarted"))
    with running(cli, "events", "tail", "3f2a", "--follow", "--json") as process:
        assert json.loads(read_line(process))["event_type"] == "RunStarted"
        log.append(make_event(RUN, "StepStarted", STEP))
        assert json.loads(read_line(process))["step_id"] == STEP
        assert process.poll() is None
        log.append_many([make_event(RUN, "RunCompleted"), make_event(RUN, "NoteTaken", event_data="late")])
        out, err = process.communicate(timeout=600)
    assert [json.loads(line)["event_type"] for line in out.splitlines()] == ["RunCompleted", "NoteTaken"]
    assert (process.returncode, err) == (0, b"")


def test_tail_follow_prints_lines_without_json(cli: CommandLine, log: EventLog) -> None:
    """Without --json, lines are printed at once too."""
    log.append(make_event(RUN, "RunStarted"))
    with running(cli, "events", "tail", RUN, "-f") as process:
        assert read_line(process).split()[0::3] == ["1", "RunStarted"]
        log.append(make_event(RUN, "StepStarted", "s1"))
        assert read_line(process).split()[0::3] == ["2", "s1"]


def test_tail_follow_of_an_ended_run_terminates(cli: CommandLine, log: EventLog) -> None:
    """Following an ended run prints the remaining events and exits. A limit stops earlier."""
    log.append_many(make_run())
    assert len(cli.run("events", "tail", RUN, "-f", "--json").objects) == 7
    assert [each["run_seq"] for each in cli.run("events", "tail", RUN, "-f", "--json", "--after", "5").objects] == [
        6,
        7,
    ]
    assert cli.run("events", "tail", RUN, "-f", "--after", "7").out == ""
    log.append_many(make_run(OTHER, ended=False))
    assert len(cli.run("events", "tail", OTHER, "-f", "--json", "--limit", "4").objects) == 4


def test_tail_follow_reports_a_retired_run(cli: CommandLine, log: EventLog) -> None:
    """If the run is retired before its end was read, the command fails with the reason."""
    log.append(make_event(RUN, "RunStarted"))
    with running(cli, "events", "tail", RUN, "-f") as process:
        assert "RunStarted" in read_line(process)
        process.send_signal(signal.SIGSTOP)
        log.append(make_event(RUN, "RunCompleted"))
        Follower(log).catch_up()
        log.retire(RUN)
        process.send_signal(signal.SIGCONT)
        _out, err = process.communicate(timeout=600)
    assert process.returncode == 64
    assert b"its events were retired at" in err


def test_ctrl_c_stops_tail_follow_without_output(cli: CommandLine, log: EventLog) -> None:
    """After Ctrl-C the exit code is 130, as with tail -f, and nothing is printed."""
    log.append(make_event(RUN, "RunStarted"))
    with running(cli, "events", "tail", RUN, "-f") as process:
        read_line(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert (process.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_closed_pipe_stops_tail_follow(cli: CommandLine, log: EventLog, more: tuple[str, ...]) -> None:
    """At the next event the command finds the pipe closed and exits with 141, without output."""
    log.append(make_event(RUN, "RunStarted"))
    with running(cli, "events", "tail", RUN, "-f", *more) as process:
        read_line(process)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        log.append(make_event(RUN, "StepStarted", "s1"))
        assert process.wait(timeout=600) == 141
        assert process.stderr.read() == b""
        process.stdout = None
