"""A clock that a test moves, for a whole process: `time.time` and the current time of `datetime` follow it.

`sitecustomize` starts it where SIMULATED_CLOCK names a file with the offset from the machine's clock, in seconds.
The product's own clocks are arguments; Dagster's are not, and a run reads both. Files keep the machine's time. A wait
of the main thread, such as that of a fetch for a quota, moves the clock instead.
"""

import ctypes
import datetime as dt
import gc
import threading
import time
import types
from pathlib import Path
from typing import Any, SupportsIndex

_machine_time, _machine_sleep = time.time, time.sleep
_offset = [0.0]
VARIABLE = "SIMULATED_CLOCK"
LEAST_SECONDS = 1.0  # a shorter wait is for something on this machine


def simulated_time() -> float:
    return _machine_time() + _offset[0]


def simulated_sleep(seconds: float | SupportsIndex, /) -> None:
    if float(seconds) >= LEAST_SECONDS and threading.current_thread() is threading.main_thread():
        move(_offset[0] + float(seconds))
    else:
        _machine_sleep(seconds)


def move(offset: float) -> None:
    """Show the machine's time plus this many seconds from now on."""
    _offset[0] = offset


def start(path: Path) -> None:
    """Let the process follow the simulated clock, with the offset of the file."""
    move(float(path.read_text()))
    time.time = simulated_time
    time.sleep = simulated_sleep
    time.time_ns = lambda: int(simulated_time() * 1e9)
    _replace(dt.datetime, now=_now, utcnow=_utcnow, today=_now)
    _replace(dt.date, today=_today)


def keep_machine_time(*modules: Any) -> None:
    """Let these modules keep the machine's clock. gRPC compares deadlines with that of its C library."""
    names = {name: value for name, value in vars(time).items() if not name.startswith("__")}
    unmoved = types.SimpleNamespace(**names | {"time": _machine_time, "sleep": _machine_sleep})
    for module in modules:
        if hasattr(module, "time"):
            module.time = unmoved


def _replace(kind: type, **methods: Any) -> None:
    """Replace class methods of a type that is written in C."""
    (attributes,) = (each for each in gc.get_referents(kind.__dict__) if isinstance(each, dict))
    attributes.update({name: classmethod(method) for name, method in methods.items()})
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _now(kind: type[dt.datetime], tz: dt.tzinfo | None = None) -> dt.datetime:
    return kind.fromtimestamp(simulated_time(), tz)


def _utcnow(kind: type[dt.datetime]) -> dt.datetime:
    return kind.fromtimestamp(simulated_time(), dt.UTC).replace(tzinfo=None)


def _today(kind: type[dt.date]) -> dt.date:
    return kind.fromtimestamp(simulated_time())
