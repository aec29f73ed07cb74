"""Answers runs and launchers on a Unix socket. Keeps a Spark server for runs, and their processes.

`ads-pipeline engine` and `ads-pipeline dev` run it. The Spark server starts soon after the engine, and again when
it has died and a run needs it. One that hangs is ended after 30 to 60 seconds; until then runs start their own Spark.
"""

import logging
import os
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.log_lines import LogEvent, configure_logging, log_event
from ads_pipeline.lake.storage.durable_files import make_durable_directories
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline.spark.class_archive import find_archive
from ads_pipeline.spark.engine.run_processes import RunProcesses
from ads_pipeline.spark.engine.start_requests import EXECUTE, MAX_REQUEST, RunRequest
from ads_pipeline.spark.engine_address import (
    HAS_UNIX_SOCKETS,
    LIMITS,
    LOOPBACK,
    MODULE,
    PING,
    SECONDS_TO_START,
    TOKEN,
    UNTIL_STDIN_CLOSES,
    Answer,
    EngineLimits,
    engine_directory,
    engine_link,
    is_answering,
    is_running,
    needs_engine,
)
from ads_pipeline.spark.jvm_options import may_map_archive
from ads_pipeline.spark.private_directory import short_lived_directory

SERVER: Final = "ads_pipeline.spark.engine.server"
LOG: Final = "log"
_LOG: Final = logging.getLogger(__name__)
ARCHIVE_MAKER: Final = "ads_pipeline.spark.engine.archive_maker"
SECONDS_TO_ARCHIVE: Final = 60.0  # the start of Dagster, and what waits for it, come first
SECONDS_TO_WARM_UP: Final = 5.0  # `ads-pipeline dev` starts Dagster's processes at the same time


