"""`doctor` on a healthy deployment and on deployments damaged in one way each."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from dagster._core.storage.runs.schema import RunsTable, RunStorageSqlMetadata

from ads_pipeline.domain.partition import Run, parse_key
from ads_pipeline.domain.transitions import Action
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import METADATA, PAYLOAD
from ads_pipeline.lake.raw.unsealed_files import TEMPORARY
from ads_pipeline.ledger.consistency.inspection import LedgerInspection
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import instant_text
from ads_pipeline.operations.cli.local.dev import SHORT_QUEUE
from ads_pipeline.operations.doctor import dagster_records
from ads_pipeline.operations.doctor.deployment_checks import CHECKS
from ads_pipeline.operations.doctor.examination import CheckStatus, Deployment, DeploymentCheck, run_check
from ads_pipeline.orchestration.event_storage.instance_storage import SCHEMA
from ads_pipeline.pipeline.registered_seals import SealRegister
from ads_pipeline.settings.environment import DAGSTER_SETTINGS, read_settings
from ads_pipeline_tests.builders import read_tree, seal_facts
from ads_pipeline_tests.ledger.builders import (
    accepted_runs,
    action_request,
    keys,
    record_verdict,
    registered_runs,
    rejection,
)
from ads_pipeline_tests.ledger.forging import forge
from ads_pipeline_tests.operations.cli.running import CommandLine, CommandResult, DemoCommandLine

PARTITION = parse_key("google_ads/1180250317/campaign_daily/2026-03-03")
CHECKS_BY_NAME = {check.name: check for check in CHECKS}


@pytest.fixture
def healthy_cli(demo_cli: DemoCommandLine, tmp_path: Path) -> CommandLine:
    """A copy of the demo's home, which a test may damage."""
    cli = CommandLine(home=tmp_path / "home")
    shutil.copytree(demo_cli.home, cli.home)
    return cli


def execute_sql(cli: CommandLine, *statements: str) -> None:
    """Execute the statements without the triggers that would refuse some of them."""
    engine = database.open_engine(f"sqlite:///{cli.home / 'ledger.db'}")
    forge(engine, *statements)
    engine.dispose()


def current_run(cli: CommandLine) -> Run:
    with LedgerInspection.opened(f"sqlite:///{cli.home / 'ledger.db'}") as ledger:
        run_id = ledger.states.get(PARTITION).current_run_id
    assert run_id is not None
    return Run(key=PARTITION, run_id=run_id)


def run_directory(cli: CommandLine, run: Run) -> Path:
    return cli.home / "raw" / run.path


def find_problems(cli: CommandLine, *words: str) -> list[dict[str, Any]]:
    """Run doctor, which must find something, and return its findings."""
    result = cli.run("doctor", "--json", *words)
    assert result.code == 1
    assert all(each["next"] and each["problem"] for each in result.objects)
    return result.objects


def find_problems_of_ledger(cli: CommandLine) -> list[dict[str, Any]]:
    """The findings without those about `days`, which differs from a ledger that was changed behind its back."""
    return [each for each in find_problems(cli) if each["check"] != "completeness"]


def find_only_problem(cli: CommandLine) -> dict[str, Any]:
    (finding,) = find_problems(cli)
    return finding


@pytest.mark.invariant("C3")
def test_healthy_deployment_has_no_findings(healthy_cli: CommandLine) -> None:
    """Each check prints one line of at most 80 columns, and the exit code is 0."""
    result = healthy_cli.run("doctor")
    assert (result.code, result.err) == (0, "")
    assert [line.split()[0] for line in result.lines[:-2]] == ["ok"] * 15 + ["skipped"] * 7 + ["ok"]
    assert [line.split()[1] for line in result.lines[3:-2]] == [check.name for check in CHECKS]
    assert result.lines[-1] == "no findings; 7 checks skipped"
    assert max(map(len, result.lines)) <= 80
    as_json = healthy_cli.run("doctor", "--json")
    assert (as_json.code, as_json.out, as_json.err) == (0, "", "")


