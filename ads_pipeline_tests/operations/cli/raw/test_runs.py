"""`raw list` and `raw verify`: sealed runs, their state in the ledger, and damage."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import PAYLOAD
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.operations.cli.state.confirmation import NOTHING_EXIT_CODE
from ads_pipeline_tests.builders import ROWS, seal_facts, sealed_run
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    key,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
    run,
)
from ads_pipeline_tests.operations.cli.running import WEEK, CommandLine, DemoCommandLine
from ads_pipeline_tests.operations.cli.test_exit_codes import on_terminal

ALL = ("--since", "2026-02-01", "--until", "2026-02-28")


def seal(cli: CommandLine, *runs: Run) -> None:
    for each in runs:
        RawRuns(cli.home / "raw").land(each, ROWS, seal_facts())


def tamper(cli: CommandLine, each: Run) -> Path:
    """Change a sealed payload without changing its size."""
    payload = cli.home / "raw" / each.path / PAYLOAD
    payload.chmod(0o644)
    payload.write_bytes(payload.read_bytes().replace(b"Spring", b"Autumn"))
    return payload


def create_runs_in_each_state(cli: CommandLine) -> None:
    """Create an unregistered run, one that awaits its verdict, and one with each verdict."""
    runs = [run(key(day=day), "r1") for day in (1, 2, 3, 4)]
    older = run(key(day=4), "r0")
    seal(cli, older, *runs)
    with Ledger.opened(f"sqlite:///{cli.home / 'ledger.db'}") as ledger:
        ledger.registrations.register([sealed_run(each, 3) for each in (older, *runs[1:])])
        ledger.verdicts.record([rejection(runs[2]), acceptance(older), acceptance(runs[3])])
        publish_runs(ledger, runs[3])


def test_runs_are_grouped_by_customer_and_query(demo_cli: DemoCommandLine) -> None:
    """One line per run in date order: name, rows, bytes, schema version and state in the ledger."""
    result = demo_cli.run("raw", "list", *WEEK, "--customer", "1180250317", "--query", "campaign_daily")
    assert result.lines[0] == "1180250317 campaign_daily"
    assert result.lines[1].split() == ["day", "run", "rows", "bytes", "v", "ledger"]
    rows = [line.split() for line in result.lines[2:10]]
    assert rows[1][:3] == ["2026-03-03", demo_cli.demo.original.run_id, "3"]
    assert rows[2][1:3] == [demo_cli.demo.restated.run_id, "3"]
    assert [row[-2:] for row in rows[:3]] == [["2", "current"], ["2", "accepted"], ["2", "current"]]
    assert result.lines[-1] == "8 sealed runs: 7 current, 1 accepted"
    assert max(map(len, result.lines)) <= 80
    assert (result.code, result.err) == (0, "")


def test_ledger_column_shows_each_state(empty_cli: CommandLine) -> None:
    """The ledger column shows unregistered, awaiting verdict, rejected, accepted and current runs."""
    create_runs_in_each_state(empty_cli)
    result = empty_cli.run("raw", "list", *ALL)
    assert [line[10:].split()[-1] for line in result.lines[2:7]] == [
        "unregistered",
        "verdict",
        "rejected",
        "accepted",
        "current",
    ]
    counts = "5 sealed runs: 1 current, 1 accepted, 1 rejected, 1 awaiting verdict, 1 unregistered"
    assert " ".join(result.out.split()).endswith(counts)


def test_unjudged_lists_runs_without_verdict(empty_cli: CommandLine) -> None:
    """--unjudged lists registered and unregistered runs that have no verdict."""
    create_runs_in_each_state(empty_cli)
    found = empty_cli.run("raw", "list", *ALL, "--unjudged", "--json").objects
    assert [(each["logical_date"], each["ledger"]) for each in found] == [
        ("2026-02-01", "unregistered"),
        ("2026-02-02", "awaiting verdict"),
    ]


def test_demoted_run_is_not_current(empty_cli: CommandLine) -> None:
    """A run is current only while its partition is safe to read from it."""
    seal(empty_cli, run(key(), "r1"))
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        (first,) = registered_runs(ledger, key(), "r1")
        record_verdict(ledger, acceptance(first))
        record_verdict(ledger, rejection(first, validation_id="again"))
    assert empty_cli.run("raw", "list", *ALL).lines[-1] == "1 sealed run: 1 rejected"


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ((), 84),
        (("--customer", "1180250317"), 22),
        (("--customer", "1180250317", "--customer", "2046619385", "--query", "campaign_daily"), 15),
        (("--query", "keyword_daily"), 0),
        (("--customer", "99"), 0),
    ],
)
def test_filters_are_combined(demo_cli: DemoCommandLine, arguments: tuple[str, ...], count: int) -> None:
    """Values of one option are alternatives, options are conjunctive; both commands select the same runs."""
    assert len(demo_cli.run("raw", "list", "--json", *WEEK, *arguments).objects) == count
    assert f"of {count} sealed runs damaged" in demo_cli.run("raw", "verify", *WEEK, *arguments).out


def test_default_window_is_31_days(empty_cli: CommandLine) -> None:
    """By default the window is today and the 30 days before; with --until, that day and the 30 days before."""
    today = datetime.now(UTC).date()

    def run_on(day: date) -> Run:
        partition = PartitionKey(source="google_ads", customer_id="1", query_name="campaign_daily", logical_date=day)
        return run(partition, "r1")

    seal(empty_cli, *(run_on(today - timedelta(days=back)) for back in (0, 30, 31)))
    assert len(empty_cli.run("raw", "list", "--json").objects) == 2
    assert len(empty_cli.run("raw", "list", "--json", "--until", str(today - timedelta(days=1))).objects) == 2
    assert len(empty_cli.run("raw", "list", "--json", "--since", str(today - timedelta(days=400))).objects) == 3
    assert empty_cli.run("raw", "list", "--json", "--since", str(today + timedelta(days=1))).objects == []


def test_wrong_payload_size_is_listed_as_damage(empty_cli: CommandLine) -> None:
    """A payload shorter than its seal is listed as damaged, with the reason below the table."""
    torn, sound = run(key(day=1), "r1"), run(key(day=2), "r1")
    seal(empty_cli, torn, sound)
    payload = empty_cli.home / "raw" / torn.path / PAYLOAD
    payload.chmod(0o644)
    payload.write_bytes(b"")
    result = empty_cli.run("raw", "list", *ALL)
    assert result.lines[2].split() == ["2026-02-01", "r1", "damaged", "unregistered"]
    assert f"{torn.path}: the payload has 0 bytes" in " ".join(result.lines)
    assert result.lines[-1] == "2 sealed runs: 2 unregistered; 1 damaged"
    assert [line for line in result.lines if len(line) > 80] == [f"{torn.path}:"]  # a path is not broken
    (broken, _sound) = empty_cli.run("raw", "list", *ALL, "--json").objects
    assert (broken["run_id"], broken["ledger"]) == ("r1", "unregistered")
    assert broken["damage"].startswith("the payload has 0 bytes")


def test_invalid_directory_name_is_listed(empty_cli: CommandLine) -> None:
    """A misspelt directory is listed whatever the filter is, and makes "raw verify" fail."""
    seal(empty_cli, run(key(), "r1"))
    (empty_cli.home / "raw" / "google_ads" / "customer=1").mkdir()
    result = empty_cli.run("raw", "list", *ALL, "--customer", "1234567890")
    assert "google_ads/customer=1: " in result.out
    assert result.lines[-1] == "1 sealed run: 1 unregistered; 1 path with an invalid name"
    assert (result.code, empty_cli.run("raw", "verify", *ALL).code) == (0, 1)
    assert [each.get("run_id") for each in empty_cli.run("raw", "list", *ALL, "--json").objects] == ["r1", None]


def test_json_has_every_field(demo_cli: DemoCommandLine) -> None:
    """One object per run with the seal's fields and the ledger state; the counts go to standard error."""
    result = demo_cli.run("raw", "list", *WEEK, "--customer", "1180250317", "--json")
    found = {each["run_id"]: each for each in result.objects}[demo_cli.demo.restated.run_id]
    sealed = RawRuns(demo_cli.home / "raw").read_seal(demo_cli.demo.restated)
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
    assert result.err == "22 sealed runs: 21 current, 1 accepted\n"


