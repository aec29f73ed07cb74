"""Spark sessions from settings, for commands and for Dagster's runs."""

import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from ads_pipeline.errors import BadSettings, Mistake
from ads_pipeline.log_events import LogEvent, log_event
from ads_pipeline.settings import Settings

_LOG: Final = logging.getLogger(__name__)

SPARK_SETTINGS: Final = {
    "spark.app.name": "ads_pipeline",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
_OWN_BUILDER: Final = re.compile(r"(?P<module>[\w.]+):(?P<function>\w+)", re.ASCII)


def start_spark(settings: Settings) -> SparkSession:
    """The active session of this process, or a new one. Spark's configuration directory may set further options.

    A setting of the form module:function names a function of the user's that returns the session.
    """
    if own := _OWN_BUILDER.fullmatch(settings.spark):
        return _find_builder(own["module"], own["function"])()
    if settings.spark.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # on a cluster, its machines know their Python
    option = "spark.remote" if settings.spark.startswith("sc://") else "spark.master"
    builder = SparkSession.builder
    for name, value in (SPARK_SETTINGS | {option: settings.spark}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    log_event(_LOG, LogEvent.SPARK_STARTED, version=spark.version)  # its address may contain a token
    return spark


def _find_builder(module: str, function: str) -> Callable[[], SparkSession]:
    try:
        builder: Callable[[], SparkSession] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        problem = f"names no function that can be imported: {type(error).__name__}"
        raise BadSettings((Mistake(location="ADS_PIPELINE_SPARK", problem=problem),)) from None
    return builder


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
