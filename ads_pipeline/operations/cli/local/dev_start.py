"""Follows the start of Dagster: asks its UI until the UI, the code location and the daemon answer."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from typing import Any, Final

from ads_pipeline.domain.quoting import printable

UI, LOCATION, DAEMON = "the UI", "the code location", "the daemon"
SECONDS_TO_ANSWER: Final = 10.0
SECONDS_BETWEEN_LOOKS: Final = 0.5
SECONDS_BETWEEN_LINES: Final = 5.0
SECONDS_TO_START: Final = 600.0
LOOPBACK_OF: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the names of all addresses
MAX_ERROR: Final = 300
_QUERY: Final = """{
  workspaceOrError { ... on Workspace { locationEntries {
    loadStatus locationOrLoadError { ... on PythonError { message } }
  } } }
  instance { daemonHealth { allDaemonStatuses { required lastHeartbeatTime } } }
}"""


class DagsterStart:
    """Asks which parts of Dagster have answered since its start. Its UI listens at this host and port."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = LOOPBACK_OF.get(host, host), port
        self._since = time.time()

    def find_waiting(self) -> list[str]:
        """The parts that have not answered yet, in the order in which they start."""
        answer = self._ask()
        if answer is None:
            return [UI, LOCATION, DAEMON]
        entries = answer["workspaceOrError"].get("locationEntries") or [{}]
        is_loaded = all(each.get("loadStatus") == "LOADED" for each in entries)
        daemons = [each for each in answer["instance"]["daemonHealth"]["allDaemonStatuses"] if each["required"]]
        runs = bool(daemons) and all((each["lastHeartbeatTime"] or 0) >= self._since for each in daemons)
        return ([] if is_loaded else [LOCATION]) + ([] if runs else [DAEMON])

    def find_load_error(self) -> str | None:
        """The error with which the code location did not load, or None."""
        entries = (self._ask() or {}).get("workspaceOrError", {}).get("locationEntries") or []
        errors = ((each.get("locationOrLoadError") or {}).get("message") for each in entries)
        lines = next(filter(None, errors), "").strip().splitlines()
        return printable(lines[-1], limit=MAX_ERROR) if lines else None

    def _ask(self) -> Mapping[str, Any] | None:
        connection = HTTPConnection(self._host, self._port, timeout=SECONDS_TO_ANSWER)
        with closing(connection), suppress(OSError, HTTPException, ValueError):
            connection.request(
                "POST", "/graphql", json.dumps({"query": _QUERY}), {"Content-Type": "application/json"}
            )
            found: Mapping[str, Any] | None = json.loads(connection.getresponse().read()).get("data")
            return found
        return None


def report_start(find_waiting: Callable[[], list[str]], is_alive: Callable[[], bool]) -> Iterator[str]:
    """Yield a line for each part that begins to answer, and one every few seconds, until all answer or Dagster ends.

    The pauses between lines without news become longer. After ten minutes it yields what does not answer and returns.
    """
    started = last = time.monotonic()
    seconds, waiting = 0.0, [UI, LOCATION, DAEMON]
    while waiting and is_alive():
        time.sleep(SECONDS_BETWEEN_LOOKS)
        left = find_waiting()
        seconds = time.monotonic() - started
        if seconds > SECONDS_TO_START:
            yield f"  {seconds:3.0f} s  without an answer: {', '.join(left)}"
            return
        for part in waiting:
            if part not in left:
                yield f"  {seconds:3.0f} s  {part} answers"
                last = time.monotonic()
        waiting = [part for part in waiting if part in left]
        if waiting and time.monotonic() - last > max(SECONDS_BETWEEN_LINES, seconds / 4):
            yield f"  {seconds:3.0f} s  waiting for {waiting[0]}"
            last = time.monotonic()
