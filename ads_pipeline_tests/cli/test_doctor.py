"""`doctor`: a house that is well, and the same house damaged in one way after another."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from dagster._core.storage.runs.schema import RunsTable, RunStorageSqlMetadata

from ads_pipeline.doctor import dagster_records
from ads_pipeline.doctor.checks import CHECKS
from ads_pipeline.doctor.examination import CheckStatus, Deployment, DeploymentCheck, run_check
from ads_pipeline.domain.partition import Run, parse_key
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger import database
from ads_pipeline.ledger.consistency.inspection import LedgerInspection
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.tables import instant_text
from ads_pipeline.orchestration.instance_storage import SCHEMA
from ads_pipeline.pipeline.registration import register_runs
from ads_pipeline.raw.landing import TEMPORARY, RawRuns
from ads_pipeline.raw.seal import METADATA, PAYLOAD
from ads_pipeline.settings import read_settings
from ads_pipeline_tests.builders import facts, tree
from ads_pipeline_tests.cli.running import CommandResult, CommandLine, DemoCommandLine
from ads_pipeline_tests.ledger.builders import accepted_runs, keys, registered_runs, action_request, rejection

GOOD = parse_key("google_ads/1180250317/campaign_daily/2026-03-03")
BY_NAME = {check.name: check for check in CHECKS}


@pytest.fixture
def well(demo_cli: DemoCommandLine, tmp_path: Path) -> CommandLine:
    """A copy of the demonstration's home, which a test may damage."""
    cli = CommandLine(home=tmp_path / "well")
    shutil.copytree(demo_cli.home, cli.home)
    return cli


def backdoor(cli: CommandLine, *statements: str) -> None:
    engine = database.open_engine(f"sqlite:///{cli.home / 'ledger.db'}")
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def current(cli: CommandLine) -> Run:
    with LedgerInspection.opened(f"sqlite:///{cli.home / 'ledger.db'}") as ledger:
        run_id = ledger.state(GOOD).current_run_id
    assert run_id is not None
    return Run(key=GOOD, run_id=run_id)


def folder(cli: CommandLine, run: Run) -> Path:
    return cli.home / "raw" / run.path


def found(cli: CommandLine, *words: str) -> list[dict[str, Any]]:
    """The findings, when there are some: every one of them names what to do."""
    ended = cli.run("doctor", "--json", *words)
    assert ended.code == 1
    assert all(each["next"] and each["problem"] for each in ended.objects)
    return ended.objects


def only(cli: CommandLine) -> dict[str, Any]:
    (one,) = found(cli)
    return one


@pytest.mark.invariant("L3")
def test_a_house_that_is_well_is_told_so(well: CommandLine) -> None:
    """Each check is one line of 80 columns at most, nothing is found, and the code is nought."""
    ended = well.run("doctor")
    assert (ended.code, ended.err) == (0, "")
    assert [line.split()[0] for line in ended.lines[:-2]] == ["ok"] * 11 + ["skip", "ok"]
    assert [line.split()[1] for line in ended.lines[2:-2]] == [check.name for check in CHECKS]
    assert ended.lines[-1] == "nothing is wrong; 1 check left out"
    assert max(map(len, ended.lines)) <= 80
    asked = well.run("doctor", "--json")
    assert (asked.code, asked.out, asked.err) == (0, "", "")


@pytest.mark.invariant("L3")
def test_nothing_is_changed_by_looking(well: CommandLine) -> None:
    """Neither a file nor a row, in a house that is well and in one that is not."""
    (folder(well, current(well)) / PAYLOAD).unlink()
    before = tree(well.home), well.run("ledger", "digest").out
    assert well.process("doctor").code == 1
    assert well.run("doctor", "--json").code == 1
    assert (tree(well.home), well.run("ledger", "digest").out) == before


def test_quick_leaves_out_what_looks_at_everything(well: CommandLine) -> None:
    """It is said, and what is wrong there is not found."""
    (folder(well, current(well)) / PAYLOAD).unlink()
    ended = well.run("doctor", "--quick")
    assert ended.code == 0
    assert [line.split()[1] for line in ended.lines if line.startswith("skip")] == [
        "states",
        "raw",
        "tables",
        "dagster",
    ]
    assert well.run("doctor").code == 1


