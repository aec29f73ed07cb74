"""`doctor` on Dagster's daemon: failing sensors, silent parts and two daemons; and the limit of each check."""

import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, TickData, TickStatus
from dagster._core.storage.runs.schema import RunsTable
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._daemon.types import DaemonHeartbeat
from dagster_shared.error import SerializableErrorInfo

from ads_pipeline.ledger.consistency.inspection import LedgerInspection
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.operations.doctor.dagster_daemon import check_daemon, check_sensors
from ads_pipeline.operations.doctor.examination import (
    CheckStatus,
    Deployment,
    DeploymentCheck,
    Peer,
    run_check,
    run_checks,
)
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline_tests.orchestration.builders import open_instance

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ERROR = SerializableErrorInfo(
    "SensorExecutionError: the sensor failed\n", [], None, SerializableErrorInfo("BadName: refused\n", [], "BadName")
)
Records = tuple[dg.DagsterInstance, Deployment]


@pytest.fixture(params=["sqlite", "postgres"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Records]:
    """Dagster's records and a deployment whose clock shows noon, on either database."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    variables = {"ADS_PIPELINE_HOME": str(tmp_path)} | ({"ADS_PIPELINE_DATABASE_URL": url} if url else {})
    settings = read_settings(variables)
    with (
        open_instance(tmp_path, postgres_url=url) as instance,
        Ledger.opened(settings.database_url),
        LedgerInspection.opened(settings.database_url) as ledger,
    ):
        yield instance, Deployment(settings=settings, ledger=ledger, now=NOW)


def origin_of(name: str) -> RemoteInstigatorOrigin:
    target = LoadableTargetOrigin(module_name="ads_pipeline.definitions")
    location = InProcessCodeLocationOrigin(target, location_name="ads_pipeline")
    return RemoteInstigatorOrigin(RemoteRepositoryOrigin(location, "__repository__"), name)


def add_ticks(
    instance: dg.DagsterInstance,
    name: str,
    statuses: Mapping[int, TickStatus],
    *,
    state: InstigatorStatus = InstigatorStatus.DECLARED_IN_CODE,
) -> None:
    """Store a sensor and its ticks, each so many minutes before noon."""
    origin = origin_of(name)
    instance.add_instigator_state(InstigatorState(origin, InstigatorType.SENSOR, state))
    for minutes, status in statuses.items():
        instance.create_tick(
            TickData(
                instigator_origin_id=origin.get_id(),
                instigator_name=name,
                instigator_type=InstigatorType.SENSOR,
                status=status,
                timestamp=(NOW - timedelta(minutes=minutes)).timestamp(),
                run_ids=[],
                error=ERROR if status is TickStatus.FAILURE else None,
                selector_id=origin.get_selector().get_id(),
            )
        )


@pytest.mark.invariant("L4", "L9")
def test_sensor_whose_newest_ticks_failed_is_reported(records: Records) -> None:
    """With its name, since when, and the innermost error. One that works again, and one that is off, are not."""
    instance, deployment = records
    failed, good = TickStatus.FAILURE, TickStatus.SKIPPED
    ticks = {60: failed, 50: good, 40: failed, 30: failed, 20: failed, 0: TickStatus.STARTED}
    add_ticks(instance, "raw_arrivals", ticks)
    add_ticks(instance, "states_to_load", {10: good, 5: failed})
    add_ticks(instance, "retries_due", {10: failed, 5: TickStatus.SUCCESS})
    add_ticks(instance, "notifications", {5: failed}, state=InstigatorStatus.STOPPED)
    found = {each.location: (each.severity.value, each.problem) for each in check_sensors(deployment)}
    last = "The last error: BadName: refused"
    assert found == {
        "sensor raw_arrivals": ("error", f"its last 3 ticks failed, since 2026-03-01 11:20:00Z. {last}"),
        "sensor states_to_load": ("warning", f"its last tick failed, since 2026-03-01 11:55:00Z. {last}"),
    }


def beat(instance: dg.DagsterInstance, part: str, seconds: int, *, daemon: str = "a", error: bool = False) -> None:
    """Store a heartbeat of so many seconds before noon."""
    at = (NOW - timedelta(seconds=seconds)).timestamp()
    instance.add_daemon_heartbeat(DaemonHeartbeat(at, part, daemon, [ERROR] if error else None))


def queue_run(instance: dg.DagsterInstance, minutes: int) -> None:
    """Store a run that waits in the queue since so many minutes before noon."""
    run = create_run_for_test(instance, status=dg.DagsterRunStatus.NOT_STARTED)
    at = (NOW - timedelta(minutes=minutes)).replace(tzinfo=None)
    with instance.run_storage.connect() as connection:  # type: ignore[attr-defined]
        values = {"create_timestamp": at, "status": "QUEUED"}
        connection.execute(sa.update(RunsTable).where(RunsTable.c.run_id == run.run_id).values(values))


def find_daemon_problems(deployment: Deployment) -> list[tuple[str, str]]:
    return [(each.severity.value, each.problem) for each in check_daemon(deployment)]


def test_working_daemon_has_no_finding(records: Records) -> None:
    """Also while runs wait for a free place. A part that the settings have switched off may be silent for ever."""
    instance, deployment = records
    assert find_daemon_problems(deployment) == []
    for part in ("SENSOR", "SCHEDULER", "QUEUED_RUN_COORDINATOR"):
        beat(instance, part, 20)
    beat(instance, "EVENT_LOG_CONSUMER", 86_400, daemon="earlier")
    queue_run(instance, 90)
    assert find_daemon_problems(deployment) == []


@pytest.mark.invariant("L2", "L9")
def test_daemon_without_a_heartbeat_while_runs_wait_is_an_error(records: Records) -> None:
    """The finding names the part, its last heartbeat and the oldest waiting run. Without one it is a note."""
    instance, deployment = records
    beat(instance, "QUEUED_RUN_COORDINATOR", 3600)
    beat(instance, "SENSOR", 3600)
    ((severity, problem),) = find_daemon_problems(deployment)
    assert (severity, problem) == (
        "note",
        "it sent no heartbeat since 2026-03-01 11:00:00Z: no sensor and no schedule works",
    )
    queue_run(instance, 30)
    problem = (
        "QUEUED_RUN_COORDINATOR sent no heartbeat since 2026-03-01 11:00:00Z, and 1 run waits in the queue, "
        "since 2026-03-01 11:30:00Z"
    )
    assert find_daemon_problems(deployment) == [("error", problem)]


def test_runs_that_wait_without_any_daemon_are_an_error(records: Records) -> None:
    """A deployment on which no daemon was ever started."""
    instance, deployment = records
    queue_run(instance, 30)
    ((severity, problem),) = find_daemon_problems(deployment)
    assert severity == "error"
    assert problem.startswith("QUEUED_RUN_COORDINATOR sent never a heartbeat, and 1 run waits in the queue")


def test_part_that_hangs_while_others_work_is_an_error(records: Records) -> None:
    """So is, as a warning, an error that a living part reports."""
    instance, deployment = records
    beat(instance, "SENSOR", 600)
    beat(instance, "SCHEDULER", 10, error=True)
    assert find_daemon_problems(deployment) == [
        ("error", "its part SENSOR sent no heartbeat since 2026-03-01 11:50:00Z; other parts did"),
        ("warning", "its part SCHEDULER reports an error: BadName: refused"),
    ]


def test_two_daemons_on_one_database_are_an_error(records: Records) -> None:
    """Both send heartbeats within a minute. One that was replaced does not."""
    instance, deployment = records
    beat(instance, "SENSOR", 10, daemon="a")
    beat(instance, "SCHEDULER", 20, daemon="b")
    beat(instance, "QUEUED_RUN_COORDINATOR", 200, daemon="c")
    ((severity, problem),) = find_daemon_problems(deployment)
    assert severity == "error"
    assert problem == (
        "2 daemons work on one database, and each starts runs of the other: "
        "a (SENSOR at 2026-03-01 11:59:50Z), b (SCHEDULER at 2026-03-01 11:59:40Z)"
    )


@pytest.mark.invariant("L5")
def test_check_that_gets_no_answer_ends_at_its_limit(tmp_path: Path) -> None:
    """The report says so, and later checks of the same peer are not tried. Checks of other peers are."""
    released = threading.Event()

    def hang(_deployment: Deployment) -> list[None]:
        released.wait(60)
        return []

    settings: Settings = read_settings({"ADS_PIPELINE_HOME": str(tmp_path)})
    with Ledger.opened(settings.database_url), LedgerInspection.opened(settings.database_url) as ledger:
        deployment = Deployment(settings=settings, ledger=ledger, now=NOW)
        check = DeploymentCheck("stuck", "it ends", hang, peer=Peer.LAKE)  # type: ignore[arg-type]
        started = time.monotonic()
        report = run_check(check, deployment, limit=timedelta(seconds=0.2))
        assert time.monotonic() - started < 30
    released.set()
    assert (report.status, report.reason) == (CheckStatus.FAILED, "no answer within 0.2 s")


@pytest.mark.invariant("L5")
def test_checks_of_a_silent_peer_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first check of the lake waits for its limit."""
    monkeypatch.setattr("ads_pipeline.operations.doctor.examination.LIMIT", timedelta(seconds=5))
    released, asked = threading.Event(), list[str]()

    def check(name: str, peer: Peer | None, *, answers: bool) -> DeploymentCheck:
        def find(_deployment: Deployment) -> list[None]:
            asked.append(name)
            if not answers:
                released.wait(60)
            return []

        return DeploymentCheck(name, "it ends", find, peer=peer)  # type: ignore[arg-type]

    environ = {"ADS_PIPELINE_HOME": str(tmp_path)}
    with Ledger.opened(read_settings(environ).database_url):
        pass
    checks = [
        check("first", Peer.LAKE, answers=False),
        check("second", Peer.LAKE, answers=True),
        check("third", Peer.DATABASE, answers=True),
    ]
    reports = {each.name: (each.status.value, each.reason) for each in run_checks(environ, checks)}
    released.set()
    assert asked == ["first", "third"]
    assert reports["first"] == ("failed", "no answer within 5 s")
    assert reports["second"] == ("failed", "the check first got no answer from the lake")
    assert reports["third"] == ("ok", None)
