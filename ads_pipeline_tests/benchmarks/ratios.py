"""Times two ways of doing the same by turns, and says how they compare.

Absolute times mean nothing on a shared machine; a ratio of neighbours in time does. A `Figure` stands alone, where a
requirement names the number itself.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The rate of ours as a share of the bare way's rate; `least` is the bound, if there is one."""

    name: str
    value: float
    ours_ms: float
    bare_ms: float
    rounds: int
    least: float | None

    def counted(self, times: int) -> "Ratio":
        """The same ratio where one bare round stands for so many."""
        return replace(self, value=self.value * times, bare_ms=self.bare_ms * times)

    @property
    def holds(self) -> bool:
        return self.least is None or self.value >= self.least

    def __str__(self) -> str:
        bound = "no bound" if self.least is None else f"bound {self.least:.2f} {'holds' if self.holds else 'MISSED'}"
        times = f"ours {self.ours_ms:.3f} ms, bare {self.bare_ms:.3f} ms, median of {self.rounds}"
        return f"{self.name}: {self.value:.2f} of bare ({bound}; {times})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measurement and the bound that a requirement sets it."""

    name: str
    value: float
    unit: str
    most: float

    @property
    def holds(self) -> bool:
        return self.value <= self.most

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.value:.2f} {self.unit} (bound {self.most:.2f} {'holds' if self.holds else 'MISSED'})"
        )


def compare(
    name: str,
    ours: Callable[[int], object],
    bare: Callable[[int], object],
    *,
    rounds: int,
    least: float | None = None,
) -> Ratio:
    """Run both by turns, each round with its number; the medians decide. The first tenth only warms up."""
    timed: dict[str, list[float]] = {"ours": [], "bare": []}
    gc.collect()
    gc.freeze()  # what the benchmark itself prepared is not to be searched for garbage while it runs
    for number in range(rounds):
        for side, work in (("ours", ours), ("bare", bare)):
            started = time.perf_counter()
            work(number)
            timed[side].append(time.perf_counter() - started)
    warm = {side: times[rounds // 10 :] for side, times in timed.items()}
    ours_s, bare_s = statistics.median(warm["ours"]), statistics.median(warm["bare"])
    return Ratio(
        name=name,
        value=bare_s / ours_s,
        ours_ms=ours_s * 1000,
        bare_ms=bare_s * 1000,
        rounds=len(warm["ours"]),
        least=least,
    )


def timed(name: str, work: Callable[[int], object], *, rounds: int, most: float) -> Figure:
    """The median of so many rounds, in seconds, after one that only warms up."""
    seconds = []
    for number in range(rounds + 1):
        started = time.perf_counter()
        work(number)
        seconds.append(time.perf_counter() - started)
    return Figure(name=name, value=statistics.median(seconds[1:]), unit="s", most=most)
