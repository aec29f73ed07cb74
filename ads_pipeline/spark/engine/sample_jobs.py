"""Runs small jobs of the kinds that the product runs, so that a JVM loads the classes that they need.

As a program, it does so over Spark Connect, on the server at a port. Classic and Connect sessions cannot share a
process.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from ads_pipeline.spark.engine_address import TOKEN
from ads_pipeline.spark.engine_connection import connect

TASKS: Final = 4


def run_sample_jobs(spark: SparkSession, folder: Path) -> None:
    """Judge and merge in Python tasks, with and without a shuffle, and read files of a table beside visible runs."""
    rows = spark.createDataFrame(pa.table({"run": [f"run-{number}" for number in range(TASKS)]}))
    rows.mapInArrow(_return_rows, "run string").collect()
    rows.repartition(TASKS).mapInArrow(_return_rows, "run string").collect()
    rows.withColumn("clicks", sf.lit(1)).write.mode("overwrite").parquet(str(folder))
    found = spark.read.schema("run string, clicks int").parquet(str(folder)).join(sf.broadcast(rows), ["run"])
    found.where(sf.col("clicks") > 0).groupBy("run").agg(sf.sum("clicks")).orderBy("run").collect()
    found.count()


def _return_rows(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


if __name__ == "__main__":
    session = connect(int(sys.argv[1]), os.environ[TOKEN], {})
    run_sample_jobs(session, Path(sys.argv[2]))
    session.stop()