@pytest.mark.invariant("C3")
def test_doctor_changes_nothing(healthy_cli: CommandLine) -> None:
    """No file and no row changes, whether or not there are findings."""
    (run_directory(healthy_cli, current_run(healthy_cli)) / PAYLOAD).unlink()
    before = read_tree(healthy_cli.home), healthy_cli.run("ledger", "copy", "--verify").out
    assert healthy_cli.process("doctor").code == 1
    assert healthy_cli.run("doctor", "--json").code == 1
    assert (read_tree(healthy_cli.home), healthy_cli.run("ledger", "copy", "--verify").out) == before


def test_quick_skips_slow_checks(healthy_cli: CommandLine) -> None:
    """Slow checks are listed as skipped, and their findings are missing."""
    (run_directory(healthy_cli, current_run(healthy_cli)) / PAYLOAD).unlink()
    result = healthy_cli.run("doctor", "--quick")
    assert result.code == 0
    assert [line.split()[1] for line in result.lines if line.startswith("skipped")] == [
        "states",
        "raw",
        "tables",
        "completeness",
        "dagster",
        "daemon",
        "sensors",
        "customers",
        "discovery",
        "holds",
        "instance",
    ]
    assert healthy_cli.run("doctor").code == 1


def edit_seal(cli: CommandLine) -> None:
    seal = run_directory(cli, current_run(cli)) / METADATA
    seal.chmod(0o644)
    seal.write_text(seal.read_text().replace('"schema_version": "', '"schema_version": "9'))


def remove_run(cli: CommandLine) -> None:
    shutil.rmtree(run_directory(cli, current_run(cli)))


def remove_payload(cli: CommandLine) -> None:
    (run_directory(cli, current_run(cli)) / PAYLOAD).unlink()


@pytest.mark.invariant("C3", "S4")
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (remove_run, "its raw data is gone"),
        (remove_payload, "the run has a seal but no payload"),
        (edit_seal, "its seal is not the one it was registered with"),
    ],
)
def test_damaged_current_run_is_an_error(
    healthy_cli: CommandLine, damage: Callable[[CommandLine], None], problem: str
) -> None:
    """The rows of the current run could not be loaded again."""
    damage(healthy_cli)
    finding = find_only_problem(healthy_cli)
    assert (finding["check"], finding["severity"], finding["location"]) == (
        "raw",
        "error",
        str(current_run(healthy_cli)),
    )
    assert finding["problem"].startswith(f"{problem}; it is the current run")


def test_damage_of_rejected_run_is_not_reported(healthy_cli: CommandLine) -> None:
    """Only the loss of all its files is reported, as a warning."""
    raw, cut = RawRuns(healthy_cli.home / "raw"), Run(key=PARTITION, run_id="cut")
    raw.land(cut, [{"a": 1}], seal_facts())
    (run_directory(healthy_cli, cut) / PAYLOAD).unlink()
    with Ledger.opened(f"sqlite:///{healthy_cli.home / 'ledger.db'}") as ledger:
        SealRegister(raw=raw, registrations=ledger.registrations).get_or_register([cut])
        record_verdict(ledger, rejection(cut))
    healthy_cli.fold_events()
    assert healthy_cli.run("doctor").code == 0
    sound = Run(key=PARTITION, run_id="sound")
    raw.land(sound, [{"a": 1}], seal_facts())
    with Ledger.opened(f"sqlite:///{healthy_cli.home / 'ledger.db'}") as ledger:
        SealRegister(raw=raw, registrations=ledger.registrations).get_or_register([sound])
        record_verdict(ledger, rejection(sound))
    healthy_cli.fold_events()
    (run_directory(healthy_cli, sound) / PAYLOAD).unlink()
    assert healthy_cli.run("doctor").code == 0
    shutil.rmtree(run_directory(healthy_cli, sound))
    finding = find_only_problem(healthy_cli)
    assert (finding["severity"], finding["problem"]) == ("warning", "its raw data is gone")


