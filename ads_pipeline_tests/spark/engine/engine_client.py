"""A process that uses Spark as a Dagster run does: `python -m ads_pipeline_tests.spark.engine.engine_client <home>`.

It judges a run, and prints JSON: where Spark runs, the Python workers, and the modules that a worker has imported.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pyarrow as pa

from ads_pipeline.domain.log_lines import configure_logging
from ads_pipeline.settings.environment import read_settings
from ads_pipeline.spark.session import release_session, start_spark
from ads_pipeline_tests.validation.builders import RULES, create_run, judge_runs, row


def describe_worker(batches: Iterator[Any]) -> Iterator[Any]:
    for _batch in batches:
        names = sorted({name.partition(".")[0] for name in sys.modules})
        own = sorted(name for name in sys.modules if name.startswith("ads_pipeline."))
        described = json.dumps({"pid": os.getpid(), "modules": names, "own": own})
        yield pa.RecordBatch.from_arrays([pa.array([described], pa.string())], ["worker"])


def main(home: Path) -> None:
    configure_logging("text")
    settings = read_settings({"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": "local[2]"})
    spark = start_spark(settings)
    assert start_spark(settings) is spark
    judged = judge_runs(spark, [create_run(home / "raw", f"run-{os.getpid()}", row())], RULES)
    # A function of this module would be imported by the worker, with all its imports.
    task = FunctionType(describe_worker.__code__, {"json": json, "os": os, "sys": sys, "pa": pa}, "describe_worker")
    rows = spark.range(4).repartition(4).mapInArrow(task, "worker string").collect()
    workers = [json.loads(each["worker"]) for each in rows]
    print(
        json.dumps(
            {
                "session": type(spark).__module__,
                "outcome": judged[0].verdict.outcome,
                "pids": sorted({each["pid"] for each in workers}),
                "modules": sorted({name for each in workers for name in each["modules"]}),
                "own": sorted({name for each in workers for name in each["own"]}),
            }
        )
    )
    release_session(spark, settings)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
