"""Judges any number of sealed runs of one contract in one Spark job, and writes the rows of those it accepts.

One task reads each run whole, so a run gets the same verdict alone and among others. A failure of the cluster or the
store raises JudgingFailed and gives no verdicts.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ads_pipeline.domain.errors import JudgingFailed
from ads_pipeline.domain.measures import Measures
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.quoting import root_cause
from ads_pipeline.domain.reason import Reason
from ads_pipeline.domain.transitions import Outcome, Verdict
from ads_pipeline.lake.raw.seal import PAYLOAD, Seal
from ads_pipeline.validation.contract_rules import Rules
from ads_pipeline.validation.judgement import Judgement
from ads_pipeline.validation.payload_task import NoSink, RowSink, SealedRun, run_task

MAX_UNIT_BYTES: Final = 32 << 20  # a day of one unit becomes one file
MIN_UNITS: Final = 8  # more are made from enough days, so that small jobs use several cores
UNITS_WITHOUT_SHUFFLE: Final = 16  # for few units, a shuffle costs more than better balance saves
_UNKNOWN_BYTES: Final = 1 << 20  # for a seal that does not say how long the payload is


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedPayload:
    """A sealed run and the location of its raw root, as every machine of the cluster sees it."""

    seal: Seal
    location: str

    @property
    def payload_path(self) -> str:
        return f"{self.location}/{self.seal.run.path}/{PAYLOAD}"


def judge_runs(
    spark: SparkSession,
    runs: Sequence[SealedPayload],
    rules: Rules,
    *,
    validation_id: str = "",
    show_text: bool = False,
) -> list[Judgement]:
    """One judgement per run, in the given order. Raises JudgingFailed when the cluster or the store fails.

    With `show_text`, the samples of a reason show free text, which may be personal data.
    """
    judgements, _written = judge_and_write(
        spark, runs, rules, open_sink=NoSink, validation_id=validation_id, show_text=show_text
    )
    return judgements


def judge_and_write(
    spark: SparkSession,
    runs: Sequence[SealedPayload],
    rules: Rules,
    *,
    open_sink: Callable[[], RowSink],
    validation_id: str = "",
    show_text: bool = False,
) -> tuple[list[Judgement], list[Mapping[str, Any]]]:
    """The same, while each task hands the rows of accepted runs to a sink. Also gives what the sinks reported.

    A sink gets the rows in the order of day and customer. `open_sink` travels to the tasks.
    """
    if not runs:
        return [], []
    with _translate_errors(f"{len(runs)} runs could not be judged"):
        units = plan_units(runs)
        # From rows, Spark pickles them, which doubles the time of a small job.
        frame = spark.createDataFrame(pa.table({"runs": [json.dumps(unit) for unit in units]}))
        if len(units) > UNITS_WITHOUT_SHUFFLE:
            frame = frame.repartition(len(units))
        rows = frame.mapInArrow(partial(run_task, rules, show_text, open_sink), "result string").collect()
    documents = [json.loads(row["result"]) for row in rows]
    found = {result["position"]: result for document in documents for result in document["results"]}
    if len(found) != len(runs):
        raise JudgingFailed(f"Spark returned results for {len(found)} of {len(runs)} runs")
    judgements = [_create_judgement(run.seal.run, found[n], validation_id) for n, run in enumerate(runs)]
    return judgements, [each for document in documents for each in document["written"]]


def plan_units(runs: Sequence[SealedPayload]) -> list[list[SealedRun]]:
    """The runs in the order of day and customer, cut into what one task does at a time.

    Small days share a unit. A day is cut only when it is long, because each of its units writes a file of its own.
    """
    ordered = sorted(
        (_describe(position, run) for position, run in enumerate(runs)),
        key=lambda run: (run.logical_date, run.customer_id, run.position),
    )
    target = min(sum(map(_size, ordered)) // MIN_UNITS, MAX_UNIT_BYTES)
    units: list[list[SealedRun]] = []
    size = 0
    for run in ordered:
        continues_day = bool(units) and units[-1][-1].logical_date == run.logical_date
        if not units or size + _size(run) > (MAX_UNIT_BYTES if continues_day else target):
            units.append([])
            size = 0
        units[-1].append(run)
        size += _size(run)
    return units


@contextmanager
def _translate_errors(failure: str) -> Iterator[None]:
    """Raise JudgingFailed for Spark and disk errors. With Spark Connect, even creating a frame calls the server."""
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        raise JudgingFailed(f"{failure}: {root_cause(error)}") from error


def _describe(position: int, run: SealedPayload) -> SealedRun:
    seal, key = run.seal, run.seal.run.key
    return SealedRun(
        position=position,
        location=run.location,
        path=seal.run.path,
        run_id=seal.run.run_id,
        customer_id=key.customer_id,
        logical_date=key.logical_date.isoformat(),
        record_count=seal.record_count,
        payload_bytes=seal.payload_bytes,
        payload_sha256=seal.payload_sha256,
    )


def _size(run: SealedRun) -> int:
    return _UNKNOWN_BYTES if run.payload_bytes is None else run.payload_bytes


def _create_judgement(run: Run, result: Mapping[str, Any], validation_id: str) -> Judgement:
    reason = None if result["reason"] is None else Reason.from_json(result["reason"])
    verdict = Verdict(
        run=run,
        outcome=Outcome.ACCEPTED if reason is None else Outcome.REJECTED,
        validation_id=validation_id,
        reason=reason,
        rows_read=result["rows"],
        payload_bytes=result["bytes"],
        payload_sha256=result["sha256"],
        measures=Measures(**result["measures"]),
    )
    return Judgement(verdict=verdict, unknown_columns=tuple(result["unknown_columns"]))
