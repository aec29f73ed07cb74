"""Measures this project beside other tools and beside the bare limit, on the same payloads.

Each tool is a process. For each shape it loads into empty homes, replaces one partition, and loads another day again.
Tools are compared by CPU seconds, which other processes on the machine hardly change.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final

from ads_pipeline_tests.benchmarks.environments import open_environment
from ads_pipeline_tests.benchmarks.processes import CompetitorProcess, Usage, start_competitor
from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio
from ads_pipeline_tests.benchmarks.runs import write_later_run, write_runs
from ads_pipeline_tests.validation.builders import SealedPayload

ROUNDS: Final = 3
REPLACEMENTS: Final = 5
MAX_STEPS_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many payloads there are, and how long they are."""

    customers: int
    days: int
    rows: int

    def __str__(self) -> str:
        return f"{self.customers * self.days:,} partitions of {self.rows:,} rows"


SMALL, LARGE, MANY = (
    Shape(customers=100, days=10, rows=100),
    Shape(customers=20, days=1, rows=50_000),
    Shape(customers=1_000, days=10, rows=100),
)
SHAPES: Final = (SMALL, LARGE, MANY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Competitor:
    """A way to load payloads, and what it does with them."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None  # None: this project's own
    warm_up: int = 1  # loads of the first shape that are not measured; a JVM compiles for longer
    replaces: bool = True
    loads_once: tuple[Shape, ...] = ()  # shapes that take it half a minute and more, also without a warm-up
    leaves_out: tuple[Shape, ...] = ()  # shapes that take it minutes
    remark: str


OURS: Final = Competitor(
    name="ours",
    module="ours",
    arguments=("without-ledger",),
    warm_up=5,
    remark="Judges every row by its contract and compares digests with seals. One Delta commit, read back before it.",
)
OURS_WITH_LEDGER: Final = Competitor(
    name="ours with its ledger",
    module="ours",
    arguments=("with-ledger",),
    warm_up=5,
    remark="Also keeps attempts, verdicts, events and pointers of each partition in SQLite; judges no run twice.",
)
DLT_TO_DELTA: Final = Competitor(
    name="dlt to Delta",
    module="dlt_loader",
    arguments=("delta", "jsonl"),
    environment="dlt",
    loads_once=(MANY,),
    leaves_out=(LARGE,),
    remark="Its own reader of JSON lines. Upserts rows by key; a row that is gone stays. Checks types only.",
)
DLT_TO_DUCKDB: Final = Competitor(
    name="dlt to DuckDB",
    module="dlt_loader",
    arguments=("duckdb", "jsonl"),
    environment="dlt",
    loads_once=(MANY,),
    leaves_out=(LARGE,),
    remark="Its own reader of JSON lines. Deletes and inserts partitions in one transaction. Checks types only.",
)
DLT_TO_DELTA_FROM_ARROW: Final = Competitor(
    name="dlt to Delta from Arrow",
    module="dlt_loader",
    arguments=("delta", "arrow"),
    environment="dlt",
    remark="The same, but gets one Arrow table, which a reader written for this benchmark makes of all payloads.",
)
DLT_TO_DUCKDB_FROM_ARROW: Final = Competitor(
    name="dlt to DuckDB from Arrow",
    module="dlt_loader",
    arguments=("duckdb", "arrow"),
    environment="dlt",
    remark="The same, but gets one Arrow table, which a reader written for this benchmark makes of all payloads.",
)
SQLMESH: Final = Competitor(
    name="SQLMesh with DuckDB",
    module="sqlmesh_duckdb",
    environment="sqlmesh",
    remark="Deletes and inserts whole days of all customers. Checks types only; its audits are not used here.",
)
SPARK: Final = Competitor(
    name="Spark dynamic overwrite",
    module="spark_overwrite",
    environment="spark",
    warm_up=3,
    loads_once=(MANY,),
    remark="One Parquet directory per partition, replaced one after the other: readers may see half of a load. "
    "Text of the wrong type becomes null.",
)
DELTA_RS: Final = Competitor(
    name="delta-rs replaceWhere",
    module="delta_rs",
    environment="arrow",
    remark="Overwrites what a predicate selects in one commit. Checks types only.",
)
BARE_LIMIT: Final = Competitor(
    name="bare limit",
    module="bare_limit",
    environment="arrow",
    replaces=False,
    remark="pyarrow reads all payloads as one buffer, and delta-rs appends them in one write. Replaces nothing.",
)
COMPETITORS: Final = (
    OURS,
    OURS_WITH_LEDGER,
    DLT_TO_DELTA,
    DLT_TO_DUCKDB,
    DLT_TO_DELTA_FROM_ARROW,
    DLT_TO_DUCKDB_FROM_ARROW,
    SQLMESH,
    SPARK,
    DELTA_RS,
    BARE_LIMIT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the rounds of one work took one competitor."""

    work: str
    competitor: str
    usages: tuple[Usage, ...]
    is_met: bool = True

    @property
    def cpu(self) -> float:
        return median(usage.cpu for usage in self.usages)

    @property
    def wall(self) -> float:
        return median(usage.wall for usage in self.usages)

    @property
    def steps(self) -> dict[str, float]:
        """The median seconds of each step."""
        return {name: median(usage.steps[name] for usage in self.usages) for name in self.usages[0].steps}

    @property
    def columns(self) -> tuple[str, str, str]:
        """Wall and CPU seconds with their spread, and the highest memory."""
        wall, cpu = ([getattr(usage, name) for usage in self.usages] for name in ("wall", "cpu"))
        return _spread(wall), _spread(cpu), f"{max(usage.peak_mib for usage in self.usages):,.0f}"

    def __str__(self) -> str:
        wall, cpu, peak = self.columns
        return f"{self.work}, {self.competitor}: {wall} s wall, {cpu} s CPU, {peak} MiB"


Results = Iterator[Measured | Ratio | Figure]


def measure() -> Results:
    found: dict[tuple[str, str], Measured] = {}
    totals: dict[str, tuple[int, int]] = {}
    with _write_payloads() as payloads:
        for competitor in COMPETITORS:
            for measured in _measure_competitor(competitor, payloads, totals):
                found[measured.work, measured.competitor] = measured
                yield measured
    yield from _compare(found)


def name_load(shape: Shape) -> str:
    return f"load {shape}"


def name_replacement(shape: Shape) -> str:
    return f"replace 1 of {shape}"


def name_repetition(shape: Shape) -> str:
    return f"load one day of {shape} again, unchanged"


def _compare(found: Mapping[tuple[str, str], Measured]) -> Iterator[Ratio | Figure]:
    compared = (
        (SMALL, DLT_TO_DELTA, 1.0),
        (SMALL, DLT_TO_DUCKDB, 1.0),
        (SMALL, DLT_TO_DELTA_FROM_ARROW, None),
        (SMALL, DLT_TO_DUCKDB_FROM_ARROW, None),
        (MANY, DLT_TO_DUCKDB, 1.0),
        (MANY, DLT_TO_DUCKDB_FROM_ARROW, None),
        (MANY, BARE_LIMIT, 5.0),
    )
    for (shape, baseline, most), way in product(compared, (OURS, OURS_WITH_LEDGER)):
        ours, theirs = (found[name_load(shape), each.name] for each in (way, baseline))
        recorded = ", recorded" if way is OURS_WITH_LEDGER else ""
        yield Ratio(
            name=f"{shape} judged{recorded}, staged and published, warm",
            baseline=baseline.name,
            value=theirs.cpu / ours.cpu,
            ours_ms=ours.cpu * 1_000,
            baseline_ms=theirs.cpu * 1_000,
            rounds=len(ours.usages),
            required=None if most is None else 1 / most,
            clock="CPU",
        )
    for shape in (SMALL, MANY):
        replacement = found[name_replacement(shape), OURS_WITH_LEDGER.name]
        seconds = median(sum(usage.steps.values()) for usage in replacement.usages)
        yield Figure(name=f"{replacement.work}, warm, the steps", value=seconds, unit="s", limit=MAX_STEPS_SECONDS)


@contextmanager
def _write_payloads() -> Iterator[Mapping[Shape, tuple[Path, Sequence[SealedPayload]]]]:
    """A raw root for each shape."""
    home = Path(tempfile.mkdtemp(prefix="comparisons"))
    try:
        yield {
            shape: (root, write_runs(root, customers=shape.customers, days=shape.days, rows=shape.rows))
            for shape in SHAPES
            for root in [home / f"raw-{shape.customers}-{shape.rows}"]
        }
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _measure_competitor(
    competitor: Competitor,
    payloads: Mapping[Shape, tuple[Path, Sequence[SealedPayload]]],
    totals: dict[str, tuple[int, int]],
) -> Iterator[Measured]:
    """Measure all works. What readers see afterwards must be the same with each competitor; see `totals`."""
    python = Path(sys.executable) if competitor.environment is None else open_environment(competitor.environment)
    with tempfile.TemporaryDirectory(prefix=competitor.module) as folder:
        log = Path(folder) / "log"
        with start_competitor(python, competitor.module, *competitor.arguments, log=log) as process:
            yield Measured(work="start", competitor=competitor.name, usages=(process.start,))
            for number, (shape, (root, runs)) in enumerate(payloads.items()):
                work = _Work(competitor, process, shape, root, runs, Path(folder), totals)
                if shape in competitor.loads_once:
                    yield from work.measure(warm_up=0, rounds=1)
                elif shape not in competitor.leaves_out:
                    yield from work.measure(warm_up=competitor.warm_up if number == 0 else 1, rounds=ROUNDS)


@dataclass(frozen=True, slots=True)
class _Work:
    """One competitor and one shape."""

    competitor: Competitor
    process: CompetitorProcess
    shape: Shape
    root: Path
    runs: Sequence[SealedPayload]
    folder: Path
    totals: dict[str, tuple[int, int]]

    def measure(self, *, warm_up: int, rounds: int) -> Iterator[Measured]:
        payloads = [Path(run.payload_path) for run in self.runs]
        usages = []
        for number in range(warm_up + rounds):
            home = self.folder / f"{self.shape.customers}-{self.shape.rows}-{number}"
            usages.append(self.process.load(self.root, payloads, home))
            if number + 1 < warm_up + rounds:
                shutil.rmtree(home)
        yield self._measured(name_load(self.shape), usages[warm_up:], home)
        if self.shape.days > 1:
            yield self._measured(name_replacement(self.shape), self._replace(home), home)
            day = self.runs[-1].seal.run.key.logical_date
            again = [Path(run.payload_path) for run in self.runs if run.seal.run.key.logical_date == day]
            usages = [self.process.load(self.root, again, home) for _round in range(ROUNDS)]
            yield self._measured(name_repetition(self.shape), usages, home)
        shutil.rmtree(home)

    def _replace(self, home: Path) -> list[Usage]:
        """Replace a partition in the middle by several later runs. Their folders are removed again."""
        folders, usages = [], []
        try:
            for number in range(REPLACEMENTS + 1):
                later = write_later_run(self.root, self.runs[len(self.runs) // 2], number)
                payload = Path(later.payload_path)
                folders.append(payload.parent)
                usages.append(self.process.load(self.root, [payload], home))
        finally:
            for each in folders:
                shutil.rmtree(each)
        return usages[1:]

    def _measured(self, work: str, usages: Sequence[Usage], home: Path) -> Measured:
        rows, clicks = self.process.read_totals(home)
        if self.competitor.replaces and self.totals.setdefault(work, (rows, clicks)) != (rows, clicks):
            raise AssertionError(
                f"{work}: {self.competitor.name} has {rows} rows and {clicks} clicks, not {self.totals}"
            )
        return Measured(work=work, competitor=self.competitor.name, usages=tuple(usages))


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"
