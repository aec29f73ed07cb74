"""Measures a cold batch beside other tools: from the start of a process until 1,000 new partitions can be read.

Each round starts a process of each tool by turns. Ours is the session of a command, with the archive of classes, and
records everything in the ledger.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from ads_pipeline.spark.engine import archive_maker
from ads_pipeline_tests.benchmarks.comparisons import (
    DLT_TO_DELTA,
    DLT_TO_DUCKDB,
    DLT_TO_DUCKDB_FROM_ARROW,
    SMALL,
    SPARK,
    Competitor,
)
from ads_pipeline_tests.benchmarks.environments import open_environment
from ads_pipeline_tests.benchmarks.processes import start_competitor
from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio
from ads_pipeline_tests.benchmarks.runs import write_runs
from ads_pipeline_tests.validation.builders import SealedPayload

ROUNDS: Final = 3
MAX_SECONDS: Final = 5.0
OURS: Final = Competitor(name="ours with its ledger", module="ours_recorded", remark="")
# Each with the least ratio of its CPU time to ours. dlt starts no JVM.
LEAST: Final[Mapping[str, tuple[Competitor, float]]] = {
    each.name: (each, least)
    for each, least in ((SPARK, 4.0), (DLT_TO_DELTA, 0.5), (DLT_TO_DUCKDB, 0.5), (DLT_TO_DUCKDB_FROM_ARROW, 0.12))
}


def measure() -> Iterator[Ratio | Figure]:
    """The ratios, and our CPU seconds."""
    subprocess.run([sys.executable, "-m", archive_maker.__name__], check=True)
    competitors = [OURS, *(each for each, _least in LEAST.values())]
    seconds: dict[str, list[float]] = {each.name: [] for each in competitors}
    with tempfile.TemporaryDirectory(prefix="cold") as folder:
        root = Path(folder) / "raw"
        runs = write_runs(root, customers=SMALL.customers, days=SMALL.days, rows=SMALL.rows)
        for _round in range(ROUNDS):
            for each in competitors:
                seconds[each.name].append(_measure_one(each, root, runs))
                print(f"cold, {each.name}: {seconds[each.name][-1]:.2f} s CPU", flush=True)
    ours = median(seconds[OURS.name])
    work = f"{SMALL}, recorded, from process start to readable"
    for name, (_each, least) in LEAST.items():
        theirs = median(seconds[name])
        yield Ratio(
            name=work,
            baseline=name,
            value=theirs / ours,
            ours_ms=ours * 1_000,
            baseline_ms=theirs * 1_000,
            rounds=ROUNDS,
            required=least,
            clock="CPU",
        )
    yield Figure(name=work, value=ours, unit="s CPU", limit=MAX_SECONDS)


def _measure_one(competitor: Competitor, root: Path, runs: Sequence[SealedPayload]) -> float:
    """The CPU seconds of a process and its descendants, from its start until the rows of all payloads can be read."""
    python = Path(sys.executable) if competitor.environment is None else open_environment(competitor.environment)
    home = Path(tempfile.mkdtemp(prefix=competitor.module))
    try:
        with start_competitor(python, competitor.module, *competitor.arguments, log=home / "log") as process:
            usage = process.load(root, [Path(run.payload_path) for run in runs], home / "loaded")
            rows, _clicks = process.read_totals(home / "loaded")
    finally:
        shutil.rmtree(home)
    if rows != len(runs) * SMALL.rows:
        raise AssertionError(f"{competitor.name} loaded {rows} rows")
    return process.start.cpu + usage.cpu
