"""Measures judging and publishing in CPU seconds of all processes, and the memory of the Python workers.

The baselines are dlt, and an older checkout of this project in the folder that OLD_CHECKOUT names.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio

OLD_CHECKOUT: Final = "OLD_CHECKOUT"
MANY_SMALL, FEW_LARGE = (100, 10, 100), (20, 1, 50_000)  # customers, days, rows
DLT_SHAPE, LARGEST = (1_000, 10, 100), (1, 1, 1_000_000)
# The old checkout has the same functions, but took a Path.
PROGRAM: Final = """
import inspect, json, shutil, statistics, sys, tempfile
from pathlib import Path
import psutil
from ads_pipeline_tests.benchmarks.publishing import publish
from ads_pipeline_tests.benchmarks.runs import write_runs
from ads_pipeline_tests.benchmarks.validator import local_spark

def cpu_seconds():
    process, seconds = psutil.Process(), 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:  # also of a zombie, whose time its parent has
            continue
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds

def worker_mib():
    peaks = [0]
    for each in psutil.Process().children(recursive=True):
        process = Path(f"/proc/{each.pid}")
        if b"pyspark.daemon" in (process / "cmdline").read_bytes():
            lines = (process / "status").read_text().splitlines()
            peaks += [int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM:")]
    return max(peaks)

customers, days, rows, warm_up, rounds = map(int, sys.argv[1:])
home = Path(tempfile.mkdtemp())
try:
    runs = write_runs(home / "raw", customers=customers, days=days, rows=rows)
    place = str if "location" in inspect.signature(publish).parameters else Path
    spark, seconds = local_spark(), []
    for number in range(warm_up + rounds):
        started = cpu_seconds()
        publish(spark, runs, place(home / f"warehouse-{number}"))
        seconds.append(cpu_seconds() - started)
    print(json.dumps({"seconds": statistics.median(seconds[warm_up:]), "worker_mib": worker_mib()}))
    spark.stop()
finally:
    shutil.rmtree(home)
"""


def measure() -> Iterator[Ratio | Figure]:
    old = os.environ.get(OLD_CHECKOUT)
    if old is None:
        print(f"not compared with an older checkout: {OLD_CHECKOUT} is not set", file=sys.stderr)
    else:
        yield _compare_with(Path(old), MANY_SMALL, "1,000 partitions of 100 rows")
        yield _compare_with(Path(old), FEW_LARGE, "20 partitions of 50,000 rows")
    yield _compare_with_dlt()
    yield Figure(
        name="peak memory of a Python worker that judges and writes one partition of 1,000,000 rows",
        value=_publish(Path(), LARGEST, warm_up=0, rounds=1)["worker_mib"],
        unit="MiB",
        limit=512,
    )


def _compare_with(old: Path, shape: tuple[int, int, int], name: str) -> Ratio:
    ours, before = (_publish(each, shape, warm_up=4, rounds=5)["seconds"] for each in (Path(), old))
    return _ratio(f"judging and publishing {name}", ours, "the older checkout", before, rounds=5, required=1 / 0.7)


def _compare_with_dlt() -> Ratio:
    from ads_pipeline_tests.benchmarks import warehouse  # noqa: PLC0415 - it loads dlt
    from ads_pipeline_tests.benchmarks.ratios import cpu_seconds  # noqa: PLC0415
    from ads_pipeline_tests.benchmarks.runs import write_runs  # noqa: PLC0415

    ours = _publish(Path(), DLT_SHAPE, warm_up=2, rounds=3)["seconds"]
    seconds = []
    with tempfile.TemporaryDirectory() as directory:
        customers, days, rows = DLT_SHAPE
        runs = write_runs(Path(directory, "raw"), customers=customers, days=days, rows=rows)
        for number in range(3):
            started = cpu_seconds()
            warehouse.merge_with_dlt(warehouse.read_tables(runs), Path(directory, f"dlt-{number}"))
            seconds.append(cpu_seconds() - started)
    return _ratio(
        "judging and publishing 10,000 partitions of 100 rows",
        ours,
        "dlt merging an Arrow table per file into DuckDB",
        statistics.median(seconds),
        rounds=3,
        required=1.0,
    )


def _publish(checkout: Path, shape: tuple[int, int, int], *, warm_up: int, rounds: int) -> dict[str, float]:
    """What the program prints with the modules of a checkout; the empty path is this one."""
    path = {} if checkout == Path() else {"PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", PROGRAM, *map(str, (*shape, warm_up, rounds))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ | path, cwd=checkout)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _ratio(name: str, ours: float, baseline: str, theirs: float, *, rounds: int, required: float) -> Ratio:
    return Ratio(
        name=name,
        baseline=baseline,
        value=theirs / ours,
        ours_ms=ours * 1000,
        baseline_ms=theirs * 1000,
        rounds=rounds,
        required=required,
        clock="CPU",
    )
