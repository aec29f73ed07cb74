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


def spark_config(settings: Settings) -> dict[str, str]:
    """The options of a session. Operators set further options in Spark's configuration directory."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    option = "spark.remote" if settings.spark.startswith("sc://") else "spark.master"
    return SPARK_SETTINGS | {option: settings.spark}


@contextmanager
def spark_session(settings: Settings) -> Iterator[SparkSession]:
    """A session, stopped at the end of the block. An active session of this process is used and not stopped."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    builder = SparkSession.builder
    for name, value in spark_config(settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
