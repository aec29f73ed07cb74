"""Measures the product and a baseline by turns and compares them.

Absolute times depend on the load of the machine. A ratio of two neighbouring measurements does not. `Figure` is for
requirements that name an absolute number.
"""

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as fast as the baseline the product is. `required` is the least allowed value, if any."""

    name: str
    baseline: str
    value: float
    ours_ms: float
    baseline_ms: float
    rounds: int
    required: float | None
    clock: str = "wall"

    def with_repeated_baseline(self, times: int) -> "Ratio":
        """The ratio when one measured baseline round stands for this many."""
        return replace(self, value=self.value * times, baseline_ms=self.baseline_ms * times)

    @property
    def is_met(self) -> bool:
        return self.required is None or self.value >= self.required

    @property
    def measured(self) -> str:
        times = f"ours {self.ours_ms:,.1f} ms, {self.baseline} {self.baseline_ms:,.1f} ms"
        times += f" of {self.clock} time, median of {self.rounds}"
        return f"{self.value:.2f} times as fast as {self.baseline}; {times}"

    @property
    def requirement(self) -> str:
        return "none" if self.required is None else f"at least {self.required:.2f} times"

    def __str__(self) -> str:
        mark = "" if self.is_met else "MISSED, "
        return f"{self.name}: {self.measured} ({mark}required: {self.requirement})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured value and the limit that a requirement sets."""

    name: str
    value: float
    unit: str
    limit: float

    @property
    def is_met(self) -> bool:
        return self.value <= self.limit

    @property
    def measured(self) -> str:
        return f"{self.value:,.2f} {self.unit}"

    @property
    def requirement(self) -> str:
        return f"at most {self.limit:,.2f} {self.unit}"

    def __str__(self) -> str:
        mark = "" if self.is_met else "MISSED, "
        return f"{self.name}: {self.measured} ({mark}required: {self.requirement})"


def compare(
    name: str,
    ours: Callable[[int], object],
    baseline: Callable[[int], object],
    *,
    baseline_name: str,
    rounds: int,
    required: float | None = None,
    cpu: bool = False,
) -> Ratio:
    """Call both by turns with the number of the round, and compare the medians. The first tenth only warms up.

    With `cpu`, the times are CPU seconds of this process and its children, which other processes hardly change.
    """
    clock = cpu_seconds if cpu else time.perf_counter
    seconds: dict[str, list[float]] = {"ours": [], "baseline": []}
    gc.collect()
    gc.freeze()  # excludes the benchmark's own data from garbage collection while it runs
    for number in range(rounds):
        for side, function in (("ours", ours), ("baseline", baseline)):
            started = clock()
            function(number)
            seconds[side].append(clock() - started)
    warm = {side: times[rounds // 10 :] for side, times in seconds.items()}
    ours_s, baseline_s = statistics.median(warm["ours"]), statistics.median(warm["baseline"])
    return Ratio(
        name=name,
        baseline=baseline_name,
        value=baseline_s / ours_s,
        ours_ms=ours_s * 1000,
        baseline_ms=baseline_s * 1000,
        rounds=len(warm["ours"]),
        required=required,
        clock="CPU" if cpu else "wall",
    )


def cpu_seconds() -> float:
    """CPU seconds that this process, its ended children and its living descendants have used so far."""
    process = psutil.Process()
    own = process.cpu_times()
    seconds: float = own.user + own.system + own.children_user + own.children_system
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def measure_time(name: str, function: Callable[[int], object], *, rounds: int, limit: float) -> Figure:
    """The median time of these rounds in seconds, after one round that only warms up."""
    seconds = []
    for number in range(rounds + 1):
        started = time.perf_counter()
        function(number)
        seconds.append(time.perf_counter() - started)
    return Figure(name=name, value=statistics.median(seconds[1:]), unit="s", limit=limit)
