"""The process of one run: `python -m ads_pipeline.orchestration.runs.worker MODULE`, or `--now` for MODULE.

With a module it loads everything, says so, and waits for its run. With `--now` it takes the run first and loads then.
Standard input brings the run, so that no other user sees the arguments. When the engine dies, a process that waits
ends, and one that has a run goes on.
"""

import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ads_pipeline.spark.engine.run_files import RunFiles
from ads_pipeline.spark.engine.run_processes import NO, NOW, READY, YES

SECRETS_FILE: Final = Path(".env").absolute()  # Dagster adds its variables when a run starts
SECONDS_TO_POSTPONE: Final = 0.1
STDOUT, STDERR = 1, 2
Command = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The run to execute, with the arguments of the command `dagster`."""

    engine_run_id: str
    directory: str  # of the files of runs
    arguments: Sequence[str]


class Interrupts:
    """Knows whether SIGINT has come, and handles it until Dagster's command does, which is after its imports."""

    def __init__(self) -> None:
        self._seen, noted = os.pipe()
        for descriptor in (self._seen, noted):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(noted, warn_on_full_buffer=False)  # also when Dagster's handler gets the signal
        signal.signal(signal.SIGINT, self._send_again)

    def have_come(self) -> bool:
        try:
            return bool(os.read(self._seen, 1))
        except BlockingIOError:
            return False

    def _send_again(self, number: int, _frame: FrameType | None) -> None:
        again = threading.Timer(SECONDS_TO_POSTPONE, os.kill, (os.getpid(), number))
        again.daemon = True  # it does not keep a process whose run has ended
        again.start()


def wait_for_run(load: Callable[[], tuple[Command, Collection[Path]]]) -> None:
    """Load everything, wait for a run, and execute it unless one of the loaded files has changed.

    Return when the engine ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the engine ends this one
    started = time.time_ns()
    gc.disable()  # what is imported stays; to search it for garbage takes a third of the time of the imports
    command, files = load()
    gc.freeze()
    gc.enable()
    versions = read_versions(files)
    changed_while_loading = any(each and each[0] > started for each in versions.values())
    _write(READY)
    order = _read_order()
    if order is None:
        return
    if changed_while_loading or SECRETS_FILE.exists() or read_versions(files) != versions:
        _write(NO)
        return
    execute(order, lambda: command)


def start_now(load: Callable[[], Command]) -> None:
    """Take the run from standard input, load the command, and execute the run."""
    order = _read_order()
    if order is not None:
        execute(order, load)


def execute(order: Order, load: Callable[[], Command]) -> None:
    """Become the process of this run, unless another process is, and end when the run has ended."""
    interrupts = Interrupts()
    held = RunFiles(Path(order.directory)).take(order.engine_run_id)
    _write(NO if held is None else YES)
    if held is None:
        return
    os.dup2(STDERR, STDOUT)
    sys.argv = ["dagster", *order.arguments]
    try:
        sys.exit(load()())  # type: ignore[arg-type] # the exit code, as the script of this command has it
    finally:
        if interrupts.have_come():
            _report_canceled(order)


def load_all(module: str) -> tuple[Command, Collection[Path]]:
    """Load what a run of this module's definitions needs: the command, and the files that all was made from."""
    import dagster as dg  # noqa: PLC0415 - a process that starts at once takes its run first

    from ads_pipeline.orchestration.runs import used_by_steps  # noqa: F401, PLC0415 - only this process
    from ads_pipeline.orchestration.runs.origin_files import origin_files  # noqa: PLC0415 - for `files`

    lazy = type(dg.definitions(_define_nothing))  # Dagster does not export the class
    for value in list(vars(importlib.import_module(module)).values()):
        loaded = value() if isinstance(value, lazy) else value
        if isinstance(loaded, dg.Definitions):
            loaded.get_repository_def()
    command = load_command()
    return command, {*origin_files(), *_find_module_files()}


def _define_nothing() -> Any:
    import dagster as dg  # noqa: PLC0415 - see `load_all`

    return dg.Definitions()


def load_command() -> Command:
    """Load Dagster's command for runs; return the function of the script `dagster`."""
    from ads_pipeline.orchestration.event_storage.dagster_private import load_run_command  # noqa: PLC0415 - see `load_all`

    load_run_command()
    found = next(iter(entry_points(group="console_scripts", name="dagster")))
    script: Command = found.load()
    return script


def read_versions(paths: Collection[Path]) -> dict[Path, tuple[int, ...] | None]:
    """The version of each file, or None where there is none: the time of its last change, and what a copy changes."""
    return {path: _read_version(path) for path in paths}


def _read_version(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _find_module_files() -> list[Path]:
    """The files of all modules that this process has loaded."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [Path(file) for file in files if file]


def _report_canceled(order: Order) -> None:
    """Close a run that was terminated before it started. Dagster's command ignores it then and says no more."""
    import dagster as dg  # noqa: PLC0415 - see `load_all`

    arguments: Any = dg.deserialize_value(order.arguments[-1])
    with dg.DagsterInstance.from_ref(arguments.instance_ref) as instance:
        run = instance.get_run_by_id(order.engine_run_id)
        if run is not None and run.status == dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run)


def _read_order() -> Order | None:
    """The run that the engine hands over; None when the engine has ended."""
    line = sys.stdin.readline()
    if not line:
        return None
    found: Any = json.loads(line)
    return Order(**found)


def _write(answer: bytes) -> None:
    with suppress(BrokenPipeError):  # the engine has ended; a run that was taken goes on
        os.write(STDOUT, answer)


if __name__ == "__main__":
    if sys.argv[1:] == [NOW]:
        start_now(load_command)
    else:
        wait_for_run(partial(load_all, sys.argv[1]))