@pytest.mark.invariant("C3")
def test_unjudged_runs_are_warnings(healthy_cli: CommandLine) -> None:
    """Unregistered runs, lost runs without a verdict and invalid names are warnings."""
    raw = healthy_cli.home / "raw"
    RawRuns(raw).land(Run(key=PARTITION, run_id="unregistered"), [], seal_facts())
    with Ledger.opened(f"sqlite:///{healthy_cli.home / 'ledger.db'}") as ledger:
        registered_runs(ledger, PARTITION, "gone")
    healthy_cli.fold_events()
    (raw / PARTITION.path / "run_id=a b").mkdir()
    findings = {(each["location"], each["severity"]): each["problem"] for each in find_problems(healthy_cli)}
    assert findings == {
        (f"{PARTITION}/unregistered", "warning"): "it is sealed but not registered",
        (f"{PARTITION}/gone", "warning"): "its raw data is gone; it awaits its verdict",
        (f"raw/{PARTITION.path}/run_id=a b", "warning"): findings[f"raw/{PARTITION.path}/run_id=a b", "warning"],
    }


def publish_other_run(cli: CommandLine, verdict: str) -> None:
    """Register a second run of the partition with this verdict and point readers at it."""
    with Ledger.opened(f"sqlite:///{cli.home / 'ledger.db'}") as ledger:
        (run,) = registered_runs(ledger, PARTITION, "other")
        if verdict == "rejected":
            record_verdict(ledger, rejection(run))
    execute_sql(
        cli,
        "UPDATE warehouse_pointer SET run_id = 'other', schema_version = '1', record_count = 3 "
        "WHERE customer_id = '1180250317' AND query_name = 'campaign_daily' AND logical_date = '2026-03-03'",
    )


@pytest.mark.invariant("C3")
@pytest.mark.parametrize("verdict", ["rejected", "none"])
def test_pointer_to_run_without_acceptance_is_an_error(healthy_cli: CommandLine, verdict: str) -> None:
    """The next step is to reconcile the query."""
    publish_other_run(healthy_cli, verdict)
    findings = {each["check"]: each for each in find_problems(healthy_cli) if each["check"] in {"pointers", "tables"}}
    assert (findings["pointers"]["severity"], findings["pointers"]["location"]) == ("error", str(PARTITION))
    assert findings["pointers"]["problem"] == "its pointer names other, which is not accepted"
    assert findings["pointers"]["next"] == "ads-pipeline reconcile --query campaign_daily"
    assert findings["tables"]["problem"].endswith("is loaded, but the pointer differs")


def test_pointer_that_contradicts_registration_is_an_error(healthy_cli: CommandLine) -> None:
    """A pointer has the schema version and the row count of its run."""
    execute_sql(
        healthy_cli,
        "UPDATE warehouse_pointer SET record_count = 77 WHERE customer_id = '1180250317' "
        "AND query_name = 'campaign_daily' AND logical_date = '2026-03-03'",
    )
    pointers, tables = find_problems_of_ledger(healthy_cli)
    assert [(each["check"], each["severity"]) for each in (pointers, tables)] == [
        ("pointers", "error"),
        ("tables", "warning"),
    ]
    assert "its pointer and its registration differ" in pointers["problem"]
    assert tables["problem"].endswith("is loaded, but the pointer differs")


@pytest.mark.invariant("C3")
def test_pointer_of_unsuccessful_partition_is_an_error(healthy_cli: CommandLine) -> None:
    """Readers may not see rows of a pending partition."""
    key = "customer_id = '1180250317' AND query_name = 'campaign_daily' AND logical_date = '2026-03-03'"
    execute_sql(
        healthy_cli,
        f"UPDATE partition_state SET status = 'pending', updated_at = '2027-01-01T00:00:00.000000Z' WHERE {key}",
    )
    findings = {each["check"]: each for each in find_problems_of_ledger(healthy_cli)}
    assert set(findings) == {"states", "pointers", "tables"}
    assert "the partition is pending" in findings["pointers"]["problem"]
    assert (findings["tables"]["severity"], findings["tables"]["next"]) == (
        "error",
        "ads-pipeline reconcile --query campaign_daily",
    )
    assert findings["states"]["problem"].startswith("its row says pending from ")
    assert ", its log says success from " in findings["states"]["problem"]


