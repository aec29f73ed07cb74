"""`events`: what happened in runs, followed and summed up, and how snapshots are kept up and events deleted."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ads_pipeline.cli.events import FIELDS, shorten_names, format_event_data
from ads_pipeline.domain.run_events import Event
from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline_tests.cli.running import MAIN_SCRIPT, CommandLine
from ads_pipeline_tests.run_event_stores.builders import PLAN, make_event

RUN, OTHER = "3f2a91bc-1111-4111-8111-111111111111", "3f2a91cd-2222-4222-8222-222222222222"
STEP = "google_ads/1180250317/campaign_daily/2026-03-02"
HOSTILE = "\x1b[31m[red]\nforged :smile:\u2028\u202e\x7f"
UNKNOWN = '; "ads-pipeline events runs" lists them'


@pytest.fixture
def cli(url: str, tmp_path: Path) -> CommandLine:
    """An empty ledger, once on each database."""
    return CommandLine(home=tmp_path / "home", more={} if url.startswith("sqlite") else {"ADS_PIPELINE_DATABASE_URL": url})


@pytest.fixture
def log(url: str) -> Iterator[EventLog]:
    with EventLog.opened(url) as opened:
        yield opened


def story(run_id: str = RUN, *, ended: bool = True) -> list[Event]:
    """One step that went well, one that failed and one that did not finish."""
    return [
        make_event(run_id, "RunStarted"),
        *(make_event(run_id, "StepStarted", step) for step in (STEP, "second", "third")),
        make_event(run_id, "StepCompleted", "third", event_data={"rows": 3}),
        make_event(run_id, "StepFailed", STEP, event_data={"why": "cost_micros must be at least 0", "rows": 1}),
        *([make_event(run_id, "RunFailed")] if ended else []),
    ]


def at(url: str, moment: datetime, events: list[Event]) -> None:
    """Append them as if it were then."""
    with EventLog.opened(url, clock=lambda: moment) as log:
        log.append_many(events)


@contextmanager
def started(cli: CommandLine, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process that goes on while the block does."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN_SCRIPT, *words], env=cli.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def within(holds: Callable[[], bool]) -> bool:
    """Whether it comes true in the time that a slow machine may need."""
    until = time.monotonic() + 30
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode()


def test_runs_are_listed_newest_first(cli: CommandLine, log: EventLog, url: str) -> None:
    """One line a run: its first letters, status, events, steps by status, begin and end, without a day twice."""
    begun = datetime(2026, 3, 2, 4, 30, tzinfo=UTC)
    at(url, begun, [make_event(RUN, "RunStarted"), make_event(RUN, "StepFailed", "s1"), make_event(RUN, "StepCompleted", "s2")])
    at(url, begun + timedelta(minutes=5), [make_event(RUN, "RunFailed")])
    at(url, begun + timedelta(minutes=1), [make_event("another-run", "StepStarted", STEP)])
    Follower(log).catch_up()
    ended = cli.run("events", "runs")
    assert [line.rstrip() for line in ended.lines] == [
        "run       status   events  steps                  begun              ended",
        "another-  RUNNING       1  1 running              2026-03-02 04:31Z",
        "3f2a91bc  FAILED        4  1 failed, 1 succeeded  2026-03-02 04:30Z  04:35Z",
    ]
    assert (ended.code, ended.err) == (0, "")


def test_a_line_fits_eighty_columns(cli: CommandLine, log: EventLog, url: str) -> None:
    """However long the names and the sums are, and though runs end on another day than they began."""
    begun = datetime(2026, 3, 2, 23, 59, tzinfo=UTC)
    for run_id in ("r" * 95 + "1", "r" * 95 + "2"):
        at(url, begun, story(run_id, ended=False))
        log.append(make_event(run_id, "RunFailed"))
    Follower(log).catch_up()
    for words in (("runs",), ("tail", "r" * 95 + "1"), ("snapshot", "r" * 95 + "1")):
        assert max(map(len, cli.run("events", *words).lines)) <= 80


def test_a_wide_terminal_shows_whole_names(cli: CommandLine, log: EventLog) -> None:
    """Where there is room a run goes by its whole name."""
    log.append_many(story())
    wide = CommandLine(home=cli.home, more=dict(cli.more) | {"COLUMNS": "130"}).run("events", "runs")
    assert wide.lines[1].startswith(RUN)


def test_runs_are_told_apart_by_what_is_shown() -> None:
    """Names are cut to eight letters, to more where those are alike; one that begins another stays whole."""
    names = [RUN, OTHER, "3f2a91cd-3", "run-1", "run-10", "x"]
    assert list(shorten_names(names).values()) == ["3f2a91bc", "3f2a91cd-2", "3f2a91cd-3", "run-1", "run-10", "x"]


def test_what_a_snapshot_lacks_is_marked(cli: CommandLine, log: EventLog, backdoor: sa.Engine) -> None:
    """A run is marked while its snapshot is behind its events, stale, or all that is left of it."""
    for run_id in ("gone", "torn", "late"):
        log.append_many(story(run_id))
    Follower(log).catch_up()
    log.retire("gone")
    log.append(make_event("late", "NoteTaken"))
    with backdoor.begin() as connection:
        connection.execute(
            sa.text("UPDATE run_snapshots SET stale_since = '2026-03-02T04:30:00.000000Z' WHERE run_id = 'torn'")
        )
    words = cli.run("events", "runs").out.split()
    assert all(words.count(mark) == 1 for mark in ("retired", "stale", "behind"))


def test_the_lag_is_told_when_there_is_one(cli: CommandLine, url: str) -> None:
    """Below the runs stands for how long events have been waiting for a follower, once that is over a second."""
    at(url, datetime.now(UTC) - timedelta(minutes=5), story())
    ended = cli.run("events", "runs")
    assert ended.lines[1].split() == ["3f2a91bc", "behind", "7"]
    assert ended.lines[-1].startswith("the snapshots are 30")
    assert cli.run("events", "follow", "--once").code == 0
    assert "the snapshots" not in cli.run("events", "runs").out


def test_older_runs_are_hinted_at(cli: CommandLine, log: EventLog) -> None:
    """The list ends where it was told to, and says so."""
    log.append_many([make_event(f"run-{number}", "RunStarted") for number in range(3)])
    ended = cli.run("events", "runs", "--json", "--limit", "2")
    assert len(ended.objects) == 2
    assert ended.err.splitlines()[0] == "older runs follow; --limit shows more"  # the snapshots may be behind by now
    assert len(cli.run("events", "runs", "--json", "--limit", "3").objects) == 3


def test_a_program_gets_all_that_is_known_of_a_run(cli: CommandLine, log: EventLog) -> None:
    """One object a run with every field of its head and its snapshot; what was not projected is null."""
    log.append_many(story())
    (before,) = cli.run("events", "runs", "--json").objects
    assert (before["run_id"], before["events"], before["projected_seq"], before["status"]) == (RUN, 7, 0, None)
    Follower(log).catch_up()
    (after,) = cli.run("events", "runs", "--json").objects
    assert after["steps"] == {"FAILED": 1, "RUNNING": 1, "SUCCEEDED": 1}
    assert (after["status"], after["last_event_seq"], after["payload_conflicts"]) == ("FAILED", 7, 0)
    assert datetime.fromisoformat(after["ended_at"]).tzinfo is not None
    assert before.keys() == after.keys()


def test_no_runs_is_said(cli: CommandLine) -> None:
    """An empty log is no error."""
    assert cli.run("events", "runs").lines == ["", "no run has events yet"]


def test_events_are_told_in_order(cli: CommandLine, log: EventLog) -> None:
    """Each by its cli, its time, its step, its type and what it says, within 80 columns."""
    log.append_many(story())
    ended = cli.run("events", "tail", RUN)
    assert [line.split()[0] for line in ended.lines if line[:5].strip()] == [str(cli) for place in range(1, 8)]
    assert ended.lines[0].split()[-1] == "RunStarted"
    together = " ".join(ended.out.split())
    assert f'{STEP} StepFailed rows=1 why="cost_micros must be at least 0"' in together
    assert max(map(len, ended.lines)) <= 80
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize("limit", [1, 2, 6, 7, 10_000])
def test_pages_make_the_whole(cli: CommandLine, log: EventLog, limit: int) -> None:
    """Going on from the place that each page names gives each event once, and the last page names none."""
    log.append_many(story())
    seen: list[int] = []
    more: tuple[str, ...] = ()
    while True:
        ended = cli.run("events", "tail", RUN, "--json", "--limit", str(limit), *more)
        seen += [each["run_seq"] for each in ended.objects]
        if not ended.err:
            break
        said, onward = ended.err.splitlines()
        assert said == f"{7 - len(seen)} more follow; go on with"
        more = tuple(onward.split())
    assert seen == list(range(1, 8))


def test_a_page_behind_the_end_is_empty(cli: CommandLine, log: EventLog) -> None:
    """At the last place there is nothing more; a place that nobody has reached is a wrong word."""
    log.append_many(story())
    assert "which is the last" in cli.run("events", "tail", RUN, "--after", "7").out
    beyond = cli.run("events", "tail", RUN, "--after", str(2**70))
    assert (beyond.code, beyond.out) == (64, "")
    assert "is behind the last event" in beyond.err


def test_an_event_comes_back_as_it_was_appended(cli: CommandLine, log: EventLog) -> None:
    """With --json a line has every field of the event, and makes the same event again."""
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
    ended = cli.run("events", "tail", RUN, "--json")
    (fields,) = ended.objects
    assert tuple(fields) == FIELDS
    (logged,) = log.fetch(RUN)
    given = {name: fields.pop(name) for name in ("run_seq", "persisted_at", "idempotency_key")}
    assert Event(**fields) == event
    assert given == {
        "run_seq": 1,
        "persisted_at": logged.persisted_at.isoformat(timespec="microseconds"),
        "idempotency_key": event.idempotency_key,
    }
    assert all(line.isprintable() for line in ended.lines)


def test_hostile_text_reaches_no_terminal(cli: CommandLine, log: EventLog) -> None:
    """What an event says can neither colour, nor break the line, nor be taken for markup."""
    log.append(make_event(RUN, "StepFailed", STEP, event_data={HOSTILE: HOSTILE}))
    for words in (("tail", RUN), ("snapshot", RUN)):
        ended = cli.run("events", *words)
        assert all(line.isprintable() for line in ended.out.split("\n"))
        assert "[red]" in ended.out
        assert ":smile:" in ended.out


@pytest.mark.parametrize(
    ("data", "said"),
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
def test_what_an_event_says_is_told_in_short(data: Any, said: str) -> None:
    """An object by its fields, anything else as it is, on one line that is not too long."""
    assert format_event_data(data) == said


def test_a_follower_prints_what_another_process_appends(cli: CommandLine, log: EventLog) -> None:
    """Each event is seen as it comes, also after the end while there is more to read; then the code is nought."""
    log.append(make_event(RUN, "RunStarted"))
    with started(cli, "events", "tail", "3f2a", "--follow", "--json") as process:
        assert json.loads(line_of(process))["event_type"] == "RunStarted"
        log.append(make_event(RUN, "StepStarted", STEP))
        assert json.loads(line_of(process))["step_id"] == STEP
        assert process.poll() is None
        log.append_many([make_event(RUN, "RunCompleted"), make_event(RUN, "NoteTaken", event_data="late")])
        out, err = process.communicate(timeout=30)
    assert [json.loads(line)["event_type"] for line in out.splitlines()] == ["RunCompleted", "NoteTaken"]
    assert (process.returncode, err) == (0, b"")


def test_people_may_follow_too(cli: CommandLine, log: EventLog) -> None:
    """Without --json the lines come as soon."""
    log.append(make_event(RUN, "RunStarted"))
    with started(cli, "events", "tail", RUN, "-f") as process:
        assert line_of(process).split()[0::3] == ["1", "RunStarted"]
        log.append(make_event(RUN, "StepStarted", "s1"))
        assert line_of(process).split()[0::3] == ["2", "s1"]


def test_a_run_that_has_ended_is_followed_to_its_end(cli: CommandLine, log: EventLog) -> None:
    """There is nothing to wait for, wherever the reader begins, and a limit ends the reading sooner."""
    log.append_many(story())
    assert len(cli.run("events", "tail", RUN, "-f", "--json").objects) == 7
    assert [each["run_seq"] for each in cli.run("events", "tail", RUN, "-f", "--json", "--after", "5").objects] == [
        6,
        7,
    ]
    assert cli.run("events", "tail", RUN, "-f", "--after", "7").out == ""
    log.append_many(story(OTHER, ended=False))
    assert len(cli.run("events", "tail", OTHER, "-f", "--json", "--limit", "4").objects) == 4


def test_a_follower_learns_that_a_run_was_retired(cli: CommandLine, log: EventLog) -> None:
    """Whose end was deleted before it was read does not wait for ever, and is told."""
    log.append(make_event(RUN, "RunStarted"))
    with started(cli, "events", "tail", RUN, "-f") as process:
        assert "RunStarted" in line_of(process)
        process.send_signal(signal.SIGSTOP)
        log.append(make_event(RUN, "RunCompleted"))
        Follower(log).catch_up()
        log.retire(RUN)
        process.send_signal(signal.SIGCONT)
        _out, err = process.communicate(timeout=30)
    assert process.returncode == 64
    assert b"its events were retired at" in err


def test_ctrl_c_ends_a_follower_quietly(cli: CommandLine, log: EventLog) -> None:
    """As with tail -f and kubectl logs -f, the code is 130, and there is no complaint."""
    log.append(make_event(RUN, "RunStarted"))
    with started(cli, "events", "tail", RUN, "-f") as process:
        line_of(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["people", "json"])
def test_a_follower_whose_reader_goes_away_ends_quietly(cli: CommandLine, log: EventLog, more: tuple[str, ...]) -> None:
    """At the next event it finds the pipe closed, and ends as shells expect of it."""
    log.append(make_event(RUN, "RunStarted"))
    with started(cli, "events", "tail", RUN, "-f", *more) as process:
        line_of(process)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        log.append(make_event(RUN, "StepStarted", "s1"))
        assert process.wait(timeout=30) == 141
        assert process.stderr.read() == b""
        process.stdout = None


def test_a_snapshot_is_up_to_the_last_event(cli: CommandLine, log: EventLog) -> None:
    """What was appended since the last projection is folded in, for the run and for its steps, and is not kept."""
    log.append_many(story(ended=False))
    Follower(log).catch_up()
    log.append_many([make_event(RUN, "StepStarted", "fourth"), make_event(RUN, "StepCompleted", STEP), make_event(RUN, "RunFailed")])
    log.append_many([make_event(RUN, "StepStarted", "fifth"), make_event(RUN, "StepCompleted", "fourth")])
    log.append(make_event(RUN, "RunStarted", event_data="another payload"))
    ended = cli.run("events", "snapshot", "3f2a")
    facts = dict(line.split(maxsplit=1) for line in ended.lines[:3])
    assert facts == {"run": RUN.ljust(len(facts["run"])), "status": facts["status"], "plan": facts["plan"]}
    together = " ".join(ended.out.split())
    for fact in (
        f"run {RUN} status FAILED plan {PLAN} begun ",
        "last place 11 steps 2 running, 2 succeeded inconsistent 2 events that could not be",
        "conflicts 1 event told again with another payload; the first is kept",
        "2 steps, failed or still running, and the last that was said of each:",
    ):
        assert fact in together
    assert max(map(len, ended.lines)) <= 80
    kept = log.get_snapshot(RUN)
    assert kept is not None
    assert kept.status is RunStatus.RUNNING


def test_failed_steps_come_first_with_their_last_words(cli: CommandLine, log: EventLog) -> None:
    """Below the sums stand the steps that failed, then those that are not done; --steps lists the others too."""
    log.append_many([*story(ended=False), make_event(RUN, "StepStarted", "a")])
    ended = cli.run("events", "snapshot", RUN)
    assert [line.split()[0] for line in ended.lines if line.startswith(("FAILED", "RUNNING", "SUCC"))] == [
        "FAILED",
        "RUNNING",
        "RUNNING",
    ]
    assert f'FAILED {STEP} StepFailed rows=1 why="cost_micros must be at least 0" at 20' in " ".join(
        ended.out.split()
    )
    assert "third" not in ended.out
    all_steps = cli.run("events", "snapshot", RUN, "--steps")
    assert "SUCCEEDED  third  StepCompleted  rows=3  at " in all_steps.out
    assert "4 steps, and the last" in all_steps.out


def test_a_program_gets_the_snapshot_as_one_object(cli: CommandLine, log: EventLog) -> None:
    """With the steps that were asked for, each with its last event whole."""
    log.append_many(story())
    (found,) = cli.run("events", "snapshot", RUN, "--json").objects
    assert (found["status"], found["steps"]) == ("FAILED", {"FAILED": 1, "RUNNING": 1, "SUCCEEDED": 1})
    assert [(each["step_id"], each["status"]) for each in found["listed_steps"]] == [
        (STEP, "FAILED"),
        ("second", "RUNNING"),
    ]
    assert found["listed_steps"][0]["last_event"]["run_seq"] == 6
    (all_steps,) = cli.run("events", "snapshot", RUN, "--json", "--steps").objects
    assert len(all_steps["listed_steps"]) == 3


def test_many_failed_steps_are_cut_short(cli: CommandLine, log: EventLog) -> None:
    """A run in which everything failed fits on a few screens; with --steps, and for programs, nothing is cut."""
    log.append_many([make_event(RUN, "StepFailed", f"s{number:04}") for number in range(1_200)])
    ended = cli.run("events", "snapshot", RUN)
    assert ended.out.count("StepFailed") == 50
    assert ended.lines[-1] == "1,150 more follow; --steps lists all"
    assert cli.run("events", "snapshot", RUN, "--steps").out.count("StepFailed") == 1_200
    (found,) = cli.run("events", "snapshot", RUN, "--json").objects
    assert all(each["last_event"]["step_id"] == each["step_id"] for each in found["listed_steps"])
    assert len(found["listed_steps"]) == 1_200


@pytest.mark.parametrize("command", ["tail", "snapshot", "retire"])
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("nobody", f"run nobody: there is no such run{UNKNOWN}"),
        ("3F2A91BC", f"run 3F2A91BC: there is no such run{UNKNOWN}"),
        ("3f2", f"run 3f2: there is no such run (of a name, at least 4 letters are needed){UNKNOWN}"),
        ("", f"run : there is no such run (of a name, at least 4 letters are needed){UNKNOWN}"),
        ("%%%%", f"run %%%%: there is no such run{UNKNOWN}"),
        ("r\x1b[31m\udcff", rf"run r\x1b[31m\udcff: there is no such run{UNKNOWN}"),
        ("3f2a", f"3f2a begins the names of several runs, write more of it: {RUN}; {OTHER}"),
    ],
)
def test_a_wrong_run_is_told_with_what_is_right(
    cli: CommandLine, log: EventLog, command: str, word: str, said: str
) -> None:
    """The code is 64, nothing is written to standard output, and one line says where to look."""
    log.append_many([*story(), *story(OTHER)])
    ended = cli.run("events", command, word, *(["--yes"] if command == "retire" else []))
    assert (ended.code, ended.out, ended.err) == (64, "", f"ads-pipeline: {said}\n")


def test_a_whole_name_is_enough(cli: CommandLine, log: EventLog) -> None:
    """Also when it is short, and when others begin with it."""
    log.append_many([make_event(run_id, "RunStarted") for run_id in ("r1", "run-1", "run-10")])
    for name in ("r1", "run-1", "run-10"):
        assert cli.run("events", "tail", name, "--json").objects[0]["run_id"] == name


@pytest.mark.parametrize(
    "words",
    [("runs",), ("tail", "r1"), ("snapshot", "r1"), ("follow", "--once"), ("follow",), ("retire", "r1", "--yes")],
    ids=" ".join,
)
def test_no_command_makes_a_ledger(tmp_path: Path, unmigrated_postgres_url: str, words: tuple[str, ...]) -> None:
    """Where there is none the code is 78, and there is none afterwards."""
    nowhere = tmp_path / "nowhere"
    ended = CommandLine(home=nowhere).run("events", *words)
    assert (ended.code, nowhere.exists()) == (78, False)
    assert f"there is no ledger at {nowhere}" in ended.err.replace("\n", "")
    bare = CommandLine(home=nowhere, more={"ADS_PIPELINE_DATABASE_URL": unmigrated_postgres_url})
    assert bare.run("events", *words).code == 78
    engine = sa.create_engine(unmigrated_postgres_url)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()


def test_following_once_catches_up_and_ends(cli: CommandLine, log: EventLog) -> None:
    """Everything that is there is projected, and how much that was is said."""
    log.append_many([make_event(RUN, "StepCompleted", f"s{number}") for number in range(1_234)])
    first, second = (cli.run("events", "follow", "--once") for _time in range(2))
    assert (first.code, first.out, first.err) == (0, "projected 1,234 events\n", "")
    assert second.out == "projected 0 events\n"
    assert log.list_lagging_runs() == []


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_follower_of_all_runs_ends_cleanly(cli: CommandLine, log: EventLog, url: str, stop: signal.Signals) -> None:
    """It projects what others append, tells of its alarms and of their end, and sums up when it is told to stop."""
    at(url, datetime.now(UTC) - timedelta(seconds=7), story())
    with started(cli, "events", "follow") as process:
        assert within(lambda: log.list_lagging_runs() == [])
        log.append_many(story(OTHER))
        assert within(lambda: log.list_lagging_runs() == [])
        assert process.stderr is not None
        first = process.stderr.readline().decode()
        last = next(line for line in map(bytes.decode, process.stderr) if "RESYNC" not in line)
        process.send_signal(stop)
        out, err = process.communicate(timeout=30)
    assert first.startswith("PROJECTOR_LAG_HIGH: the snapshots are ")
    assert first.endswith(" s behind the events\n")
    assert last.startswith("NORMAL: the alarm is over")
    assert (process.returncode, out, err) == (0, b"projected 14 events\n", b"")


def test_a_run_that_has_ended_can_be_retired(cli: CommandLine, log: EventLog) -> None:
    """Its events go, its snapshot stays, other runs are not touched, and again is nothing to do."""
    log.append_many([*story(), *story(OTHER)])
    dry = cli.run("events", "retire", "3f2a91bc", "--dry-run")
    assert (dry.code, dry.out) == (0, f"would delete 7 events of run {RUN}\n")
    assert len(log.fetch(RUN)) == 7
    done = cli.run("events", "retire", "3f2a91bc", "--yes")
    assert (done.code, done.out) == (0, f"deleted 7 events of run {RUN}\n")
    assert (len(log.fetch(RUN)), len(log.fetch(OTHER))) == (0, 7)
    assert cli.run("events", "retire", RUN, "--yes").out.startswith("deleted nothing")
    tail = cli.run("events", "tail", RUN)
    assert (tail.code, "its events were retired at" in tail.err) == (64, True)
    together = " ".join(cli.run("events", "snapshot", RUN).out.split())
    assert "status FAILED" in together
    assert "the events are deleted" in together


def test_an_open_run_is_not_retired(cli: CommandLine, log: EventLog) -> None:
    """The code is 64 and the line says what the run is."""
    log.append_many(story(ended=False))
    for more in ("--yes", "--dry-run"):
        ended = cli.run("events", "retire", RUN, more)
        assert (ended.code, ended.out) == (64, "")
        assert ended.err == f"ads-pipeline: run {RUN}: its events stay while the run is RUNNING\n"
    assert len(log.fetch(RUN)) == 6


def test_runs_are_retired_by_the_day(cli: CommandLine, log: EventLog, url: str) -> None:
    """Those that ended before the day began, in UTC; those that ended on it and those that are open stay."""
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    at(url, midnight - timedelta(microseconds=1), [*story("old-1"), *story("old-2"), *story("open", ended=False)])
    at(url, midnight, story("new"))
    words = ("events", "retire", "--ended-before", "2026-03-02")
    assert cli.run(*words, "--dry-run").out == "would delete 14 events of 2 runs\n"
    assert cli.run(*words, "--yes").out == "deleted 14 events of 2 runs\n"
    assert [run_id for run_id in ("old-1", "old-2", "open", "new") if log.fetch(run_id)] == ["open", "new"]
    assert cli.run(*words, "--yes").out.startswith("deleted nothing")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name either a run or --ended-before"),
        ((RUN, "--ended-before", "2026-03-01"), "name either a run or --ended-before"),
        (("--ended-before", "yesterday"), "a real day written YYYY-MM-DD"),
        ((RUN,), "nobody can be asked here; --yes deletes"),
    ],
)
def test_retiring_needs_clear_words(cli: CommandLine, log: EventLog, words: tuple[str, ...], said: str) -> None:
    """Which runs, named in one way, and the consent of somebody; otherwise nothing is deleted."""
    log.append_many(story())
    ended = cli.run("events", "retire", *words)
    assert (ended.code, ended.out) == (64, "")
    assert said in ended.err
    assert len(log.fetch(RUN)) == 7


@pytest.mark.parametrize(
    ("answer", "code", "left"), [("y", 0, 0), ("n", 1, 7), ("\x04", 1, 7)], ids=["yes", "no", "end"]
)
def test_somebody_is_asked_before_events_are_deleted(
    cli: CommandLine, log: EventLog, answer: str, code: int, left: int
) -> None:
    """At a terminal the question says how much would go, and only yes deletes."""
    log.append_many(story())
    screen = answered(cli, answer, "events", "retire", RUN)
    assert f"Delete 7 events of run {RUN} for ever?" in "".join(screen[1].splitlines())
    assert (screen[0], len(log.fetch(RUN))) == (code, left)


def answered(cli: CommandLine, answer: str, *words: str) -> tuple[int, str]:
    """How the command ends at a terminal where this is typed when it asks, and what the terminal shows."""
    screen, keyboard = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN_SCRIPT, *words],
        env=cli.environ(),
        stdin=keyboard,
        stdout=keyboard,
        stderr=keyboard,
    )
    os.close(keyboard)
    written = b""
    with suppress(OSError):  # how Linux says that nobody holds the other end
        while some := os.read(screen, 1 << 16):
            written += some
            if b"[y/N]" in some:
                os.write(screen, answer.encode() + b"\n")
    os.close(screen)
    return process.wait(timeout=60), written.decode()