def edit_seal(cli: CommandLine) -> None:
    seal = folder(cli, current(cli)) / METADATA
    seal.chmod(0o644)
    seal.write_text(seal.read_text().replace('"schema_version": "', '"schema_version": "9'))


def remove_run(cli: CommandLine) -> None:
    shutil.rmtree(folder(cli, current(cli)))


def remove_payload(cli: CommandLine) -> None:
    (folder(cli, current(cli)) / PAYLOAD).unlink()


@pytest.mark.invariant("L3", "S4")
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (remove_run, "its raw data is gone"),
        (remove_payload, "sealed, but there is no payload"),
        (edit_seal, "its seal is not the one it was registered with"),
    ],
)
def test_a_current_run_that_raw_does_not_bear_out_is_bad(
    well: CommandLine, damage: Callable[[CommandLine], None], said: str
) -> None:
    """Readers have its rows, and nobody could load them again."""
    damage(well)
    one = only(well)
    assert (one["check"], one["weight"], one["where"]) == ("raw", "bad", str(current(well)))
    assert one["problem"].startswith(f"{said}; it is current")


def test_damage_of_a_rejected_run_is_no_news(well: CommandLine) -> None:
    """Its verdict says so, and nothing else need."""
    raw, cut = RawRuns(well.home / "raw"), Run(key=GOOD, run_id="cut")
    raw.land(cut, [{"a": 1}], facts())
    (folder(well, cut) / PAYLOAD).unlink()
    with Ledger.opened(f"sqlite:///{well.home / 'ledger.db'}") as ledger:
        register_runs([cut], raw=raw, ledger=ledger)
        ledger.record_verdict(rejection(cut))
    well.run("events", "follow", "--once")
    assert well.run("doctor").code == 0
    sound = Run(key=GOOD, run_id="sound")
    raw.land(sound, [{"a": 1}], facts())
    with Ledger.opened(f"sqlite:///{well.home / 'ledger.db'}") as ledger:
        register_runs([sound], raw=raw, ledger=ledger)
        ledger.record_verdict(rejection(sound))
    well.run("events", "follow", "--once")
    (folder(well, sound) / PAYLOAD).unlink()
    assert well.run("doctor").code == 0
    shutil.rmtree(folder(well, sound))
    one = only(well)
    assert (one["weight"], one["problem"]) == ("look", "its raw data is gone")


@pytest.mark.invariant("L3")
def test_runs_that_wait_are_looked_at(well: CommandLine) -> None:
    """One that the ledger was never told of, one that awaits its verdict and is gone, and a name that is none."""
    raw = well.home / "raw"
    RawRuns(raw).land(Run(key=GOOD, run_id="unheard"), [], facts())
    with Ledger.opened(f"sqlite:///{well.home / 'ledger.db'}") as ledger:
        registered_runs(ledger, GOOD, "gone")
    well.run("events", "follow", "--once")
    (raw / GOOD.path / "run_id=a b").mkdir()
    told = {(each["where"], each["weight"]): each["problem"] for each in found(well)}
    assert told == {
        (f"{GOOD}/unheard", "look"): "sealed, and the ledger was never told of it",
        (f"{GOOD}/gone", "look"): "its raw data is gone; it awaits its verdict",
        (f"raw/{GOOD.path}/run_id=a b", "look"): told[f"raw/{GOOD.path}/run_id=a b", "look"],
    }


def other_run(cli: CommandLine, verdict: str) -> None:
    """A second run of the good day, with this verdict, at which readers are then pointed."""
    with Ledger.opened(f"sqlite:///{cli.home / 'ledger.db'}") as ledger:
        (run,) = registered_runs(ledger, GOOD, "other")
        if verdict == "rejected":
            ledger.record_verdict(rejection(run))
    backdoor(
        cli,
        "UPDATE warehouse_pointer SET run_id = 'other', schema_version = '1', record_count = 3 "
        "WHERE customer_id = '1180250317' AND query_name = 'campaign_daily' AND logical_date = '2026-03-03'",
    )


