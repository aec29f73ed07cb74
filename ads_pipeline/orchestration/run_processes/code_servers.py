"""Lets Dagster's code server start a run in a standby process.

The code server starts a process for each run, which then imports Dagster, the definitions and their libraries. That
takes seconds. A standby process has done so before. Only this start is replaced: Dagster launches, watches and
terminates runs as always. Where no standby process is ready, the code server starts a process.
"""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import dagster as dg

from ads_pipeline.orchestration.dagster_private import CODE_SERVER
from ads_pipeline.orchestration.run_processes.standby import Standby

_LOG: Final = logging.getLogger(__name__)
SECONDS_BEHIND_RUN: Final = 10.0  # the next one loads after the run, or this late, in order not to slow the run down
SECONDS_TO_RETRY: Final = 300.0  # after a failure
# Variables that name a file of certificates or credentials, which a library may read once for a process.
CERTIFICATES: Final = (
    "AWS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "PGPASSFILE",
    "PGSSLCERT",
    "PGSSLKEY",
    "PGSSLROOTCERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
)


def load_runs_ahead(files: Collection[Path]) -> None:
    """Let the code server of this process keep a standby process. A change of these files makes that outdated.

    So does a change of the certificates that variables name. A process that is no code server never starts one.
    """
    _KEEPER.files.update(files, (Path(os.environ[name]) for name in CERTIFICATES if os.environ.get(name)))
    module, name = CODE_SERVER
    if module in sys.modules:
        _KEEPER.install(vars(sys.modules[module])[name])


def origin_files() -> frozenset[Path]:
    """The files that the definitions of this process were made from, beside its modules."""
    return frozenset(_KEEPER.files)


class StandbyKeeper:
    """Has one standby process for the code server of this process, and hands it the next run."""

    def __init__(self) -> None:
        self.files = set[Path]()
        self._is_installed = False
        self._lock = threading.Lock()
        self._standby: Standby | None = None
        self._last: Standby | None = None
        self._next_start = 0.0

    def install(self, server_class: Any) -> None:
        """Replace the start of runs, once. The server checks its runs twice a second, and then also its standby."""
        if self._is_installed:
            return
        self._is_installed = True
        start_run: Callable[..., Any] = server_class.StartRun
        check_runs: Callable[[Any], None] = server_class._check_for_orphaned_runs

        def start_run_with_standby(server: Any, request: Any, context: Any) -> Any:
            with self._ready_standby() as standby:
                return start_run(_WithStandby(server, standby) if standby else server, request, context)

        def check_runs_and_standby(server: Any) -> None:
            self._check(server)
            try:
                check_runs(server)
            except Exception:  # noqa: BLE001 - the server's thread must go on when the database does not answer
                _LOG.exception("the runs of this code server could not be checked; the next check follows")

        server_class.StartRun = start_run_with_standby
        server_class._check_for_orphaned_runs = check_runs_and_standby
        atexit.register(self._stop)

    @contextmanager
    def _ready_standby(self) -> Iterator[Standby | None]:
        """The standby process for one run. It stays when the run could not be started."""
        with self._lock:
            standby = self._standby if self._standby and self._standby.is_ready() else None
            if standby:
                self._standby = None
        yield standby
        with self._lock:
            if standby and standby.is_used:
                self._last, self._next_start = standby, time.monotonic() + SECONDS_BEHIND_RUN
            elif standby:
                self._standby = standby

    def _check(self, server: Any) -> None:
        """Start a standby process when it is time."""
        with self._lock:
            if self._standby and not self._standby.process.is_alive():
                self._standby, self._next_start = None, time.monotonic() + SECONDS_TO_RETRY
            if self._last and not self._last.process.is_alive():
                self._last, self._next_start = None, 0.0
            if self._standby or time.monotonic() < self._next_start or not _starts_runs(server):
                return
            self._next_start = time.monotonic() + SECONDS_TO_RETRY
            try:
                self._standby = Standby(partial(_load, _find_repositories(server)), self.files)
            except Exception:  # noqa: BLE001 - the server's thread must go on, and runs start without it
                _LOG.exception("a standby process could not be started")

    def _stop(self) -> None:
        with self._lock:
            if self._standby:
                self._standby.discard()
                self._standby = None


def _starts_runs(server: Any) -> bool:
    """Whether runs of this deployment are processes of their code server, and this one has loaded its definitions."""
    return bool(
        server._loaded_repositories
        and server._instance
        and isinstance(server._instance.run_launcher, dg.DefaultRunLauncher)
        and not server._shutdown_once_executions_finish_event.is_set()
    )


def _find_repositories(server: Any) -> list[Any]:
    return list(server._loaded_repositories.reconstructables_by_name.values())


def _load(repositories: list[Any]) -> Collection[Path]:
    """Load what a run of these repositories needs. Their definitions say which files they were made from."""
    from ads_pipeline.orchestration.run_processes import used_by_steps  # noqa: F401, PLC0415 - only a standby loads it

    for repository in repositories:
        repository.get_definition()
    return origin_files()


class _WithStandby:
    """A code server that has a standby process in the place of multiprocessing."""

    def __init__(self, server: Any, standby: Standby) -> None:
        self._server, self._mp_ctx = server, standby

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


_KEEPER: Final = StandbyKeeper()
