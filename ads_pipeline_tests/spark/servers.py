"""Starts small Spark servers on loopback and stops them.

Each server has its own process group, so that its child processes are killed with it.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark

from ads_pipeline_tests.polling import wait_for
from ads_pipeline_tests.processes import PYTHON_PATH
from ads_pipeline_tests.spark import pipeline_process

SPARK = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


def build_environment() -> dict[str, str]:
    """Environment variables for this Python, this package and servers that listen on loopback only."""
    return os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": PYTHON_PATH,
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "700m",
        "SPARK_DAEMON_JAVA_OPTS": f"{os.environ['SPARK_SUBMIT_OPTS']} -Dspark.master.rest.enabled=false",
    }


def hide(path: Path) -> tuple[str, ...]:
    """What starts a command in a mount namespace of its own, in which this directory is empty. Needs no root."""
    mount = 'mount -t tmpfs none "$0" && exec "$@"'
    return "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(path)


@contextmanager
def cluster(home: Path, prefix: Sequence[str] = ()) -> Iterator[tuple[str, "list[Server]"]]:
    """A master and two workers with one core each. Gives the master's address and the servers, master first.

    The prefix starts the workers.
    """
    ports = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
    limits = ["--cores", "1", "--memory", "600m"]
    with ExitStack() as servers:
        master = servers.enter_context(_running(home / "master", "spark-class", _MASTER, *ports))
        address = master.wait_for_output(r"Starting Spark master at (spark://\S+)")
        workers = []
        for directory in (home / "worker-1", home / "worker-2"):
            command = ["spark-class", _WORKER, *ports, *limits, "--work-dir", str(directory), address]
            workers.append(servers.enter_context(_running(directory, *command, prefix=prefix)))
        for worker in workers:
            worker.wait_for_output(r"(Successfully registered with master)")
        yield address, [master, *workers]


@contextmanager
def connect_server(home: Path, prefix: Sequence[str] = ()) -> Iterator[tuple[str, "list[Server]"]]:
    """A Spark Connect server on local Spark. Gives its address and the server. The prefix starts it."""
    settings = {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": "0",
        "spark.local.dir": str(home),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(home / "spark-warehouse"),
        "spark.ui.enabled": "false",
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = ["spark-submit", "--class", _CONNECT, "--master", "local[2]", *options, "spark-internal"]
    with _running(home, *command, prefix=prefix) as server:
        port = server.wait_for_output(r"Spark Connect server started at: \S+:(\d+)")
        yield f"sc://{LOOPBACK}:{port}", [server]


@contextmanager
def pipeline_runner(address: str, home: Path, *lake: str) -> Iterator[Callable[[str], Any]]:
    """A function that runs a scenario in a process with a session at this address and returns its JSON result."""
    with (home / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", pipeline_process.__name__, address, str(home), *lake],
            cwd=home,
            env=build_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )

    def run_scenario(name: str) -> Any:
        assert child.stdin
        assert child.stdout
        child.stdin.write(f"{name}\n")
        child.stdin.flush()
        result = child.stdout.readline()
        assert result, f"{address} died during {name}:\n{(home / 'log').read_text(errors='replace')[-3000:]}"
        return json.loads(result)

    with child:
        try:
            yield run_scenario
        finally:
            os.killpg(child.pid, signal.SIGKILL)


@contextmanager
def _running(home: Path, *command: str, prefix: Sequence[str] = ()) -> "Iterator[Server]":
    server = Server(home, command, prefix)
    try:
        yield server
    finally:
        server.kill()


class Server:
    """A server process and its log."""

    def __init__(self, home: Path, command: Sequence[str], prefix: Sequence[str]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._log = home / "log"
        with self._log.open("wb") as log:
            self._running = subprocess.Popen(
                [*prefix, SPARK / "bin" / command[0], *command[1:]],
                cwd=home,
                env=build_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for_output(self, pattern: str) -> str:
        """Wait for a match in the log and return its first group."""
        found = wait_for(
            lambda: re.search(pattern, self._read_log()),
            START_TIMEOUT_S,
            is_alive=lambda: self._running.poll() is None,
            describe=lambda: f"the log has no match for {pattern!r}:\n{self._read_log()[-3000:]}",
        )
        return str(found[1])

    def _read_log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Kill the process and its children, as a crash would."""
        if self._running.poll() is None:
            os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()
