"""Runs the engine's supervisor, and starts it again when it has died, until standard input closes.

`ads-pipeline dev` starts this program, and holds the other end of its standard input as long as Dagster runs. When
this program dies in any way, the supervisor's standard input closes and it ends, too.
"""

import select
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

from ads_pipeline.spark.engine_address import UNTIL_STDIN_CLOSES

SUPERVISOR: Final = "ads_pipeline.spark.engine.supervisor"
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0  # seconds before the next start, doubled each time
SECONDS_TO_END: Final = 30.0


def keep_running() -> None:
    """Return when standard input closes. A supervisor that ends by itself has found another engine."""
    delay = FIRST_DELAY
    while True:
        started = time.monotonic()
        supervisor = subprocess.Popen(  # noqa: S603 - no shell, and the arguments of this program
            [sys.executable, "-m", SUPERVISOR, UNTIL_STDIN_CLOSES, *sys.argv[1:]], stdin=subprocess.PIPE
        )
        while supervisor.poll() is None:
            if _is_closed_within(1.0):
                _end(supervisor)
                return
        if supervisor.returncode == 0:
            delay = LONGEST_DELAY
        elif time.monotonic() - started > LONGEST_DELAY:
            delay = FIRST_DELAY
        if _is_closed_within(delay):
            return
        delay = min(2 * delay, LONGEST_DELAY)


def _is_closed_within(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def _end(supervisor: "subprocess.Popen[bytes]") -> None:
    if supervisor.stdin is not None:
        supervisor.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        supervisor.wait(SECONDS_TO_END)
    supervisor.kill()
    supervisor.wait()


if __name__ == "__main__":
    keep_running()
