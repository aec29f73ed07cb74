"""Says how Spark sessions are built from settings, and opens one for work that no engine started.

In Dagster the session is `dagster-pyspark`'s.
"""

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
    """What the session is built with; whatever else Spark should know stands in its own configuration folder."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    place = "spark.remote" if settings.spark.startswith("sc://") else "spark.master"
    return SPARK_SETTINGS | {place: settings.spark}


@contextmanager
def session(settings: Settings) -> Iterator[SparkSession]:
    """The session that the settings name, stopped at the end; one that this process has already is left as it is."""
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    builder = SparkSession.builder
    for name, value in spark_config(settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