@pytest.mark.invariant("C3")
def test_forged_verdict_is_an_error(healthy_cli: CommandLine) -> None:
    """An attempt that contradicts the transition rules is found, even if the database accepts it."""
    execute_sql(
        healthy_cli,
        "INSERT INTO attempts SELECT source, customer_id, query_name, logical_date, attempt_no + 1, run_id, 'v2', "
        "ordinal, 'accepted', 'promoted', NULL, NULL, rows_read, NULL, payload_bytes, payload_sha256, "
        "'2027-01-01T00:00:00.000000Z', current_ordinal, NULL, NULL, NULL, NULL "
        "FROM attempts WHERE customer_id = '1180250317' AND query_name = 'campaign_daily' "
        "AND logical_date = '2026-03-03' ORDER BY attempt_no DESC LIMIT 1",
    )
    (finding,) = find_problems_of_ledger(healthy_cli)
    assert (finding["check"], finding["severity"], finding["location"]) == ("states", "error", str(PARTITION))
    assert ": the log says promoted at " in finding["problem"]


def test_unloaded_partition_is_a_warning(empty_cli: CommandLine) -> None:
    """A load may still follow. Each check prints at most ten findings."""
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        accepted_runs(ledger, keys(12))
    (empty_cli.home / "raw").mkdir(mode=0o700)
    (empty_cli.home / "raw" / "google_ads").mkdir()
    empty_cli.fold_events()
    objects = find_problems(empty_cli)
    assert [each["check"] for each in objects] == ["raw"] * 12 + ["tables"] * 12
    assert {(each["severity"], each["problem"]) for each in objects[12:]} == {
        ("warning", "the table holds nothing, current is r1")
    }
    result = empty_cli.run("doctor")
    assert result.lines.count("and 2 more; --json lists all") == 2
    assert result.lines[-1] == "24 findings; 7 checks skipped"
    assert max(map(len, result.lines)) <= 80


@pytest.mark.parametrize(("age", "severity"), [(timedelta(minutes=5), "warning"), (timedelta(hours=2), "error")])
def test_unfinished_demotion_is_an_error_after_an_hour(
    healthy_cli: CommandLine, age: timedelta, severity: str
) -> None:
    """Before that it may still be running, so it is a warning."""
    run = current_run(healthy_cli)
    with Ledger.opened(f"sqlite:///{healthy_cli.home / 'ledger.db'}") as ledger:
        ledger.verdicts.begin_demotions([rejection(run, validation_id="v2")])
    healthy_cli.fold_events()
    execute_sql(healthy_cli, f"UPDATE demotions SET started_at = '{instant_text(datetime.now(UTC) - age)}'")
    finding = find_only_problem(healthy_cli)
    assert (finding["check"], finding["severity"], finding["location"]) == ("demotions", severity, str(run))
    assert finding["next"] == "ads-pipeline reconcile --query campaign_daily"


def test_abandoned_landing_is_a_warning_after_a_day(healthy_cli: CommandLine) -> None:
    """The next step is the command that removes the directory."""
    abandoned = healthy_cli.home / "raw" / PARTITION.path / f"{TEMPORARY}r9.00ff"
    abandoned.mkdir()
    assert healthy_cli.run("doctor").code == 0
    os.utime(abandoned, (time.time() - 90_000, time.time() - 90_000))
    finding = find_only_problem(healthy_cli)
    assert (finding["check"], finding["severity"], finding["next"]) == ("landings", "warning", f"rm -r {abandoned}")


def lease(run_id: str, until: datetime) -> str:
    at = instant_text(until - timedelta(minutes=1))
    return f"INSERT INTO leases VALUES ('{run_id}', '{at}', '{at}', '{instant_text(until)}', NULL)"