@pytest.mark.invariant("L3")
@pytest.mark.parametrize("verdict", ["rejected", "none"])
def test_a_pointer_at_a_run_that_is_not_accepted_is_bad(well: CommandLine, verdict: str) -> None:
    """Whatever put it there; reconciliation points readers back."""
    other_run(well, verdict)
    told = {each["check"]: each for each in found(well) if each["check"] in {"pointers", "tables"}}
    assert (told["pointers"]["weight"], told["pointers"]["where"]) == ("bad", str(GOOD))
    assert told["pointers"]["problem"] == "readers are pointed at other, which is not accepted"
    assert told["pointers"]["next"] == "ads-pipeline reconcile --query campaign_daily"
    assert told["tables"]["problem"].endswith("is loaded and not pointed at")


def test_a_pointer_that_says_something_else_of_its_run_is_bad(well: CommandLine) -> None:
    """Its schema version and count of rows are the run's."""
    backdoor(
        well,
        "UPDATE warehouse_pointer SET record_count = 77 WHERE customer_id = '1180250317' "
        "AND query_name = 'campaign_daily' AND logical_date = '2026-03-03'",
    )
    one = only(well)
    assert (one["check"], one["weight"]) == ("pointers", "bad")
    assert "says of" in one["problem"]


@pytest.mark.invariant("L3")
def test_a_pointer_of_a_partition_that_is_no_success_is_bad(well: CommandLine) -> None:
    """No row of it may be read."""
    key = "customer_id = '1180250317' AND query_name = 'campaign_daily' AND logical_date = '2026-03-03'"
    backdoor(
        well,
        f"UPDATE partition_state SET status = 'pending', updated_at = '2027-01-01T00:00:00.000000Z' WHERE {key}",
    )
    told = {each["check"]: each for each in found(well)}
    assert set(told) == {"states", "pointers", "tables"}
    assert "the partition is pending" in told["pointers"]["problem"]
    assert (told["tables"]["weight"], told["tables"]["next"]) == (
        "bad",
        "ads-pipeline reconcile --query campaign_daily",
    )
    assert told["states"]["problem"].startswith("its row says pending from ")
    assert ", its log success from " in told["states"]["problem"]


@pytest.mark.invariant("L3")
def test_a_verdict_that_somebody_invented_is_found(well: CommandLine) -> None:
    """A log at odds with the rules is told with the attempt, though every row fits the database's rules."""
    backdoor(
        well,
        "INSERT INTO attempts SELECT source, customer_id, query_name, logical_date, attempt_no + 1, run_id, 'v2', "
        "ordinal, 'accepted', 'promoted', NULL, NULL, rows_read, NULL, '2027-01-01T00:00:00.000000Z', "
        "current_ordinal, NULL FROM attempts WHERE customer_id = '1180250317' AND query_name = 'campaign_daily' "
        "AND logical_date = '2026-03-03' ORDER BY attempt_no DESC LIMIT 1",
    )
    one = only(well)
    assert (one["check"], one["weight"], one["where"]) == ("states", "bad", str(GOOD))
    assert ": it is logged as promoted at " in one["problem"]


def test_what_a_table_does_not_hold_is_looked_at(empty_cli: CommandLine) -> None:
    """An accepted run that is not loaded yet may be on its way; its raw data are not there, either."""
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        accepted_runs(ledger, keys(12))
    empty_cli.run("events", "follow", "--once")
    objects = found(empty_cli)
    assert [each["check"] for each in objects] == ["raw"] * 12 + ["tables"] * 12
    assert {(each["weight"], each["problem"]) for each in objects[12:]} == {
        ("look", "the table holds nothing, current is r1")
    }
    ended = empty_cli.run("doctor")
    assert ended.lines.count("and 2 more; --json lists all") == 2
    assert ended.lines[-1] == "24 findings; 1 check left out"
    assert max(map(len, ended.lines)) <= 80


@pytest.mark.parametrize(("ago", "weight"), [(timedelta(minutes=5), "look"), (timedelta(hours=2), "bad")])
def test_a_demotion_that_is_not_finished_is_told(well: CommandLine, ago: timedelta, weight: str) -> None:
    """It may be under way; after an hour it is not."""
    run = current(well)
    with Ledger.opened(f"sqlite:///{well.home / 'ledger.db'}") as ledger:
        ledger.begin_demotions([rejection(run, validation_id="v2")])
    well.run("events", "follow", "--once")
    backdoor(well, f"UPDATE demotions SET started_at = '{instant_text(datetime.now(UTC) - ago)}'")
    one = only(well)
    assert (one["check"], one["weight"], one["where"]) == ("demotions", weight, str(run))
    assert one["next"] == "ads-pipeline reconcile --query campaign_daily"


