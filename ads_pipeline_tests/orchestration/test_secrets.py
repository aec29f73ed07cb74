"""Secrets of the environment in everything that a code server and other processes show."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.errors import DagsterUserCodeProcessError
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from dagster._core.remote_representation.code_location import GrpcServerCodeLocation
from dagster._core.remote_representation.handle import RepositoryHandle
from dagster._grpc.client import DagsterGrpcClient

from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.processes import PYTHON_PATH

TOKEN, PASSWORD, PATH = "canary-token-7f3a9c", "canary-password-b81e02", "canary-webhook-55d01c"
SPARK = f"sc://127.0.0.1:1/;token={TOKEN}"
DATABASE_URL = f"postgresql+psycopg2://ads:{PASSWORD}@127.0.0.1:1/ledger"
WEBHOOK = f"https://127.0.0.1:1/services/{PATH}"
MALFORMED = {
    "ADS_PIPELINE_SPARK": f"sc://127.0.0.1:1/path;token={TOKEN}",
    "ADS_PIPELINE_DATABASE_URL": f"postgresql+psycopg2://ads:x@{PASSWORD}@127.0.0.1:1/ledger",
    "ADS_PIPELINE_WEBHOOK": f"127.0.0.1:1/services/{PATH}",
}
SECONDS_TO_START = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeServer:
    """A running `dagster api grpc`."""

    socket: Path
    output: Path

    @property
    def client(self) -> DagsterGrpcClient:
        return DagsterGrpcClient(socket=str(self.socket))


@contextmanager
def code_server(folder: Path, **settings: str) -> Iterator[CodeServer]:
    """Serve this checkout's definitions with these settings."""
    server = CodeServer(socket=folder / "s", output=folder / "server.log")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ADS_PIPELINE_", "DAGSTER_"))}
    environment = kept | {"ADS_PIPELINE_HOME": str(folder / "home"), "PYTHONPATH": PYTHON_PATH} | settings
    command = ("api", "grpc", "--socket", str(server.socket), "--lazy-load-user-code", "--log-level", "debug")
    with server.output.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster", *command, "--module-name", "ads_pipeline.definitions"],
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until_it_answers(server, process)
        yield server
    finally:
        process.kill()  # a process that ignores SIGINT, as a job in the background does, would ignore SIGTERM too
        process.wait()


def wait_until_it_answers(server: CodeServer, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + SECONDS_TO_START
    while True:
        assert process.poll() is None, server.output.read_text()
        assert time.monotonic() < end, server.output.read_text()
        try:
            server.client.ping("")
        except Exception:  # noqa: BLE001 - the socket does not exist yet
            time.sleep(0.2)
        else:
            return


def everything_sent(server: CodeServer, instance: dg.DagsterInstance) -> Mapping[str, str]:
    """What the server tells about its repositories, and the failure of each sensor's tick."""
    location = GrpcServerCodeLocation(
        origin=GrpcServerCodeLocationOrigin(host="localhost", socket=str(server.socket), location_name="ads"),
        instance=instance,
    )
    sent = {"repositories": server.client.list_repositories()}
    for name, repository in location.get_repositories().items():
        sent[name] = server.client.external_repository(repository.get_remote_origin())
        for job in repository.get_all_jobs():
            sent[f"job {job.name}"] = repr(job.job_snapshot)
        handle = RepositoryHandle.from_location(repository_name=name, code_location=location)
        for sensor in repository.get_sensors():
            with pytest.raises(DagsterUserCodeProcessError) as failed:
                location.get_sensor_execution_data(instance, handle, sensor.name, *[None] * 5)
            sent[f"sensor {sensor.name}"] = str(failed.value)
    return sent


def assert_no_secret(shown: Mapping[str, str]) -> None:
    leaks = {
        name: text.count(secret)
        for name, text in shown.items()
        for secret in (TOKEN, PASSWORD, PATH)
        if secret in text
    }
    assert leaks == {}


@pytest.mark.invariant("X1")
def test_code_server_sends_no_secret(tmp_path: Path) -> None:
    """Neither the definitions nor failed ticks nor the server's log contain token, password or webhook."""
    with (
        code_server(
            tmp_path,
            ADS_PIPELINE_SPARK=SPARK,
            ADS_PIPELINE_DATABASE_URL=DATABASE_URL,
            ADS_PIPELINE_WEBHOOK=WEBHOOK,
        ) as server,
        dg.instance_for_test(temp_dir=str(tmp_path)) as instance,
    ):
        sent = everything_sent(server, instance)
    assert "pyspark" in sent["__repository__"]
    assert "LedgerUnavailable" in sent["sensor raw_arrivals"]
    assert_no_secret({**sent, "output": server.output.read_text()})


@pytest.mark.invariant("X1")
def test_code_server_with_malformed_secrets_names_the_variables(tmp_path: Path) -> None:
    """The load error names the variables and contains no part of their values."""
    with code_server(tmp_path, **MALFORMED) as server:
        error = server.client.list_repositories()
    assert all(f"{name}: must be " in error for name in MALFORMED)
    assert_no_secret({"error": error, "output": server.output.read_text()})


@pytest.mark.parametrize(
    "command", [("doctor",), ("state", "inspect"), ("migrate",), ("warehouse", "query", "SELECT 1")]
)
def test_commands_show_no_secret(tmp_path: Path, command: tuple[str, ...]) -> None:
    """A command with malformed secrets prints one line and ends with 78; doctor reports them as findings."""
    done = CommandLine(home=tmp_path, more=MALFORMED).process(*command)
    assert_no_secret({"out": done.out, "err": done.err})
    shown = done.out if command == ("doctor",) else done.err
    assert all(name in shown for name in MALFORMED)
    assert done.code == (1 if command == ("doctor",) else 78)
    assert command == ("doctor",) or len(done.err.splitlines()) == 1