def open_run(cli: CommandLine, silence: timedelta) -> str:
    """Create an open run whose newest event has this age."""
    with Ledger.opened(f"sqlite:///{cli.home / 'ledger.db'}") as ledger:
        run_id = ledger.origin.engine_run_id
        ledger.actions.execute(Action.REPROCESS, [PARTITION], action_request())
    cli.fold_events()
    at = instant_text(datetime.now(UTC) - silence)
    execute_sql(
        cli,
        f"UPDATE run_head SET ended_at = NULL, status = 'RUNNING' WHERE engine_run_id = '{run_id}'",
        f"UPDATE run_head SET last_at = '{at}' WHERE engine_run_id = '{run_id}'",
    )
    return run_id


def test_open_run_with_expired_lease_is_a_warning(healthy_cli: CommandLine) -> None:
    """A run counts as alive for a day, and as long as its lease is valid."""
    run_id = open_run(healthy_cli, timedelta(hours=23))
    assert healthy_cli.run("doctor").code == 0
    execute_sql(healthy_cli, lease(run_id, datetime.now(UTC) + timedelta(hours=1)))
    assert healthy_cli.run("doctor").code == 0
    execute_sql(
        healthy_cli,
        "UPDATE leases SET expires_at = '2026-03-01T00:00:00.000000Z'",
    )
    finding = find_only_problem(healthy_cli)
    assert (finding["check"], finding["location"]) == ("runs", f"run {run_id}")
    assert finding["next"] == f"ads-pipeline events tail {run_id}"


def test_open_run_without_lease_is_a_warning_after_a_day(healthy_cli: CommandLine) -> None:
    """Without a lease, the age of the newest event decides."""
    open_run(healthy_cli, timedelta(hours=25))
    assert find_only_problem(healthy_cli)["check"] == "runs"


@pytest.fixture(params=["sqlite", "postgres"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str | None, sa.Engine]]:
    """Dagster's own table of runs, created in its place on either database."""
    home, url = tmp_path / "home", None
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


def test_run_statuses_are_read_from_dagsters_storage(records: tuple[Path, str | None, sa.Engine]) -> None:
    """The result holds only known runs. Without the table there are no records."""
    home, url, engine = records
    if url is not None:
        assert not dagster_records.has_records(home, url)
    RunStorageSqlMetadata.create_all(engine)
    with engine.begin() as connection:
        row = {"pipeline_name": "x", "run_body": "{}"}
        connection.execute(sa.insert(RunsTable), [row | {"run_id": name, "status": name.upper()} for name in "abc"])
    assert dagster_records.has_records(home, url)
    as_json = [*(f"none-{number}" for number in range(1200)), "a", "c"]
    assert dagster_records.read_statuses(home, url, as_json) == {"a": "A", "c": "C"}
    assert dagster_records.SCHEMA == SCHEMA


@pytest.mark.parametrize(
    ("status", "silence", "expected"),
    [
        ("FAILURE", timedelta(minutes=5), None),
        ("FAILURE", timedelta(hours=2), ("dagster", "warning")),
        ("STARTED", timedelta(hours=2), None),
        ("STARTED", timedelta(hours=25), ("dagster", "error")),
    ],
)
def test_dagster_and_event_log_must_agree_on_finished_runs(
    healthy_cli: CommandLine, status: str, silence: timedelta, expected: tuple[str, str] | None
) -> None:
    """A run that is finished in one and open in the other is reported after a delay."""
    run_id = open_run(healthy_cli, silence)
    (healthy_cli.home / "dagster" / "history").mkdir(parents=True)
    engine = sa.create_engine(f"sqlite:///{healthy_cli.home / 'dagster' / 'history' / 'runs.db'}")
    RunStorageSqlMetadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(
            sa.insert(RunsTable), {"run_id": run_id, "status": status, "pipeline_name": "x", "run_body": "{}"}
        )
    engine.dispose()
    findings = healthy_cli.run("doctor", "--json").objects
    assert [(each["check"], each["severity"]) for each in findings if each["check"] == "dagster"] == (
        [expected] if expected else []
    )


