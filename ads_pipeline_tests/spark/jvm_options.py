"""Options for the JVMs of Spark, with an archive of the classes that they load.

The tests start many short JVMs, which would all load and verify the same classes. A JVM that maps the archive of an
earlier one takes half of the CPU time for its start and its first jobs. As a program, this module writes the archive.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import IO, Any, Final

import pyspark

from ads_pipeline_tests.processes import ROOT

# In a short JVM, optimizing compilers and a parallel collector do not pay off. A JVM that cannot use the archive says
# so on its standard output, and starts without it.
SHORT_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
CONNECT: Final = "org.apache.spark.sql.connect.SparkConnectPlugin"  # its classes are those of an engine
SECONDS_TO_WRITE: Final = 300
_WRITERS: Final = list[Popen[bytes]]()


def prepare_jvm_options(directory: Path) -> str:
    """The options of Spark's JVMs. Start to write the archive where there is none for this Java and Spark."""
    java = subprocess.run(["java", "-version"], capture_output=True, check=True).stderr
    version = hashlib.sha256(java + f"{pyspark.__version__} {pyspark.__file__}".encode()).hexdigest()[:16]
    archive = directory / f"spark-{version}.jsa"
    directory.mkdir(parents=True, exist_ok=True)
    with _lock(directory) as lock:
        if not archive.exists():
            command = [sys.executable, "-m", __name__, str(archive)]
            # The process inherits the lock and holds it to its end.
            _WRITERS.append(Popen(command, cwd=ROOT, stdout=DEVNULL, stderr=DEVNULL, pass_fds=[lock.fileno()]))
    return f"{SHORT_JVM} -XX:SharedArchiveFile={archive}"


def wait_for_archive(directory: Path) -> None:
    """Wait until no process writes the archive. Without one, JVMs only start slower."""
    if not directory.exists():
        return
    with _lock(directory):
        for writer in _WRITERS:
            assert writer.wait(SECONDS_TO_WRITE) == 0, "the archive of Spark's classes could not be written"


@contextmanager
def _lock(directory: Path) -> Iterator[IO[str]]:
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def write_archive(archive: Path) -> None:
    """Let a JVM do what the product does. It writes the archive when it ends."""
    from ads_pipeline_tests.spark.pipeline_process import open_session, run_pipeline  # noqa: PLC0415 - needs Spark

    unfinished = archive.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_JVM} -XX:ArchiveClassesAtExit={unfinished}"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    plugin = f"--conf spark.plugins={CONNECT} --conf spark.connect.grpc.binding.port=0"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{plugin} pyspark-shell"
    spark = open_session("local[2]")
    gateway: Any = spark.sparkContext._gateway
    with tempfile.TemporaryDirectory() as home:
        run_pipeline(spark, Path(home))
    spark.stop()
    gateway.proc.stdin.close()  # ends the JVM
    gateway.proc.wait(SECONDS_TO_WRITE)
    if unfinished.exists():  # a JVM of another maker may write none
        unfinished.replace(archive)


if __name__ == "__main__":
    write_archive(Path(sys.argv[1]))
