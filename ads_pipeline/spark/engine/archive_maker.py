"""Writes the archive of the classes that Spark's JVM loads, once for each Java and set of Spark's jars.

The engine starts this program a minute after its own start, and an image when it is built. One process makes an
archive at a time. The file gets its name when it is whole and on disk, and a JVM has mapped it. A process that dies
leaves a file with another name, which the next one removes.
"""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ads_pipeline.domain.log_lines import LogEvent, configure_logging, log_event
from ads_pipeline.lake.storage.durable_files import sync_directory, sync_file
from ads_pipeline.spark.archive_trial import find_mapping_problem
from ads_pipeline.spark.class_archive import (
    JavaAndSpark,
    archive_folder,
    find_archive,
    find_java_and_spark,
    find_risk,
    list_archives,
    name_archive,
)
from ads_pipeline.spark.engine.sample_jobs import run_sample_jobs
from ads_pipeline.spark.engine.server import SERVER_SETTINGS, find_free_port
from ads_pipeline.spark.engine_address import TOKEN, UNTIL_STDIN_CLOSES
from ads_pipeline.spark.jvm_options import OWN_VARIABLES, SHORT_LIFE
from ads_pipeline.spark.own_spark import private_jvm
from ads_pipeline.spark.private_directory import remove_private_directory
from ads_pipeline.spark.quiet_start import quiet_start
from ads_pipeline.spark.session import open_session

if sys.platform != "win32":  # there, no archive is used
    import fcntl

_LOG: Final = logging.getLogger(__name__)
SAMPLE_JOBS: Final = "ads_pipeline.spark.engine.sample_jobs"
MASTER: Final = "local[2]"
UNFINISHED: Final = "unfinished-"
LOCK: Final = "lock"
MIN_FREE_BYTES: Final = 1 << 30  # an archive has 190 MB
SECONDS_TO_KEEP: Final = 30 * 86_400.0  # an archive that no JVM has used
SECONDS_TO_WRITE: Final = 600.0  # it takes half a minute on an idle machine
LOWEST_PRIORITY: Final = 19


class ArchiveNotMade(Exception):
    """There is no archive now. The message says why."""


def make_archive() -> Path:
    """The archive for the JVMs of this process, which may be there already. Raises ArchiveNotMade."""
    folder, programs = archive_folder(os.environ), find_java_and_spark(os.environ)
    if folder is None or programs is None:
        raise ArchiveNotMade(find_archive(os.environ).problem)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if problem := find_risk(folder):
            raise ArchiveNotMade(problem)
        with _lock(folder):
            _remove_old(folder)
            found = find_archive(os.environ)
            return found.path or _replace(folder, programs, found.problem)
    except OSError as error:
        raise ArchiveNotMade(f"{folder}: {error.strerror or error}") from error


def _replace(folder: Path, programs: JavaAndSpark, problem: str) -> Path:
    """Write the archive in place of one that cannot be used."""
    digest = programs.digest()
    if (folder / name_archive(digest, 0)).exists():
        raise ArchiveNotMade(problem)
    if shutil.disk_usage(folder).free < MIN_FREE_BYTES:
        raise ArchiveNotMade(f"the disk of {folder} has less than {MIN_FREE_BYTES >> 20} MiB free")
    # A JVM whose maker has died may still write, so each has a name of its own.
    unfinished = folder / f"{UNFINISHED}{uuid.uuid4()}"
    try:
        _run_jvm(unfinished)
        if not unfinished.exists():
            unfinished.touch(mode=0o600)
        elif problem := find_mapping_problem(programs, unfinished, os.environ) or "":
            raise ArchiveNotMade(problem)
        sync_file(unfinished)
        for unusable in list_archives(folder, digest):
            unusable.unlink()
        unfinished.rename(folder / name_archive(digest, unfinished.stat().st_size))
        sync_directory(folder)
    finally:
        unfinished.unlink(missing_ok=True)
    written = find_archive(os.environ)
    if written.path is None:
        raise ArchiveNotMade(written.problem)
    return written.path


def _run_jvm(unfinished: Path) -> None:
    """Let a JVM load what sessions and servers load. It writes the file at its end, unless it is of another maker."""
    port, token = find_free_port(), str(uuid.uuid4())
    os.environ.update({TOKEN: token, "PYSPARK_PYTHON": sys.executable})
    settings = SERVER_SETTINGS | {"spark.master": MASTER, "spark.connect.grpc.binding.port": str(port)}
    options = [option.text for option in SHORT_LIFE]
    with quiet_start(), private_jvm(MASTER, [*options, "-Xlog:disable", f"-XX:ArchiveClassesAtExit={unfinished}"]):
        spark = open_session(settings)
    gateway: Any = spark.sparkContext._gateway
    with tempfile.TemporaryDirectory() as rows:
        run_sample_jobs(spark, Path(rows, "own"))
        command = [sys.executable, "-m", SAMPLE_JOBS, str(port), str(Path(rows, "remote"))]
        subprocess.run(command, check=True, timeout=SECONDS_TO_WRITE)  # noqa: S603 - no shell
    spark.stop()
    gateway.proc.stdin.close()  # ends the JVM
    if gateway.proc.wait(SECONDS_TO_WRITE) != 0:
        raise ArchiveNotMade(f"Java ended with {gateway.proc.returncode} while it wrote")


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the folder, unless another process makes an archive there."""
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveNotMade("another process makes it") from None
        yield


def _remove_old(folder: Path) -> None:
    """Remove what died unfinished, and archives that no JVM has used for a month."""
    for unfinished in folder.glob(f"{UNFINISHED}*"):
        unfinished.unlink()
    for archive in list_archives(folder):
        if archive.stat().st_mtime < time.time() - SECONDS_TO_KEEP:
            archive.unlink()


def _end_with_engine() -> None:
    os.read(sys.stdin.fileno(), 1)
    remove_private_directory()
    os._exit(1)  # the JVM ends when its standard input closes


def main() -> int:
    configure_logging(os.environ.get("ADS_PIPELINE_LOG") or "text")
    if UNTIL_STDIN_CLOSES in sys.argv:
        threading.Thread(target=_end_with_engine, daemon=True).start()
        os.nice(LOWEST_PRIORITY)
    for name in OWN_VARIABLES:  # an archive is for all sessions of this user
        os.environ.pop(name, None)
    try:
        log_event(_LOG, LogEvent.ARCHIVE_READY, path=make_archive())
    except ArchiveNotMade as error:
        log_event(_LOG, LogEvent.ARCHIVE_NOT_MADE, problem=error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
