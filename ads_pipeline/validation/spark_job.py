"""Judges any number of sealed runs of one contract in one Spark job, and writes the rows of those it accepts.

One task reads each run whole, so a run gets the same verdict alone and among others. A failure of the cluster or the
store raises JudgingFailed and gives no verdicts.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.domain.transitions import Outcome, Verdict
from ads_pipeline.validation.contract_rules import Rules
from ads_pipeline.validation.judgement import Judgement
from ads_pipeline.validation.payload_task import RowSink, TaskRun, run_task

MAX_UNIT_BYTES: Final = 32 << 20  # a day of one unit becomes one file
MIN_UNITS: Final = 8  # more are made from enough days, so that small jobs use several cores
UNITS_WITHOUT_SHUFFLE: Final = 16  # for few units, a shuffle costs more than better balance saves
_UNKNOWN_BYTES: Final = 1 << 20  # for a seal that does not say how long the payload is


def judge_and_write(
    spark: SparkSession,
    location: str,
    runs: Sequence[SealedRun],
    rules: Rules,
    *,
    open_sink: Callable[[], RowSink],
    validation_id: str = "",
    show_text: bool = False,
) -> tuple[list[Judgement], list[Mapping[str, Any]]]:
    """One judgement per run, in the given order, and the reports of the sinks.

    `location` is the raw root of the runs, as every machine of the cluster sees it. Each task hands the rows of
    accepted runs to a sink, in the order of day and customer. `open_sink` travels to the tasks. With `show_text`,
    the samples of a reason show free text, which may be personal data. Raises JudgingFailed when the cluster or the
    store fails.
    """
    if not runs:
        return [], []
    with _translate_errors(f"{len(runs)} runs could not be judged"):
        units = plan_units(runs)
        # From rows, Spark pickles them, which doubles the time of a small job.
        frame = spark.createDataFrame(pa.table({"runs": [json.dumps(unit) for unit in units]}))
        if len(units) > UNITS_WITHOUT_SHUFFLE:
            frame = frame.repartition(len(units))
        rows = frame.mapInArrow(partial(run_task, location, rules, show_text, open_sink), "result string").collect()
    documents = [json.loads(row["result"]) for row in rows]
    found = {result["position"]: result for document in documents for result in document["results"]}
    if len(found) != len(runs):
        raise JudgingFailed(f"Spark returned results for {len(found)} of {len(runs)} runs")
    judgements = [_create_judgement(run.run, found[n], validation_id) for n, run in enumerate(runs)]
    return judgements, [each for document in documents for each in document["written"]]


def plan_units(runs: Sequence[SealedRun]) -> list[list[TaskRun]]:
    """The runs in the order of day and customer, cut into what one task does at a time.

    Small days share a unit. A day is cut only when it is long, because each of its units writes a file of its own.
    """
    ordered = sorted(
        (_describe(position, run) for position, run in enumerate(runs)),
        key=lambda run: (run.logical_date, run.customer_id, run.position),
    )
    target = min(sum(map(_size, ordered)) // MIN_UNITS, MAX_UNIT_BYTES)
    units: list[list[TaskRun]] = []
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


def _describe(position: int, sealed: SealedRun) -> TaskRun:
    run = sealed.run
    return TaskRun(
        position=position,
        path=run.path,
        run_id=run.run_id,
        customer_id=run.key.customer_id,
        logical_date=run.key.logical_date.isoformat(),
        record_count=sealed.record_count,
        payload_bytes=sealed.payload_bytes,
        payload_sha256=sealed.payload_sha256,
        extracted_at=sealed.facts.extracted_at.isoformat(),
        currency_code=sealed.facts.currency_code,
    )


def _size(run: TaskRun) -> int:
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
