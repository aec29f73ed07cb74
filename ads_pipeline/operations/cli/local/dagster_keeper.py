"""Runs Dagster until standard input closes: `python -m ads_pipeline.operations.cli.local.dagster_keeper COMMAND …`.

`ads-pipeline dev` starts this program in a session of its own and holds the other end of its standard input. So
Dagster is ended in order after Ctrl-C, and also when the command itself was killed.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Final

SECONDS_TO_END: Final = 130.0  # Dagster gives its UI and its daemon 60 s each, one after the other
SECONDS_BETWEEN_LOOKS: Final = 0.2


def keep(command: Sequence[str], seconds_to_end: float = SECONDS_TO_END) -> int:
    """Run the command until it ends or standard input closes. Return its exit code, or 0 when it was asked to end."""
    closed = threading.Event()
    threading.Thread(target=_wait_for_close, args=[closed], daemon=True).start()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - no shell
    while process.poll() is None:
        if closed.wait(SECONDS_BETWEEN_LOOKS):
            return _end(process, seconds_to_end)
    return process.returncode


def _wait_for_close(closed: threading.Event) -> None:
    while os.read(0, 1):
        pass
    closed.set()


def _end(process: "subprocess.Popen[bytes]", seconds: float) -> int:
    if sys.platform == "win32":
        process.terminate()
    else:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    return 0


if __name__ == "__main__":
    code = keep(sys.argv[1:])
    if code and sys.platform != "win32":
        os.killpg(0, signal.SIGKILL)  # Dagster died, and its UI and daemon would go on without it
    sys.exit(code)
