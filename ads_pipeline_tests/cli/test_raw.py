"""`raw list` and `raw verify`: which runs are sealed, what the ledger knows of them, and whether they are whole."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import RunRegistration
from ads_pipeline.raw.landing import PAYLOAD, RawRuns
from ads_pipeline_tests.builders import ROWS, facts
from ads_pipeline_tests.cli.running import WEEK, CommandLine, DemoCommandLine
from ads_pipeline_tests.cli.test_exit_codes import on_terminal
from ads_pipeline_tests.ledger.builders import acceptance, key, registered_runs, publish_runs, rejection, run

ALL = ("--since", "2026-02-01", "--until", "2026-02-28")


def seal(cli: CommandLine, *runs: Run) -> None:
    for each in runs:
        RawRuns(cli.home / "raw").land(each, ROWS, facts())


def tamper(cli: CommandLine, each: Run) -> Path:
    """Change a sealed payload without changing its size."""
    payload = cli.home / "raw" / each.path / PAYLOAD
    payload.chmod(0o644)
    payload.write_bytes(payload.read_bytes().replace(b"Spring", b"Autumn"))
    return payload


def of_each_kind(cli: CommandLine) -> None:
    """A run of which nobody knows, one that awaits its verdict, and one of each verdict."""
    runs = [run(key(day=day), "r1") for day in (1, 2, 3, 4)]
    older = run(key(day=4), "r0")
    seal(cli, older, *runs)
    with Ledger.opened(f"sqlite:///{cli.home / 'ledger.db'}") as ledger:
        ledger.register(
            [RunRegistration(run=each, schema_version="1", record_count=3) for each in (older, *runs[1:])]
        )
        ledger.record_verdicts([rejection(runs[2]), acceptance(older), acceptance(runs[3])])
        publish_runs(ledger, runs[3])


def test_runs_are_listed_below_their_customer_and_query(demo_cli: DemoCommandLine) -> None:
    """One line a run, in order of days, with its name, rows, bytes, schema version and what the ledger knows."""
    ended = demo_cli.run("raw", "list", *WEEK, "--customer", "1180250317", "--query", "campaign_daily")
    assert ended.lines[0] == "1180250317 campaign_daily"
    assert ended.lines[1].split() == ["day", "run", "rows", "bytes", "v", "ledger"]
    rows = [line.split() for line in ended.lines[2:10]]
    assert rows[1][:3] == ["2026-03-03", demo_cli.demo.first.run_id, "3"]
    assert rows[2][1:3] == [demo_cli.demo.restated.run_id, "3"]
    assert [row[-2:] for row in rows[:3]] == [["2", "current"], ["2", "accepted"], ["2", "current"]]
    assert ended.lines[-1] == "8 sealed runs: 7 current, 1 accepted"
    assert max(map(len, ended.lines)) <= 80
    assert (ended.code, ended.err) == (0, "")


def test_what_the_ledger_knows_is_told(empty_cli: CommandLine) -> None:
    """Nothing, that a verdict is awaited, what the verdict was, and whether the partition is read from this run."""
    of_each_kind(empty_cli)
    ended = empty_cli.run("raw", "list", *ALL)
    assert [line[10:].split()[-1] for line in ended.lines[2:7]] == [
        "unregistered",
        "verdict",
        "rejected",
        "accepted",
        "current",
    ]
    assert ended.lines[-1] == "5 sealed runs: 1 current, 1 accepted, 1 rejected, 1 awaiting verdict, 1 unregistered"


def test_only_those_without_a_verdict(empty_cli: CommandLine) -> None:
    """What nobody knows of awaits one as well as what is registered."""
    of_each_kind(empty_cli)
    found = empty_cli.run("raw", "list", *ALL, "--unjudged", "--json").objects
    assert [(each["logical_date"], each["ledger"]) for each in found] == [
        ("2026-02-01", "unregistered"),
        ("2026-02-02", "awaiting verdict"),
    ]


def test_what_was_withdrawn_or_demoted_is_not_current(empty_cli: CommandLine) -> None:
    """A run is called current only while its partition is safe to read from it."""
    seal(empty_cli, run(key(), "r1"))
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        (first,) = registered_runs(ledger, key(), "r1")
        ledger.record_verdict(acceptance(first))
        ledger.record_verdict(rejection(first, validation_id="again"))
    assert empty_cli.run("raw", "list", *ALL).lines[-1] == "1 sealed run: 1 rejected"


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ((), 84),
        (("--customer", "1180250317"), 22),
        (("--customer", "1180250317", "--customer", "2046619385", "--query", "campaign_daily"), 15),
        (("--query", "keyword_daily"), 0),
        (("--customer", "99"), 0),
    ],
)
def test_filters_narrow_together(demo_cli: DemoCommandLine, words: tuple[str, ...], count: int) -> None:
    """Values of one option widen, options narrow; both commands mean the same runs."""
    assert len(demo_cli.run("raw", "list", "--json", *WEEK, *words).objects) == count
    assert f"of {count} sealed runs damaged" in demo_cli.run("raw", "verify", *WEEK, *words).lines[-1]


def test_the_window_is_the_last_month(empty_cli: CommandLine) -> None:
    """Unless it is said otherwise: today and the thirty days before it; before a last day, its own thirty."""
    today = datetime.now(UTC).date()

    def of(day: date) -> Run:
        named = PartitionKey(source="google_ads", customer_id="1", query_name="campaign_daily", logical_date=day)
        return run(named, "r1")

    seal(empty_cli, *(of(today - timedelta(days=back)) for back in (0, 30, 31)))
    assert len(empty_cli.run("raw", "list", "--json").objects) == 2
    assert len(empty_cli.run("raw", "list", "--json", "--until", str(today - timedelta(days=1))).objects) == 2
    assert len(empty_cli.run("raw", "list", "--json", "--since", str(today - timedelta(days=400))).objects) == 3
    assert empty_cli.run("raw", "list", "--json", "--since", str(today + timedelta(days=1))).objects == []


def test_damage_that_is_seen_without_reading_is_marked(empty_cli: CommandLine) -> None:
    """A payload that is shorter than its seal says has no rows to show; why stands below its customer's runs."""
    torn, sound = run(key(day=1), "r1"), run(key(day=2), "r1")
    seal(empty_cli, torn, sound)
    payload = empty_cli.home / "raw" / torn.path / PAYLOAD
    payload.chmod(0o644)
    payload.write_bytes(b"")
    ended = empty_cli.run("raw", "list", *ALL)
    assert ended.lines[2].split() == ["2026-02-01", "r1", "damaged", "unregistered"]
    assert f"{torn.path}: the payload has 0 bytes" in "".join(ended.lines)
    assert ended.lines[-1] == "2 sealed runs: 2 unregistered; 1 damaged"
    assert max(map(len, ended.lines)) <= 80
    (broken, _sound) = empty_cli.run("raw", "list", *ALL, "--json").objects
    assert (broken["run_id"], broken["ledger"]) == ("r1", "unregistered")
    assert broken["damage"].startswith("the payload has 0 bytes")