def test_lagging_snapshots_are_reported(healthy_cli: CommandLine) -> None:
    """The next step is the command that updates the snapshots."""
    at = "2026-03-01T00:00:00.000000Z"
    execute_sql(
        healthy_cli,
        f"UPDATE run_events SET persisted_at = '{at}' WHERE run_seq = 1",
        "INSERT INTO run_head (engine_run_id, plan_version, last_seq, last_at, opened_at) "
        f"VALUES ('behind', 'p', 1, '{at}', '{at}')",
        "INSERT INTO run_events SELECT 'behind', 1, event_id, event_type, step_id, 1, NULL, event_data, "
        "engine_run_ref, idempotency_key, emitted_at, persisted_at, NULL, NULL, NULL FROM run_events LIMIT 1",
    )
    (finding,) = [each for each in find_problems(healthy_cli) if each["check"] == "snapshots"]
    assert finding["next"] == "ads-pipeline reconcile"
    assert "behind the events" in finding["problem"]


def test_unsafe_home_directories_are_reported(healthy_cli: CommandLine) -> None:
    """World-writable directories and files in the place of directories are findings."""
    healthy_cli.home.chmod(0o777)
    assert find_only_problem(healthy_cli)["next"] == f"chmod o-w {healthy_cli.home}"
    healthy_cli.home.chmod(0o755)
    (healthy_cli.home / "raw").rename(healthy_cli.home / "away")
    (healthy_cli.home / "raw").write_text("")
    findings = healthy_cli.run("doctor", "--json").objects
    found = {(each["check"], each["severity"], each["problem"]) for each in findings}
    assert ("home", "error", "it is not a directory") in found


def test_files_that_all_can_read_are_reported(healthy_cli: CommandLine) -> None:
    """An open directory in an open home is a finding, unless the setting leaves access to the umask."""
    raw = healthy_cli.home / "raw"
    raw.chmod(0o755)
    healthy_cli.home.chmod(0o700)
    assert healthy_cli.run("doctor").code == 0
    healthy_cli.home.chmod(0o755)
    finding = find_only_problem(healthy_cli)
    assert (finding["severity"], finding["location"]) == ("warning", str(raw))
    assert finding["next"] == f"chmod -R o-rwx {raw}, or set ADS_PIPELINE_FILE_ACCESS=umask"
    by_umask = CommandLine(home=healthy_cli.home, more={"ADS_PIPELINE_FILE_ACCESS": "umask"})
    assert by_umask.run("doctor").code == 0


def test_invalid_settings_are_findings(tmp_path: Path) -> None:
    """Every mistake is a finding, and all other checks fail."""
    result = CommandLine(home=tmp_path, more={"ADS_PIPELINE_HOM": "x", "ADS_PIPELINE_QUERIES": "/nowhere"}).run(
        "doctor"
    )
    assert result.code == 1
    assert result.lines[0].split() == ["error", "settings", "2", "findings"]
    assert {line.split()[0] for line in result.lines[1 : len(CHECKS) + 2]} == {"failed"}
    assert any("did you mean ADS_PIPELINE_HOME?" in line for line in result.lines)
    assert max(map(len, result.lines)) <= 80


def test_missing_ledger_is_not_created(healthy_cli: CommandLine) -> None:
    """A missing ledger is an error beside raw runs. In an empty home it is a note with the first command."""
    (healthy_cli.home / "ledger.db").unlink()
    finding = healthy_cli.run("doctor", "--json").objects[0]
    assert (finding["check"], finding["severity"], finding["problem"]) == ("ledger", "error", "there is no ledger")
    assert "restore it from a backup" in finding["next"]
    shutil.rmtree(healthy_cli.home / "raw")
    (note,) = healthy_cli.run("doctor", "--json").objects
    assert (note["check"], note["severity"], note["problem"]) == ("ledger", "note", "there is no data yet")
    assert note["next"].startswith("ads-pipeline dev")
    assert not (healthy_cli.home / "ledger.db").exists()


def test_ledger_of_another_release_is_an_error(healthy_cli: CommandLine) -> None:
    """The next step is to migrate."""
    execute_sql(healthy_cli, f"UPDATE {database.REVISION_TABLE} SET version_num = '9999'")
    finding = healthy_cli.run("doctor", "--json").objects[0]
    assert (finding["check"], finding["severity"]) == ("ledger", "error")
    assert finding["problem"] == "its schema is at revision 9999; this release needs 0001"
    assert finding["next"].startswith("run ads-pipeline migrate")