@dataclass(slots=True)
class SparkServer:
    """The server's process. A token of its own protects each server from other users of the machine."""

    spark: str
    log: Path
    limits: EngineLimits = LIMITS
    process: "subprocess.Popen[str] | None" = None
    answer: Answer = field(default_factory=Answer)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start_if_needed(self) -> Answer:
        """The running server, or a new one. The answer has a problem while the running one hangs."""
        with self.lock:
            if self.process is None or self.process.poll() is not None or not _accepts(self.answer.port):
                self.stop()
                self.answer = self._start()
            answer = self.answer
        seconds = self.limits.seconds_to_answer
        if answer.problem is None and not is_answering(answer.port, seconds):
            return Answer(problem=f"the engine's Spark did not answer within {seconds:g} s")
        return answer

    def watch(self, ended: threading.Event) -> None:
        """End a server that hangs, until `ended` is set. Its runs fail then, and later ones get a new server."""
        silent, limits = 0, self.limits
        while not ended.wait(limits.seconds_between_checks):
            process, port = self.process, self.answer.port
            is_started = process is not None and process.poll() is None and self.answer.problem is None and port
            silent = silent + 1 if is_started and not is_answering(port, limits.seconds_to_answer) else 0
            if silent == limits.silent_checks:
                silent = 0
                with self.lock:
                    if self.process is process:
                        log_event(_LOG, LogEvent.ENGINE_HUNG, seconds=limits.silent_checks * limits.seconds_to_answer)
                        self.stop()
                        self.answer = self._start()

    def _start(self) -> Answer:
        token = str(uuid.uuid4())
        with open(self.log, "wb", opener=_open_for_owner) as log:
            self.process = subprocess.Popen(  # noqa: S603 - no shell; the setting is checked
                [sys.executable, "-m", SERVER, self.spark],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {TOKEN: token},  # not an argument, which other users could read
                start_new_session=True,  # its process group can be ended, with a JVM that hangs
            )
        port = _read_port(self.process)
        if port is None:
            self.stop()
            return Answer(problem=f"the engine's Spark did not start; see {self.log}")
        return Answer(port=port, token=token, spark=self.spark, version=version("pyspark"))

    def stop(self) -> None:
        """Stop the server and its JVM."""
        process, self.process = self.process, None
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(self.limits.seconds_to_stop)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The processes of a running engine."""

    spark_server: SparkServer
    processes: RunProcesses | None  # None: it executes no runs


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server: Any = self.server
        question = self.rfile.readline(MAX_REQUEST)
        with suppress(OSError):  # the run has gone
            self.wfile.write(server.answer(question).encode())


class _Listener(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: str, spark_server: SparkServer, processes: RunProcesses | None) -> None:
        self._spark_server, self._processes = spark_server, processes
        super().__init__(path, _Handler)

    def answer(self, question: bytes) -> Answer:
        if question == PING:
            return Answer()
        if not question.startswith(EXECUTE):
            return self._spark_server.start_if_needed()
        if self._processes is None:
            return Answer()
        try:
            return self._processes.execute(RunRequest.decode(question.removeprefix(EXECUTE)))
        except (ValueError, TypeError, KeyError, OSError) as error:  # of another version, or no process can start
            return Answer(problem=f"the engine cannot execute it: {type(error).__name__}: {error}")


@contextmanager
def engine(settings: Settings, module: str | None = None, limits: EngineLimits = LIMITS) -> Iterator[Engine]:
    """Answer runs of this deployment until the end of the block, and execute those of this module's code location.

    Raises BadCommand when that cannot be.
    """
    if not (HAS_UNIX_SOCKETS and (module or needs_engine(settings.spark))):
        raise BadCommand("an engine needs Unix sockets, and ADS_PIPELINE_SPARK must name a master")
    if is_running(settings.home):
        raise BadCommand(f"an engine already serves {settings.home}")
    make_durable_directories(engine_directory(settings.home))
    spark_server = SparkServer(spark=settings.spark, log=engine_directory(settings.home) / LOG, limits=limits)
    processes = RunProcesses(settings.home, module, os.environ) if module else None
    link = engine_link(settings.home)
    with (
        short_lived_directory() as directory,  # only its owner may enter it
        _Listener(str(directory / "socket"), spark_server, processes) as listener,
    ):
        ended = threading.Event()
        threads = [threading.Thread(target=listener.serve_forever, daemon=True)]
        threads += [
            threading.Thread(target=keep, args=(ended,), daemon=True)
            for keep in (spark_server.watch, *([processes.keep_ready] if processes else []))
        ]
        for thread in threads:
            thread.start()
        _point(link, directory / "socket")
        try:
            yield Engine(spark_server=spark_server, processes=processes)
        finally:
            ended.set()
            listener.shutdown()
            if processes:
                processes.stop()
            spark_server.stop()
            if link.is_symlink() and link.readlink() == directory / "socket":
                link.unlink()


def run_engine(
    settings: Settings,
    module: str | None = None,
    *,
    until_stdin_closes: bool = False,
    limits: EngineLimits = LIMITS,
) -> None:
    """Run the engine until SIGTERM or SIGINT, or until standard input closes."""
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    with engine(settings, module, limits) as opened:
        if needs_engine(settings.spark):
            _start_later(SECONDS_TO_WARM_UP, opened.spark_server.start_if_needed)
            _start_later(SECONDS_TO_ARCHIVE, _make_archive)
        while not ended.is_set():
            if until_stdin_closes and select.select([sys.stdin], [], [], 1.0)[0]:
                return
            if not until_stdin_closes:
                ended.wait(1.0)


def _start_later(seconds: float, function: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()


def _make_archive() -> None:
    """Run the program that makes the archive of classes, if it is needed. It ends with this process."""
    if may_map_archive(os.environ) and find_archive(os.environ).path is None:
        command = [sys.executable, "-m", ARCHIVE_MAKER, UNTIL_STDIN_CLOSES]
        subprocess.Popen(command, stdin=subprocess.PIPE).wait()  # noqa: S603 - no shell, and constant


def _point(link: Path, target: Path) -> None:
    temporary = link.with_name(f"{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def _read_port(process: "subprocess.Popen[str]") -> int | None:
    """The port that the server prints when it is ready, or None when it ends before or takes too long."""
    stdout: Any = process.stdout
    with suppress(ValueError):
        if select.select([stdout], [], [], SECONDS_TO_START)[0]:
            return int(stdout.readline())
    return None


def _accepts(port: int) -> bool:
    """Return whether the server has its port, which it also has while it hangs."""
    with socket.socket() as connection:
        connection.settimeout(1.0)
        refused = connection.connect_ex((LOOPBACK, port))
    return refused == 0


def _open_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _find_module(arguments: Sequence[str]) -> str | None:
    """The argument after --module."""
    return next((after for name, after in pairwise(arguments) if name == MODULE), None)


if __name__ == "__main__":
    own = read_settings(os.environ)
    configure_logging(own.log_format)
    with suppress(BadCommand):  # another engine serves this deployment's runs as well
        run_engine(own, _find_module(sys.argv), until_stdin_closes=UNTIL_STDIN_CLOSES in sys.argv)
