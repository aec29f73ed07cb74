"""Starts the processes of runs, and keeps one that has loaded everything and waits for the next run.

A run needs seconds to load Dagster, Spark's client and the definitions; the process that waits has done so. When it
is not ready, or does not take the run, the run gets a process that loads then. Both end only with their run.
"""

import json
import logging
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.spark.engine.run_files import run_files
from ads_pipeline.spark.engine.start_requests import RunRequest, describe_environment, find_changed
from ads_pipeline.spark.engine_address import Answer

_LOG: Final = logging.getLogger(__name__)
WORKER: Final = "ads_pipeline.orchestration.runs.worker"
NOW: Final = "--now"  # the argument of a process that loads after it has a run
READY, YES, NO = b"ready\n", b"yes\n", b"no\n"  # the answers of a process
SECONDS_TO_ACCEPT: Final = 4.0  # for a process that has loaded everything
SECONDS_TO_TAKE: Final = 10.0  # for one that has just started; together less than the launcher waits
SECONDS_BEHIND_START: Final = 5.0  # other processes of Dagster start at the same time as the engine
SECONDS_BEHIND_RUN: Final = 10.0  # the next one loads after the run, or this late, in order not to slow the run down
SECONDS_TO_RETRY: Final = 300.0  # after one that ended by itself
SECONDS_TO_STOP: Final = 10.0
SECONDS_BETWEEN_LOOKS: Final = 0.5
MAX_NAMES: Final = 5  # of variables in a message


@dataclass(frozen=True, slots=True)
class Worker:
    """A process for one run: it waits, or it has a run."""

    process: "subprocess.Popen[bytes]"

    @classmethod
    def start(cls, program: str, argument: str) -> "Worker":
        """Start a process. Its standard output is for answers; later it is the engine's standard error."""
        command = [sys.executable, "-m", program, argument]
        return cls(subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE))  # noqa: S603

    def is_ready(self) -> bool:
        """Return whether the process has loaded everything."""
        return self.process.poll() is None and self._has_answer(0.0)

    def accepts(self, order: bytes, seconds: float) -> bool:
        """Hand a run over. False when the process is outdated, dead, or does not answer in time."""
        try:
            self._pipe("stdin").write(order)
            self._pipe("stdin").close()
            end = time.monotonic() + seconds
            while self._has_answer(end - time.monotonic()):
                answer = self._pipe("stdout").readline()
                if answer != READY:  # which one that has waited said before
                    self._pipe("stdout").close()
                    return bool(answer == YES)
        except OSError:
            pass
        return False

    def discard(self) -> None:
        """End the process, which has no run."""
        self.process.kill()
        self.process.wait()
        for name in ("stdin", "stdout"):
            self._pipe(name).close()

    def _has_answer(self, seconds: float) -> bool:
        return bool(select.select([self._pipe("stdout")], [], [], max(0.0, seconds))[0])

    def _pipe(self, name: str) -> Any:
        return getattr(self.process, name)


class RunProcesses:
    """The processes of the runs of one code location."""

    def __init__(self, home: Path, module: str, environ: Mapping[str, str], program: str = WORKER) -> None:
        self._files, self._module, self._program = run_files(home), module, program
        self._environment = describe_environment(environ)
        self._lock = threading.Lock()
        self._waiting: Worker | None = None
        self._runs: dict[str, Worker] = {}
        self._next_start = time.monotonic() + SECONDS_BEHIND_START

    def execute(self, request: RunRequest) -> Answer:
        """Execute a run of this code location in a process of its own, once."""
        if request.module != self._module or not _is_own_python(request.executable):
            return Answer()
        if changed := find_changed(self._environment, request.environment):
            names = ", ".join(changed[:MAX_NAMES])
            return Answer(problem=f"the engine was started with another environment ({names}); start it again")
        worker = self._hand_to_waiting(request) or self._hand_to_new(request)
        if worker is None:
            return Answer(problem=f"no process took the run within {SECONDS_TO_TAKE:g} s")
        self._runs[request.engine_run_id] = worker
        threading.Thread(target=self._await_end, args=(request.engine_run_id, worker), daemon=True).start()
        return Answer(pid=worker.process.pid)

    def has_ready(self) -> bool:
        """Return whether a process waits that has loaded everything."""
        with self._lock:
            return self._waiting is not None and self._waiting.is_ready()

    def keep_ready(self, ended: threading.Event) -> None:
        """Let a process wait for the next run, until `ended` is set."""
        while not ended.wait(SECONDS_BETWEEN_LOOKS):
            with self._lock:
                if self._waiting is not None and self._waiting.process.poll() is not None:
                    self._retry_later(f"exit code {self._waiting.process.returncode}")
                    self._waiting.discard()
                    self._waiting = None
                if self._waiting is None and time.monotonic() >= self._next_start:
                    self._files.remove_old()
                    try:
                        self._waiting = Worker.start(self._program, self._module)
                    except OSError as error:  # too little memory, or too many processes
                        self._retry_later(str(error))

    def _retry_later(self, cause: str) -> None:
        log_event(_LOG, LogEvent.RUN_PROCESS_ENDED, cause=cause)
        self._next_start = time.monotonic() + SECONDS_TO_RETRY

    def stop(self) -> None:
        """End the process that waits, and interrupt the runs: their Spark ends with the engine."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.discard()
        runs = list(self._runs.values())
        for worker in runs:
            worker.process.send_signal(signal.SIGINT)
        end = time.monotonic() + SECONDS_TO_STOP
        for worker in runs:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, end - time.monotonic()))
            worker.process.kill()

    def _take_ready(self) -> Worker | None:
        with self._lock:
            worker = self._waiting
            if worker is None or not worker.is_ready():
                return None
            self._waiting, self._next_start = None, time.monotonic() + SECONDS_BEHIND_RUN
            return worker

    def _hand_to_waiting(self, request: RunRequest) -> Worker | None:
        worker = self._take_ready()
        return self._hand(request, worker, SECONDS_TO_ACCEPT) if worker else None

    def _hand_to_new(self, request: RunRequest) -> Worker | None:
        return self._hand(request, Worker.start(self._program, NOW), SECONDS_TO_TAKE)

    def _hand(self, request: RunRequest, worker: Worker, seconds: float) -> Worker | None:
        found = {
            "engine_run_id": request.engine_run_id,
            "directory": str(self._files.directory),
            "arguments": request.arguments,
        }
        if worker.accepts(json.dumps(found).encode() + b"\n", seconds):
            return worker
        worker.discard()  # first, because no run may be executed twice
        self._files.release(request.engine_run_id, worker.process.pid)
        return None

    def _await_end(self, engine_run_id: str, worker: Worker) -> None:
        exit_code = worker.process.wait()
        del self._runs[engine_run_id]
        with self._lock:
            self._next_start = min(self._next_start, time.monotonic())
        with suppress(OSError):  # a full disk; the exit code stays unknown
            self._files.note_exit(engine_run_id, exit_code)


def _is_own_python(executable: str) -> bool:
    """Return whether this is a name of the engine's Python: each environment has a directory of its own."""
    return Path(executable).parent.resolve() == Path(sys.executable).parent.resolve()
