"""Starts processes that have imported the ledger already, for tests of races and crashes.

A new Python needs half a second of CPU time for these imports, and the tests start hundreds of processes. They are
forked from a server with one thread, which has opened no database. Processes that use Spark or a bucket are spawned.
"""

import multiprocessing
import os
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PROCESS_START: Final = Path(__file__).with_name("process_start")  # its sitecustomize.py is for every process
PYTHON_PATH: Final = f"{ROOT}{os.pathsep}{PROCESS_START}"  # for processes without the environment of the tests
LIMIT_S: Final = 600  # for a process that hangs
IMPORTED: Final = ["ads_pipeline_tests.ledger.builders"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedProcess:
    """Exit code and output of a process, as `subprocess` gives them."""

    returncode: int
    stdout: str
    stderr: str


def fork_server() -> ForkServerContext:
    """A context whose processes are forked from the server. Their targets are functions of modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def run_script(script: str, *arguments: str) -> FinishedProcess:
    """Run Python source in a process of its own. Fails when it takes ten minutes."""
    with tempfile.TemporaryDirectory() as directory:
        out, err = Path(directory, "out"), Path(directory, "err")
        process = fork_server().Process(target=_execute, args=(script, arguments, out, err))
        process.start()
        process.join(LIMIT_S)
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"the process hangs: {err.read_text(errors='replace')}")
        return FinishedProcess(returncode=process.exitcode, stdout=out.read_text(), stderr=err.read_text())


def _execute(script: str, arguments: tuple[str, ...], out: Path, err: Path) -> None:
    for number, path in ((1, out), (2, err)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    sys.argv[:] = ["-c", *arguments]
    exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