def test_a_landing_that_was_left_is_told_after_a_day(well: CommandLine) -> None:
    """With the command that removes it; one of today may be somebody's work."""
    left = well.home / "raw" / GOOD.path / f"{TEMPORARY}r9.00ff"
    left.mkdir()
    assert well.run("doctor").code == 0
    os.utime(left, (time.time() - 90_000, time.time() - 90_000))
    one = only(well)
    assert (one["check"], one["weight"], one["next"]) == ("landings", "look", f"rm -r {left}")


def lease(run_id: str, until: datetime) -> str:
    at = instant_text(until - timedelta(minutes=1))
    return f"INSERT INTO leases VALUES ('{run_id}', '{at}', '{at}', '{instant_text(until)}', NULL)"


def open_run(cli: CommandLine, heard: timedelta) -> str:
    """A run of which nothing was heard for so long."""
    with Ledger.opened(f"sqlite:///{cli.home / 'ledger.db'}") as ledger:
        run_id = ledger.origin.run_id
        ledger.execute(Action.REPROCESS, [GOOD], action_request())
    cli.run("events", "follow", "--once")
    at = instant_text(datetime.now(UTC) - heard)
    backdoor(
        cli,
        f"UPDATE run_snapshots SET ended_at = NULL, status = 'RUNNING' WHERE run_id = '{run_id}'",
        "DROP TRIGGER run_head_moves",
        f"UPDATE run_head SET last_at = '{at}' WHERE run_id = '{run_id}'",
    )
    return run_id


def test_a_run_that_nobody_ended_is_told(well: CommandLine) -> None:
    """After a day of silence, or when its lease is over; while the lease holds, it is alive."""
    run_id = open_run(well, timedelta(hours=23))
    assert well.run("doctor").code == 0
    backdoor(well, lease(run_id, datetime.now(UTC) + timedelta(hours=1)))
    assert well.run("doctor").code == 0
    backdoor(well, "DROP TRIGGER leases_move", "UPDATE leases SET expires_at = '2026-03-01T00:00:00.000000Z'")
    one = only(well)
    assert (one["check"], one["where"]) == ("runs", f"run {run_id}")
    assert one["next"] == f"ads-pipeline events tail {run_id}"


def test_a_run_that_was_silent_for_a_day_is_told(well: CommandLine) -> None:
    """Where no lease says otherwise."""
    open_run(well, timedelta(hours=25))
    assert only(well)["check"] == "runs"


@pytest.fixture(params=["sqlite", "postgres"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str | None, sa.Engine]]:
    """Dagster's own table of runs, where Dagster puts it on either database."""
    home, url = tmp_path / "well", None
    engine: sa.Engine
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        engine = sa.create_engine(url).execution_options(schema_translate_map={None: SCHEMA})
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")
    else:
        (home / "dagster" / "history").mkdir(parents=True)
        engine = sa.create_engine(f"sqlite:///{home / 'dagster' / 'history' / 'runs.db'}")
    yield home, url, engine
    engine.dispose()


def test_dagsters_records_are_read_where_dagster_keeps_them(records: tuple[Path, str | None, sa.Engine]) -> None:
    """Of the runs that are asked for, those that are there; where there is no table, there are no records."""
    home, url, engine = records
    if url is not None:
        assert not dagster_records.has_records(home, url)
    RunStorageSqlMetadata.create_all(engine)
    with engine.begin() as connection:
        row = {"pipeline_name": "x", "run_body": "{}"}
        connection.execute(sa.insert(RunsTable), [row | {"run_id": name, "status": name.upper()} for name in "abc"])
    assert dagster_records.has_records(home, url)
    asked = [*(f"none-{number}" for number in range(1200)), "a", "c"]
    assert dagster_records.read_statuses(home, url, asked) == {"a": "A", "c": "C"}
    assert dagster_records.SCHEMA == SCHEMA


