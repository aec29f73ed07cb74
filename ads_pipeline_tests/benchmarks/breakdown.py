"""Measures the parts of judging and publishing, by leaving out one after the other."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from ads_pipeline.lake.raw.reading import stream_payload
from ads_pipeline.lake.warehouse.table_values import StagedFile
from ads_pipeline.validation.payload_rows import MAX_PAYLOAD_BYTES
from ads_pipeline.validation.payload_task import TaskRun
from ads_pipeline.validation.spark_job import UNITS_WITHOUT_SHUFFLE, plan_units
from ads_pipeline_tests.benchmarks.comparisons import LARGE, MANY, SMALL, Shape
from ads_pipeline_tests.benchmarks.publishing import judge_and_stage, publish, replace_partitions
from ads_pipeline_tests.benchmarks.ratios import cpu_seconds
from ads_pipeline_tests.benchmarks.runs import write_later_run, write_runs
from ads_pipeline_tests.benchmarks.validator import RULES, local_spark
from ads_pipeline_tests.validation.builders import SealedPayload, judge_runs

Batches = Iterator[Any]
Task = Callable[[Batches], Batches]

ROUNDS: Final = 3
ONE: Final = "1 partition of 1,000"
PARTS: Final = (
    "an empty Spark job",
    "reading and hashing payloads",
    "parsing and checking",
    "writing Parquet files",
    "reading back and committing",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The median CPU seconds of each part of one work, in the order of the parts."""

    work: str
    parts: dict[str, float]
    is_met: bool = True

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    def share(self, part: str) -> float:
        return self.parts[part] / self.seconds

    @property
    def largest(self) -> str:
        return max(self.parts, key=lambda part: self.parts[part])

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f} s ({self.share(name):.0%})" for name, seconds in self.parts.items())
        return f"{self.work}: CPU {self.seconds:.2f} s: {parts}"


def measure() -> Iterator[Breakdown]:
    spark = local_spark()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for shape in (SMALL, LARGE, MANY):
            root = home / f"raw-{shape.customers}-{shape.rows}"
            runs = write_runs(root, customers=shape.customers, days=shape.days, rows=shape.rows)
            if shape == SMALL:
                _warm_up(spark, runs, home)
                yield _measure_replacement(spark, runs[500], root, home)
            yield _measure_loads(spark, shape, runs, home / f"{shape.customers}-{shape.rows}")
    spark.stop()


def _warm_up(spark: SparkSession, runs: Sequence[SealedPayload], home: Path) -> None:
    for number in range(4):
        publish(spark, runs, str(home / ("table" if number == 0 else f"warm-{number}")))


def _measure_replacement(spark: SparkSession, run: SealedPayload, root: Path, home: Path) -> Breakdown:
    later = (([write_later_run(root, run, number)], str(home / "table")) for number in range(2 * ROUNDS))
    return _measure(spark, ONE, later)


def _measure_loads(spark: SparkSession, shape: Shape, runs: Sequence[SealedPayload], home: Path) -> Breakdown:
    return _measure(spark, str(shape), ((runs, str(home / f"{number}")) for number in range(ROUNDS + 1)))


def _measure(spark: SparkSession, work: str, rounds: Iterable[tuple[Sequence[SealedPayload], str]]) -> Breakdown:
    """Each job does what the one before it does, and a part more. The differences are the parts.

    A round is some runs and the warehouse to load them into. The first one only warms up.
    """
    seconds: dict[str, list[float]] = {part: [] for part in PARTS}
    for runs, location in rounds:
        jobs = [
            _cpu(partial(_run_job, spark, runs, _drop)),
            _cpu(partial(_run_job, spark, runs, partial(_read, runs[0].location))),
            _cpu(partial(judge_runs, spark, runs, RULES)),
        ]
        staged = list[StagedFile]()
        jobs.append(_cpu(lambda: staged.extend(judge_and_stage(spark, runs, location))))  # noqa: B023
        publishing = _cpu(partial(replace_partitions, spark, runs, staged, location))
        for part, taken in zip(PARTS, [jobs[0], *(b - a for a, b in pairwise(jobs)), publishing], strict=True):
            seconds[part].append(taken)
    return Breakdown(work=work, parts={part: max(0.0, median(taken[1:])) for part, taken in seconds.items()})


def _cpu(step: Callable[[], object]) -> float:
    started = cpu_seconds()
    step()
    return cpu_seconds() - started


def _run_job(spark: SparkSession, runs: Sequence[SealedPayload], task: Task) -> None:
    """A Spark job as judging starts it, with another task."""
    units = plan_units([run.seal for run in runs])
    frame = spark.createDataFrame(pa.table({"runs": [json.dumps(unit) for unit in units]}))
    if len(units) > UNITS_WITHOUT_SHUFFLE:
        frame = frame.repartition(len(units))
    frame.mapInArrow(task, "runs string").collect()


def _drop(batches: Batches) -> Batches:
    yield from batches


def _read(location: str, batches: Batches) -> Batches:
    for batch in batches:
        for text in batch["runs"].to_pylist():
            for run in (TaskRun(*each) for each in json.loads(text)):
                for block in stream_payload(location, run.path, max_bytes=MAX_PAYLOAD_BYTES):
                    hashlib.sha256(block).digest()
        yield batch
