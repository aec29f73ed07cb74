"""Spark sessions from settings, for commands. In Dagster, `dagster-pyspark` opens the session."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from ads_pipeline.settings import Settings

SPARK_SETTINGS = {
    "spark.app.name": "ads_pipeline",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.showConsoleProgress": "false",
}


def start_spark(settings: Settings) -> SparkSession:
    """The active session of this process, or a new one. Spark's configuration directory may set further options."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    option = "spark.remote" if settings.spark.startswith("sc://") else "spark.master"
    builder = SparkSession.builder
    for name, value in (SPARK_SETTINGS | {option: settings.spark}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextmanager
def spark_session(settings: Settings) -> Iterator[SparkSession]:
    """A session, stopped at the end of the block. An active session of this process is used and not stopped."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    spark = start_spark(settings)
    try:
        yield spark
    finally:
        spark.stop()