def test_a_name_that_is_no_runs_is_told(empty_cli: CommandLine) -> None:
    """An account in a misspelt folder is told whatever was asked for, and makes the verification fail."""
    seal(empty_cli, run(key(), "r1"))
    (empty_cli.home / "raw" / "google_ads" / "customer=1").mkdir()
    ended = empty_cli.run("raw", "list", *ALL, "--customer", "1234567890")
    assert "google_ads/customer=1: " in ended.out
    assert ended.lines[-1] == "1 sealed run: 1 unregistered; 1 path without a run's name"
    assert (ended.code, empty_cli.run("raw", "verify", *ALL).code) == (0, 1)
    assert [each.get("run_id") for each in empty_cli.run("raw", "list", *ALL, "--json").objects] == ["r1", None]


def test_a_program_gets_every_field(demo_cli: DemoCommandLine) -> None:
    """One object a run with the seal's fields and the ledger's word; the tally does not stand among them."""
    ended = demo_cli.run("raw", "list", *WEEK, "--customer", "1180250317", "--json")
    found = {each["run_id"]: each for each in ended.objects}[demo_cli.demo.restated.run_id]
    sealed = RawRuns(demo_cli.home / "raw").seal(demo_cli.demo.restated)
    assert found == {
        "source": "google_ads",
        "customer_id": "1180250317",
        "query_name": "campaign_daily",
        "logical_date": "2026-03-03",
        "run_id": sealed.run.run_id,
        "path": sealed.run.path,
        "damage": None,
        "record_count": 3,
        "payload_bytes": sealed.payload_bytes,
        "payload_sha256": sealed.payload_sha256,
        "extracted_at": "2026-03-09T04:30:00.000000+00:00",
        "schema_version": "2",
        "api_version": sealed.facts.api_version,
        "query_hash": sealed.facts.query_hash,
        "time_zone": "Europe/Berlin",
        "currency_code": "EUR",
        "ledger": "current",
    }
    assert ended.err == "22 sealed runs: 21 current, 1 accepted\n"


