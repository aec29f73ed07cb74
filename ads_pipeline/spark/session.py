"""Spark sessions from settings, for commands and for Dagster's runs."""

import importlib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from ads_pipeline.domain.errors import BadSettings, Mistake
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.settings.environment import Settings
from ads_pipeline.spark import nameless_user
from ads_pipeline.spark.class_archive import discard, mark_used
from ads_pipeline.spark.engine_address import needs_engine, request_server
from ads_pipeline.spark.jvm_options import find_fast_options
from ads_pipeline.spark.own_spark import private_jvm

_LOG: Final = logging.getLogger(__name__)

SECONDS_TO_RELEASE: Final = 10.0
MAX_RETRIES, MAX_BACKOFF_MS = 8, 4_000
SESSION_SETTINGS: Final = {"spark.sql.session.timeZone": "UTC"}
SPARK_SETTINGS: Final = SESSION_SETTINGS | {
    "spark.app.name": "ads_pipeline",
    "spark.ui.showConsoleProgress": "false",
}
_JVM_ENDED: Final = "JAVA_GATEWAY_EXITED"
_OWN_BUILDER: Final = re.compile(r"(?P<module>[\w.]+):(?P<function>\w+)", re.ASCII)


def start_spark(settings: Settings) -> SparkSession:
    """The active session of this process, or a new one. Spark's configuration directory may set further options.

    A setting of the form module:function names a function of the user's that returns the session.
    """
    if own := _OWN_BUILDER.fullmatch(settings.spark):
        return _find_builder(own["module"], own["function"])()
    return SparkSession.getActiveSession() or _connect_to_engine(settings) or _start_own(settings)


def release_session(spark: SparkSession, settings: Settings) -> None:
    """Stop a session on the engine, which keeps its state otherwise for an hour. Other sessions go on.

    The work of the run is done. An engine that has died or hangs gets ten seconds for its answer.
    """
    if needs_engine(settings.spark) and is_remote():
        _stop(spark)


def _stop(spark: SparkSession) -> None:
    """Stop a session. One on a server is left behind when the server does not answer in time."""
    if not is_remote():
        spark.stop()
        return
    thread = threading.Thread(target=spark.stop, name="release-session", daemon=True)
    thread.start()
    thread.join(SECONDS_TO_RELEASE)
    if thread.is_alive():
        client: Any = spark.client
        client.close()  # its threads would keep the process until the server answers


def _connect_to_engine(settings: Settings) -> SparkSession | None:
    """A session on the engine of this deployment. None where there is no engine; a log record says why it fails."""
    if not needs_engine(settings.spark):
        return None
    answer = request_server(settings.home)
    if answer is None:
        return None
    problem = answer.problem
    if problem is None and (answer.spark, answer.version) != (settings.spark, pyspark.__version__):
        problem = "the engine was started with another Spark"
    if problem is not None:
        log_event(_LOG, LogEvent.ENGINE_UNAVAILABLE, problem=problem)
        return None
    from ads_pipeline.spark.engine_connection import connect  # noqa: PLC0415 - it loads the client of Spark Connect

    spark = connect(answer.port, answer.token, SESSION_SETTINGS)
    _limit_retries(spark)
    log_event(_LOG, LogEvent.SPARK_STARTED, version=spark.version, engine="shared")
    return spark


def _limit_retries(spark: SparkSession) -> None:
    """Let calls to an engine that has died fail after about 20 s. A new engine has another port.

    By default the client tries for ten minutes, as for a server behind a network.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415 - only a session on an engine needs it

    client: Any = spark.client
    client.set_retry_policies([DefaultPolicy(max_retries=MAX_RETRIES, max_backoff=MAX_BACKOFF_MS)])


def _start_own(settings: Settings) -> SparkSession:
    if settings.spark.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # on a cluster, its machines know their Python
    if settings.spark.startswith("sc://"):
        spark = open_session(SPARK_SETTINGS | {"spark.remote": settings.spark})
    else:
        spark = open_own_session(SPARK_SETTINGS | {"spark.master": settings.spark})
    log_event(_LOG, LogEvent.SPARK_STARTED, version=spark.version)  # its address may contain a token
    return spark


def open_own_session(options: Mapping[str, str]) -> SparkSession:
    """A session with these options in a new JVM of this process.

    When the JVM ends at its start, another one starts without the options that make it fast.
    """
    master, fast = options["spark.master"], find_fast_options(os.environ)
    try:
        with private_jvm(master, fast.texts):
            session = open_session(options)
    except PySparkRuntimeError as error:
        if not fast.texts or error.getCondition() != _JVM_ENDED:
            raise
        with private_jvm(master):
            session = open_session(options)
        log_event(_LOG, LogEvent.SPARK_START_REPEATED, archive=fast.archive)
        if fast.archive is not None:
            discard(fast.archive)
    else:
        if fast.archive is not None:
            mark_used(fast.archive)
    return session


def open_session(options: Mapping[str, str]) -> SparkSession:
    """The session with these options of Spark."""
    if "spark.remote" not in options and nameless_user.user_name() is not None:
        nameless_user.log_in(tuple(options.items()))
    builder = SparkSession.builder
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


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
        _stop(spark)