@pytest.mark.parametrize(
    ("status", "heard", "answer"),
    [
        ("FAILURE", timedelta(minutes=5), None),
        ("FAILURE", timedelta(hours=2), ("dagster", "look")),
        ("STARTED", timedelta(hours=2), None),
        ("STARTED", timedelta(hours=25), ("dagster", "bad")),
    ],
)
def test_dagster_and_the_log_of_events_agree_which_runs_are_over(
    well: CommandLine, status: str, heard: timedelta, answer: tuple[str, str] | None
) -> None:
    """A run that is over there and open here, and one that is dead here and running there, are each told."""
    run_id = open_run(well, heard)
    (well.home / "dagster" / "history").mkdir(parents=True)
    engine = sa.create_engine(f"sqlite:///{well.home / 'dagster' / 'history' / 'runs.db'}")
    RunStorageSqlMetadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(
            sa.insert(RunsTable), {"run_id": run_id, "status": status, "pipeline_name": "x", "run_body": "{}"}
        )
    engine.dispose()
    told = well.run("doctor", "--json").objects
    assert [(each["check"], each["weight"]) for each in told if each["check"] == "dagster"] == (
        [answer] if answer else []
    )


def test_snapshots_that_lag_are_told(well: CommandLine) -> None:
    """With the command that brings them up."""
    with Ledger.opened(f"sqlite:///{well.home / 'ledger.db'}") as ledger:
        accepted_runs(ledger, keys(1))
    backdoor(
        well,
        "DROP TRIGGER run_events_no_UPDATE",
        "UPDATE run_events SET persisted_at = '2026-03-01T00:00:00.000000Z' WHERE run_seq = 1",
    )
    (one,) = [each for each in found(well) if each["check"] == "snapshots"]
    assert one["next"] == "ads-pipeline events follow --once"
    assert "behind the events" in one["problem"]


def test_a_home_that_others_may_write_to_is_told(well: CommandLine) -> None:
    """And one that is a file, or not there."""
    well.home.chmod(0o777)
    assert only(well)["next"] == f"chmod o-w {well.home}"
    well.home.chmod(0o755)
    (well.home / "raw").rename(well.home / "away")
    (well.home / "raw").write_text("")
    told = {each["check"]: each for each in well.run("doctor", "--json").objects}
    assert (told["home"]["weight"], told["home"]["problem"]) == ("bad", "it is no folder")


def test_wrong_settings_are_findings(tmp_path: Path) -> None:
    """Every mistake is told; what cannot be looked at without them is said not to have been."""
    ended = CommandLine(home=tmp_path, more={"ADS_PIPELINE_HOM": "x", "ADS_PIPELINE_QUERIES": "/nowhere"}).run("doctor")
    assert ended.code == 1
    assert ended.lines[0].split() == ["bad", "settings", "2", "findings"]
    assert {line.split()[0] for line in ended.lines[1 : len(CHECKS) + 2]} == {"fail"}
    assert any("did you mean ADS_PIPELINE_HOME?" in line for line in ended.lines)
    assert max(map(len, ended.lines)) <= 80


def test_a_ledger_that_is_not_there_is_not_made(well: CommandLine) -> None:
    """Beside raw runs it was lost; in an empty home it is only to come."""
    (well.home / "ledger.db").unlink()
    told = well.run("doctor", "--json").objects[0]
    assert (told["check"], told["weight"], told["problem"]) == ("ledger", "bad", "there is no ledger")
    assert "restore a lost one from a backup" in told["next"]
    shutil.rmtree(well.home / "raw")
    assert well.run("doctor", "--json").objects[0]["weight"] == "look"
    assert not (well.home / "ledger.db").exists()


def test_another_releases_ledger_is_told(well: CommandLine) -> None:
    """With what to do about it."""
    backdoor(well, f"UPDATE {database.REVISION_TABLE} SET version_num = '9999'")
    told = well.run("doctor", "--json").objects[0]
    assert (told["check"], told["weight"]) == ("ledger", "bad")
    assert told["problem"] == "it is at revision 9999, this release needs 0001"
    assert told["next"].startswith("ads-pipeline migrate")


@pytest.mark.invariant("L3")
def test_a_database_out_of_reach_is_no_finding_and_no_silence(well: CommandLine) -> None:
    """It is told as what could not be looked at, and by the code."""
    url = "postgresql+psycopg2://u:secret@127.0.0.1:1/x"
    ended = CommandLine(home=well.home, more={"ADS_PIPELINE_DATABASE_URL": url}).run("doctor")
    assert ended.code == 1
    assert ended.lines[1].startswith("fail  ledger     could not look: the ledger's database is busy")
    assert "secret" not in ended.out
    assert ended.lines[-1] == "nothing is wrong; 12 checks could not look"