def test_a_wide_terminal_is_told_when_runs_were_extracted(demo_cli: DemoCommandLine) -> None:
    """Where there is room, the instant that the seal says stands in the table."""
    wide = CommandLine(home=demo_cli.home, more={"COLUMNS": "130"}).run("raw", "list", *WEEK, "--customer", "1180250317")
    assert wide.lines[1].split()[-1] == "extracted"
    assert wide.lines[2].split()[-2:] == ["2026-03-03", "04:30:00Z"]


def test_a_payload_that_was_changed_is_found(empty_cli: CommandLine) -> None:
    """Of the same size, so that only reading it tells; the code is 1, and each damaged run is named."""
    changed, sound = run(key(day=1), "r1"), run(key(day=2), "r1")
    seal(empty_cli, changed, sound)
    assert empty_cli.run("raw", "verify", *ALL).lines == ["none of 2 sealed runs damaged"]
    tamper(empty_cli, changed)
    assert empty_cli.run("raw", "list", *ALL).lines[-1] == "2 sealed runs: 2 unregistered"
    ended = empty_cli.run("raw", "verify", *ALL)
    assert (ended.code, ended.err) == (1, "")
    assert "".join(ended.lines).startswith(f"{changed.path}: the payload's sha256 is not the seal's")
    assert ended.lines[-1] == "1 of 2 sealed runs damaged"
    found = empty_cli.run("raw", "verify", *ALL, "--json")
    assert [(each["run_id"], each["damage"]) for each in found.objects] == [
        ("r1", "the payload's sha256 is not the seal's")
    ]
    assert (found.code, found.err) == (1, "1 of 2 sealed runs damaged\n")


def test_only_what_has_no_verdict_is_verified(demo_cli: DemoCommandLine) -> None:
    """The demonstration's damaged run was rejected; before the next run is judged, only that one need be read."""
    assert demo_cli.run("raw", "verify", *WEEK).code == 1
    ended = demo_cli.run("raw", "verify", *WEEK, "--unjudged")
    assert (ended.code, ended.lines) == (0, ["none of 0 sealed runs damaged"])


def test_payloads_are_verified_without_a_ledger(tmp_path: Path) -> None:
    """As on the machine of an extractor; only what was judged already cannot be told there."""
    cli = CommandLine(home=tmp_path)
    seal(cli, run(key(), "r1"))
    assert cli.run("raw", "verify", *ALL).lines == ["none of 1 sealed run damaged"]
    assert cli.run("raw", "verify", *ALL, "--unjudged").code == 78


def test_a_terminal_sees_how_far_it_is(demo_cli: DemoCommandLine) -> None:
    """A bar on a terminal, and nothing of it anywhere else."""
    screen = on_terminal(demo_cli.environ(TERM="xterm-256color", COLUMNS="80"), "raw", "verify", *WEEK)
    assert "verifying" in screen
    assert "84/84" in screen
    assert demo_cli.process("raw", "verify", *WEEK).err == ""
