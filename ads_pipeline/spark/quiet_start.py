"""Keeps what Spark's JVM prints away from the standard error of a command.

Java and Spark print several lines before any answer: on modules, log profiles, addresses and native libraries.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ads_pipeline.spark.private_directory import private_directory

LOG: Final = "spark.log"
STDERR: Final = 2
MAX_SHOWN_BYTES: Final = 4_000  # of the end of the log, when Spark does not start


@contextmanager
def quiet_start() -> Iterator[None]:
    """Let the JVM that the block starts write its standard error to a file in the directory of this process.

    The JVM keeps the file for as long as it lives. When the block raises, the end of the file is printed: it may hold
    the only cause.
    """
    path = private_directory() / LOG
    sys.stderr.flush()
    own = os.dup(STDERR)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, STDERR)  # a process inherits this descriptor; `launch_gateway` of pyspark gives no other way
    os.close(log)
    try:
        yield
    except BaseException:
        os.write(own, path.read_bytes()[-MAX_SHOWN_BYTES:])
        raise
    finally:
        sys.stderr.flush()
        os.dup2(own, STDERR)
        os.close(own)