def test_wide_terminal_shows_extraction_time(demo_cli: DemoCommandLine) -> None:
    """From 120 columns on, the table has the extraction time from the seal."""
    wide = CommandLine(home=demo_cli.home, more={"COLUMNS": "130"}).run(
        "raw", "list", *WEEK, "--customer", "1180250317"
    )
    assert wide.lines[1].split()[-1] == "extracted"
    assert wide.lines[2].split()[-2:] == ["2026-03-03", "04:30:00Z"]


def test_verify_finds_changed_payload(empty_cli: CommandLine) -> None:
    """A changed payload of the same size is found by reading it; the exit code is 1 and the run is named."""
    changed, sound = run(key(day=1), "r1"), run(key(day=2), "r1")
    seal(empty_cli, changed, sound)
    assert empty_cli.run("raw", "verify", *ALL).lines == ["none of 2 sealed runs damaged"]
    tamper(empty_cli, changed)
    assert empty_cli.run("raw", "list", *ALL).lines[-1] == "2 sealed runs: 2 unregistered"
    result = empty_cli.run("raw", "verify", *ALL)
    assert (result.code, result.err) == (1, "")
    assert " ".join(result.lines).startswith(f"{changed.path}: the payload's sha256 is not the seal's")
    assert result.lines[-1] == "1 of 2 sealed runs damaged"
    found = empty_cli.run("raw", "verify", *ALL, "--json")
    assert [(each["run_id"], each["damage"]) for each in found.objects] == [
        ("r1", "the payload's sha256 is not the seal's")
    ]
    assert (found.code, found.err) == (1, "1 of 2 sealed runs damaged\n")


