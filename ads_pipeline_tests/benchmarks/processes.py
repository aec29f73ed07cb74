"""Runs competitors as processes and measures each request: wall time, CPU time and memory of the process tree.

`read_peak_mib` reads the peak memory of one process.
"""

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

ROOT: Final = Path(__file__).parents[2]
SAMPLE_SECONDS: Final = 0.1
TAIL: Final = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one request took. Memory is the sum over the processes, where shared pages count in each of them."""

    wall: float
    cpu: float
    peak_mib: float
    steps: Mapping[str, float] = field(default_factory=dict)


class CompetitorProcess:
    """A running competitor. `start` is what its start took, until it was ready for a request."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        self._tree = psutil.Process(process.pid)
        self.start, _ready = self._measure(None)

    def load(self, root: Path, payloads: Sequence[Path], home: Path) -> Usage:
        document = {"root": str(root), "payloads": [str(path) for path in payloads], "home": str(home)}
        usage, answer = self._measure(document)
        return Usage(wall=usage.wall, cpu=usage.cpu, peak_mib=usage.peak_mib, steps=answer["steps"])

    def read_totals(self, home: Path) -> tuple[int, int]:
        """The rows that readers see, and the sum of their clicks."""
        _usage, answer = self._measure({"root": "", "payloads": [], "home": str(home)})
        return answer["rows"], answer["clicks"]

    def _measure(self, request: Mapping[str, Any] | None) -> tuple[Usage, Any]:
        """Send a request, and wait for the answer while the tree's memory is sampled."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        started, cpu = time.perf_counter(), 0.0 if request is None else _cpu_seconds(self._tree)
        with _memory_peak(self._tree) as peaks:
            if request is not None:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
            wall = time.perf_counter() - started
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended:\n{self._log.read_text()[-TAIL:]}")
        used = _cpu_seconds(self._tree) - cpu
        return Usage(wall=wall, cpu=used, peak_mib=max(peaks) / (1 << 20)), json.loads(line)


@contextmanager
def start_competitor(python: Path, module: str, *arguments: str, log: Path) -> Iterator[CompetitorProcess]:
    """Start a competitor's module with the Python of its environment. It ends when its input is closed."""
    command = [str(python), "-m", f"ads_pipeline_tests.benchmarks.competitors.{module}", *arguments]
    with log.open("a") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        try:
            yield CompetitorProcess(process, log)
        finally:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def read_peak_mib(process: object = "self") -> int:
    """The peak resident memory of a process. Unlike getrusage's, it excludes the parent process."""
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) >> 10


def _cpu_seconds(tree: psutil.Process) -> float:
    """CPU seconds of a process, its ended children and its living descendants so far."""
    seconds = 0.0
    for process in (tree, *tree.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


@contextmanager
def _memory_peak(tree: psutil.Process) -> Iterator[list[int]]:
    """Sample the resident memory of a process tree until the block ends."""
    peaks, ended = [0], threading.Event()

    def sample() -> None:
        while True:
            with suppress(psutil.NoSuchProcess):
                peaks[0] = max(peaks[0], sum(map(_resident_bytes, (tree, *tree.children(recursive=True)))))
            if ended.wait(SAMPLE_SECONDS):
                return

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