@pytest.mark.invariant("C3")
def test_unreachable_database_fails_the_checks(healthy_cli: CommandLine) -> None:
    """Checks that could not run are reported and set the exit code. No secret is printed."""
    url = "postgresql+psycopg2://u:secret@127.0.0.1:1/x"
    result = CommandLine(home=healthy_cli.home, more={"ADS_PIPELINE_DATABASE_URL": url}).run("doctor")
    assert result.code == 1
    assert result.lines[2].startswith("failed   ledger     could not run: the ledger's database is busy")
    assert "secret" not in result.out
    assert result.lines[-1] == "no findings; 21 checks could not run"


@pytest.mark.invariant("C3")
def test_file_that_is_not_a_database_fails_the_check(healthy_cli: CommandLine) -> None:
    """The file is not changed."""
    (healthy_cli.home / "ledger.db").write_bytes(b"x" * 4096)
    result = healthy_cli.run("doctor")
    assert result.code == 1
    assert result.lines[2].startswith("failed   ledger     could not run: ")
    assert (healthy_cli.home / "ledger.db").read_bytes() == b"x" * 4096


def test_postgres_gives_the_same_findings(postgres_url: str, tmp_path: Path) -> None:
    """The checks work on both databases."""
    cli = CommandLine(home=tmp_path, more={"ADS_PIPELINE_DATABASE_URL": postgres_url})
    result = cli.run("doctor")
    assert (result.code, result.lines[-1]) == (0, "no findings; 7 checks skipped")
    with Ledger.opened(postgres_url) as ledger:
        accepted_runs(ledger, keys(2))
        ledger.verdicts.begin_demotions([rejection(Run(key=keys(1)[0], run_id="r1"), validation_id="v2")])
    (tmp_path / "raw").mkdir(mode=0o700)
    (tmp_path / "raw" / "google_ads").mkdir()
    cli.fold_events()
    findings = {(each["check"], each["severity"]) for each in find_problems(cli)}
    assert findings == {("raw", "error"), ("tables", "warning"), ("demotions", "warning")}


@pytest.mark.invariant("C3")
def test_failed_check_does_not_stop_others(healthy_cli: CommandLine) -> None:
    """An unreadable table is a finding of one check; the other checks run."""
    log = healthy_cli.home / "warehouse" / "google_ads" / "campaign_daily" / "_delta_log"
    for entry in log.iterdir():
        entry.write_text("{")
    result: CommandResult = healthy_cli.run("doctor")
    assert result.code == 1
    assert sum(line.startswith("ok") for line in result.lines) == 15
    (finding,) = healthy_cli.run("doctor", "--json").objects
    assert (finding["check"], finding["severity"]) == ("tables", "error")


def open_deployment(cli: CommandLine, ledger: LedgerInspection, **more: Any) -> Deployment:
    settings = read_settings({"ADS_PIPELINE_HOME": str(cli.home)})
    return Deployment(settings=settings, ledger=ledger, now=ledger.read_clock(), **more)


def test_clock_skew_is_a_warning(healthy_cli: CommandLine) -> None:
    """Skew of more than five seconds in either direction is reported."""
    with LedgerInspection.opened(f"sqlite:///{healthy_cli.home / 'ledger.db'}") as ledger:
        reports = {
            ahead: run_check(
                CHECKS_BY_NAME["clocks"],
                open_deployment(
                    healthy_cli, ledger, clock=lambda by=ahead: datetime.now(UTC) + timedelta(seconds=by)
                ),
            )
            for ahead in (-90, -2, 2, 90)
        }
    assert {ahead: each.status for ahead, each in reports.items()} == {
        -90: CheckStatus.WARNING,
        -2: CheckStatus.OK,
        2: CheckStatus.OK,
        90: CheckStatus.WARNING,
    }
    assert "differ by 90 s" in reports[90].findings[0].problem