def test_verify_unjudged_skips_judged_runs(demo_cli: DemoCommandLine) -> None:
    """The demo's damaged run already has a verdict, so --unjudged skips it."""
    assert demo_cli.run("raw", "verify", *WEEK).code == 1
    result = demo_cli.run("raw", "verify", *WEEK, "--unjudged")
    assert result.code == 0
    assert " ".join(result.out.split()) == (
        "none of 0 sealed runs damaged: no sealed run matches --since 2026-03-02 --until 2026-03-08 --unjudged"
    )


def test_verify_needs_no_ledger(tmp_path: Path) -> None:
    """Payloads are verified without a ledger, as on an extractor's machine; only --unjudged needs one."""
    cli = CommandLine(home=tmp_path)
    seal(cli, run(key(), "r1"))
    assert cli.run("raw", "verify", *ALL).lines == ["none of 1 sealed run damaged"]
    assert cli.run("raw", "verify", *ALL, "--unjudged").code == 78


def test_verify_shows_progress_on_a_terminal(demo_cli: DemoCommandLine) -> None:
    """A terminal gets a progress bar; a pipe gets nothing."""
    screen = on_terminal(demo_cli.environ(TERM="xterm-256color", COLUMNS="80"), "raw", "verify", *WEEK)
    assert "verifying" in screen
    assert "84/84" in screen
    assert demo_cli.process("raw", "verify", *WEEK).err == ""


@pytest.fixture(params=["missing", "empty", "a file"])
def cli_without_raw(request: pytest.FixtureRequest, empty_cli: CommandLine) -> CommandLine:
    """A ledger that knows a failed run, whose raw root is gone."""
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        registered_runs(ledger, key(), "r1")
        record_verdict(ledger, rejection(run(key(), "r1")))
    root = empty_cli.home / "raw"
    if request.param == "empty":
        root.mkdir()
    elif request.param == "a file":
        root.touch()
    return empty_cli


@pytest.mark.parametrize(
    "arguments",
    [
        ("raw", "verify", *ALL),
        ("raw", "verify", *ALL, "--unjudged"),
        ("raw", "list", *ALL),
        ("state", "retry", str(key()), "--reason", "x"),
        ("state", "retry", "--all", "--reason", "x", "--dry-run"),
    ],
)
def test_missing_raw_root_is_unavailable(cli_without_raw: CommandLine, arguments: tuple[str, ...]) -> None:
    """The message names the root, its setting and what to do, and nothing is changed."""
    done = cli_without_raw.run(*arguments)
    assert (done.code, done.out) == (69, "")
    assert done.err.startswith(f"ads-pipeline: {cli_without_raw.home / 'raw'}: the raw root ")
    assert "; mount its disk, or correct ADS_PIPELINE_HOME" in done.err


def test_doctor_reports_a_missing_raw_root(cli_without_raw: CommandLine) -> None:
    """The check of raw runs could not run."""
    failed = {each["check"]: each["problem"] for each in cli_without_raw.run("doctor", "--json").objects}
    assert "the raw root " in failed["raw"]


def test_home_without_runs_needs_no_raw_root(empty_cli: CommandLine) -> None:
    """Before the first use, no run is there, and no command fails."""
    for arguments in (("raw", "verify"), ("raw", "list"), ("state", "retry", "--all", "--reason", "x")):
        assert empty_cli.run(*arguments).code in {0, NOTHING_EXIT_CODE}
    assert not (empty_cli.home / "raw").exists()
    assert empty_cli.run("doctor", "--json").objects == []
