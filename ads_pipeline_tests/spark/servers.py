"""Starts real Spark servers on loopback, in small, and surely stops them.

Each server leads a process group of its own, so that what it started ends with it, however it ends.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark

from ads_pipeline_tests.spark import pipeline_process
from ads_pipeline_tests.spark.pipeline_process import QUICK

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
SECONDS_TO_START = 60
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


def environment() -> dict[str, str]:
    """What every process needs to find this Python and this package, and to listen nowhere but on loopback."""
    return os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "700m",
        "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} -Dspark.master.rest.enabled=false",
    }


@contextmanager
def cluster(home: Path) -> Iterator[tuple[str, "list[Server]"]]:
    """A master and two workers of one core each: the master's address, and all three, the master first."""
    places = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
    small = ["--cores", "1", "--memory", "600m"]
    with ExitStack() as servers:
        master = servers.enter_context(_running(home / "master", "spark-class", _MASTER, *places))
        address = master.said(r"Starting Spark master at (spark://\S+)")
        workers = []
        for place in (home / "worker-1", home / "worker-2"):
            command = ["spark-class", _WORKER, *places, *small, "--work-dir", str(place), address]
            workers.append(servers.enter_context(_running(place, *command)))
        for worker in workers:
            worker.said(r"(Successfully registered with master)")
        yield address, [master, *workers]


@contextmanager
def connect_server(home: Path) -> Iterator[tuple[str, "list[Server]"]]:
    """A Spark Connect server with a local Spark behind it, and its address."""
    settings = {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.local.dir": str(home),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(home / "spark-warehouse"),
        "spark.ui.enabled": "false",
    }
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = ["spark-submit", "--class", _CONNECT, "--master", "local[2]", *given, "spark-internal"]
    with _running(home, *command) as server:
        port = server.said(r"Spark Connect server started at: \S+:(\d+)")
        yield f"sc://{LOOPBACK}:{port}", [server]


@contextmanager
def asked(address: str, home: Path) -> Iterator[Callable[[str], Any]]:
    """A process with a session at the address that answers with what comes of the works it is asked for."""
    with (home / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", pipeline_process.__name__, address, str(home)],
            cwd=home,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )

    def ask(work: str) -> Any:
        assert child.stdin
        assert child.stdout
        child.stdin.write(f"{work}\n")
        child.stdin.flush()
        answer = child.stdout.readline()
        assert answer, f"{address}, asked for {work}, died:\n{(home / 'log').read_text(errors='replace')[-3000:]}"
        return json.loads(answer)

    with child:
        try:
            yield ask
        finally:
            os.killpg(child.pid, signal.SIGKILL)


@contextmanager
def _running(home: Path, *command: str) -> "Iterator[Server]":
    server = Server(home, command)
    try:
        yield server
    finally:
        server.kill()


class Server:
    """A process and what it says."""

    def __init__(self, home: Path, command: Sequence[str]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._log = home / "log"
        with self._log.open("wb") as log:
            self._running = subprocess.Popen(
                [SPARK / "bin" / command[0], *command[1:]],
                cwd=home,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def said(self, pattern: str) -> str:
        """The first thing it says that fits; waits for it."""
        end = time.monotonic() + SECONDS_TO_START
        while time.monotonic() < end and self._running.poll() is None:
            if found := re.search(pattern, self._log.read_text(errors="replace")):
                return found[1]
            time.sleep(0.05)
        raise AssertionError(f"never said {pattern!r}:\n{self._log.read_text(errors='replace')[-3000:]}")

    def kill(self) -> None:
        """End it as a crash would, with all that it started."""
        if self._running.poll() is None:
            os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()