def test_full_disk_is_an_error(healthy_cli: CommandLine) -> None:
    """Too little free space is an error."""
    with LedgerInspection.opened(f"sqlite:///{healthy_cli.home / 'ledger.db'}") as ledger:
        report = run_check(CHECKS_BY_NAME["home"], open_deployment(healthy_cli, ledger, min_free_bytes=1 << 62))
    assert report.status is CheckStatus.ERROR
    assert "MiB of disk space are free" in report.findings[0].problem


def test_bug_in_a_check_raises(healthy_cli: CommandLine) -> None:
    """Only errors of the deployment become reports; bugs raise."""

    def broken(_deployment: Deployment) -> list[Any]:
        raise KeyError("x")

    with LedgerInspection.opened(f"sqlite:///{healthy_cli.home / 'ledger.db'}") as ledger, pytest.raises(KeyError):
        run_check(DeploymentCheck(name="broken", condition="", find=broken), open_deployment(healthy_cli, ledger))


def write_dagster_settings(cli: CommandLine, text: str) -> Path:
    path = cli.home / "dagster" / DAGSTER_SETTINGS.name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(text)
    return path


def test_shipped_dagster_settings_have_no_finding(healthy_cli: CommandLine) -> None:
    """The file that `ads-pipeline dev` writes. More settings, and another order, are no difference."""
    shipped = yaml.safe_load(DAGSTER_SETTINGS.read_text())
    for text in (
        DAGSTER_SETTINGS.read_text() + SHORT_QUEUE.decode(),
        yaml.safe_dump(shipped | {"sensors": {"use_threads": True}}, sort_keys=True),
    ):
        write_dagster_settings(healthy_cli, text)
        result = healthy_cli.run("doctor", "--json")
        assert (result.code, result.out) == (0, "")


def test_other_dagster_settings_are_a_note(healthy_cli: CommandLine) -> None:
    """Each missing or different setting is named with the shipped value. Own values may be secrets."""
    own = yaml.safe_load(DAGSTER_SETTINGS.read_text())
    own["concurrency"]["runs"]["max_concurrent_runs"] = 77
    own["storage"] = {"postgres": {"postgres_url": "postgresql://ada:canary@host/dagster"}}
    del own["run_monitoring"]["enabled"], own["python_logs"]
    path = write_dagster_settings(healthy_cli, yaml.safe_dump(own))
    result = healthy_cli.run("doctor", "--json")
    (finding,) = result.objects
    assert (result.code, finding["severity"], finding["location"]) == (0, "note", str(path))
    differences = finding["problem"].split("; ")
    assert differences[1:] == [
        "concurrency.runs.max_concurrent_runs is different (shipped: 2)",
        "run_monitoring.enabled is not set (shipped: true)",
        'python_logs is not set (shipped: {"managed_python_loggers": ["ads_pipeline"]})',
    ]
    assert differences[0].startswith("storage.custom is not set (shipped: ")
    shown = healthy_cli.run("doctor").out
    assert "canary" not in result.out + shown
    assert "77" not in finding["problem"]
    assert "note" in shown


@pytest.mark.parametrize("text", ["[", "- a", "text", "\tx: 1"])
def test_dagster_settings_that_are_no_mapping_are_an_error(healthy_cli: CommandLine, text: str) -> None:
    """Dagster cannot start with them."""
    write_dagster_settings(healthy_cli, text)
    finding = find_only_problem(healthy_cli)
    assert (finding["check"], finding["severity"]) == ("instance", "error")


def test_dagster_home_is_compared_when_it_is_set(healthy_cli: CommandLine, tmp_path: Path) -> None:
    """Instead of the directory in the home."""
    write_dagster_settings(healthy_cli, "[")
    (tmp_path / DAGSTER_SETTINGS.name).write_text("{}")
    cli = CommandLine(home=healthy_cli.home, more={"DAGSTER_HOME": str(tmp_path)})
    result = cli.run("doctor", "--json")
    assert [(each["severity"], each["location"]) for each in result.objects] == [
        ("note", str(tmp_path / DAGSTER_SETTINGS.name))
    ]