@pytest.mark.invariant("L3")
def test_a_file_that_is_no_database_is_told(well: CommandLine) -> None:
    """As what could not be looked at, and nothing is made of it."""
    (well.home / "ledger.db").write_bytes(b"x" * 4096)
    ended = well.run("doctor")
    assert ended.code == 1
    assert ended.lines[1].startswith("fail  ledger     could not look: ")
    assert (well.home / "ledger.db").read_bytes() == b"x" * 4096


def test_it_is_the_same_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    """What the demonstration's ledger says there is looked at in the same way."""
    cli = CommandLine(home=tmp_path, more={"ADS_PIPELINE_DATABASE_URL": postgres_url})
    result = cli.run("doctor")
    assert (result.code, result.lines[-1]) == (0, "nothing is wrong; 1 check left out")
    with Ledger.opened(postgres_url) as ledger:
        accepted_runs(ledger, keys(2))
        ledger.begin_demotions([rejection(Run(key=keys(1)[0], run_id="r1"), validation_id="v2")])
    cli.run("events", "follow", "--once")
    told = {(each["check"], each["weight"]) for each in found(cli)}
    assert told == {("raw", "bad"), ("tables", "look"), ("demotions", "look")}


@pytest.mark.invariant("L3")
def test_a_check_that_cannot_look_holds_up_no_other(well: CommandLine) -> None:
    """A table that cannot be read is told as such, and everything else is looked at."""
    log = well.home / "warehouse" / "google_ads" / "campaign_daily" / "_delta_log"
    for entry in log.iterdir():
        entry.write_text("{")
    ended: CommandResult = well.run("doctor")
    assert ended.code == 1
    (failed,) = [line for line in ended.lines if line.startswith("fail")]
    assert failed.startswith("fail  tables     could not look: google_ads/campaign_daily: ")
    assert sum(line.startswith("ok") for line in ended.lines) == 11
    (told,) = well.run("doctor", "--json").objects
    assert (told["check"], told["weight"]) == ("tables", "fail")


def site(cli: CommandLine, ledger: LedgerInspection, **more: Any) -> Deployment:
    settings = read_settings({"ADS_PIPELINE_HOME": str(cli.home)})
    return Deployment(settings=settings, ledger=ledger, now=ledger.clock(), **more)


def test_clocks_that_differ_are_told(well: CommandLine) -> None:
    """By how much, whichever is ahead; a few seconds are nobody's business."""
    with LedgerInspection.opened(f"sqlite:///{well.home / 'ledger.db'}") as ledger:
        answers = {
            ahead: run_check(
                BY_NAME["clocks"],
                site(well, ledger, clock=lambda by=ahead: datetime.now(UTC) + timedelta(seconds=by)),
            )
            for ahead in (-90, -2, 2, 90)
        }
    assert {ahead: each.status for ahead, each in answers.items()} == {
        -90: CheckStatus.WARNING,
        -2: CheckStatus.OK,
        2: CheckStatus.OK,
        90: CheckStatus.WARNING,
    }
    assert "90 s apart" in answers[90].findings[0].problem


def test_a_full_disk_is_bad(well: CommandLine) -> None:
    """Before it stops a landing."""
    with LedgerInspection.opened(f"sqlite:///{well.home / 'ledger.db'}") as ledger:
        told = run_check(BY_NAME["home"], site(well, ledger, enough_room=1 << 62))
    assert told.status is CheckStatus.ERROR
    assert "MiB are free" in told.findings[0].problem


def test_a_defect_is_not_taken_for_an_answer(well: CommandLine) -> None:
    """Only what is out of reach is an answer of a check; what should not have happened rises."""

    def broken(_site: Deployment) -> list[Any]:
        raise KeyError("x")

    with LedgerInspection.opened(f"sqlite:///{well.home / 'ledger.db'}") as ledger, pytest.raises(KeyError):
        run_check(DeploymentCheck(name="broken", condition="", find=broken), site(well, ledger))
