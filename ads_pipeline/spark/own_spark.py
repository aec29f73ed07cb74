"""Defaults of the Spark that the product starts itself: where it listens, whom it answers, where its files are.

They are system properties of the JVM, which Spark reads last: an option of `spark-defaults.conf`, of
PYSPARK_SUBMIT_ARGS or of SPARK_SUBMIT_OPTS replaces one of them.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from ads_pipeline.spark.engine_address import LOOPBACK
from ads_pipeline.spark.nameless_user import java_properties
from ads_pipeline.spark.private_directory import private_directory

JVM_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
_LOCAL: Final = re.compile(r"local(\[[^\]]*\])?")  # executors are threads of the driver
_EVERY_MASTER: Final = {"spark.ui.enabled": "false"}  # it listens for every host, and shows what runs do
# With a local master, Spark makes a secret itself and keeps it in memory.
_LOCAL_MASTER: Final = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.authenticate": "true",
}


def runs_in_one_process(master: str) -> bool:
    """Return whether no other machine and no other process connects to the driver."""
    return _LOCAL.fullmatch(master) is not None


@contextmanager
def private_jvm(master: str, options: Sequence[str] = ()) -> Iterator[None]:
    """Give the JVM that the block starts these defaults and options. A JVM that runs already keeps what it has."""
    earlier = os.environ.get(JVM_OPTIONS)
    os.environ[JVM_OPTIONS] = " ".join(filter(None, (_encode(_defaults(master)), *options, earlier)))
    try:
        yield
    finally:
        if earlier is None:
            del os.environ[JVM_OPTIONS]
        else:
            os.environ[JVM_OPTIONS] = earlier


def _defaults(master: str) -> Mapping[str, str]:
    files = {"java.io.tmpdir": str(private_directory())}  # below it are blocks, spilled rows and artifacts
    return files | java_properties() | _EVERY_MASTER | (_LOCAL_MASTER if runs_in_one_process(master) else {})


def _encode(options: Mapping[str, str]) -> str:
    return " ".join(shlex.quote(f"-D{name}={value}") for name, value in options.items())
