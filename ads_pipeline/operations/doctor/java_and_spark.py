"""Checks that this machine can start Spark: Java, its version, the Spark that SPARK_HOME names, and temporary space.

It also says whether Java uses the archive of Spark's classes. It starts Java with `-version` only.
Deployments on Spark Connect or with their own session need no Java here.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

from ads_pipeline.operations.doctor.examination import Finding, MachineCheck, make_error, make_warning
from ads_pipeline.settings.environment import Settings
from ads_pipeline.spark.archive_trial import find_mapping_problem
from ads_pipeline.spark.class_archive import find_archive, find_java_and_spark
from ads_pipeline.spark.jvm_options import may_map_archive

MIN_JAVA: Final = 17
SECONDS_TO_ANSWER: Final = 20  # `java -version` takes 0.1 s; a broken mount may never answer
MIN_TEMPORARY_BYTES: Final = 1 << 28  # Spark's shuffle files and libraries
_INSTALL_JAVA: Final = "install a Java runtime of version 17 or newer, such as openjdk-17-jre-headless"
_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
_MASTERS_WITHOUT_JAVA: Final = re.compile(r"sc://.*|[\w.]+:\w+", re.ASCII)  # Spark Connect, or the user's own session


def find_problems(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each reason why Spark cannot start on this machine."""
    if _MASTERS_WITHOUT_JAVA.fullmatch(settings.spark):
        return
    yield from _find_java_problem(environ)
    yield from _find_spark_problem(environ.get("SPARK_HOME"))
    yield from _find_space_problem(Path(environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]))


def _find_java_problem(environ: Mapping[str, str]) -> Iterator[Finding]:
    home = environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH"))
    where = "JAVA_HOME" if home else "java"
    unset = "unset JAVA_HOME, or " if home else ""
    if program is None:
        yield make_error(where, "there is no java on the PATH", f"{_INSTALL_JAVA}, or set JAVA_HOME")
    elif not os.access(program, os.X_OK):
        yield make_error(where, f"there is no program {program}", f"{unset}{_INSTALL_JAVA}")
    elif (found := _read_java_version(program)) is None:
        yield make_error(where, f"{program} -version does not answer", f"{unset}{_INSTALL_JAVA}")
    elif found < MIN_JAVA:
        yield make_error(where, f"{program} is Java {found}; Spark needs {MIN_JAVA}", f"{unset}{_INSTALL_JAVA}")


def _read_java_version(program: str) -> int | None:
    """The major version; None when the program fails, or does not answer in time."""
    try:
        done = subprocess.run(  # noqa: S603 - the java that Spark would start
            [program, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS_TO_ANSWER,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr)
    return int(match[1]) if match and done.returncode == 0 else None


def _find_spark_problem(home: str | None) -> Iterator[Finding]:
    """A SPARK_HOME replaces the Spark of the package pyspark, whose version its client must have."""
    if home is None:
        return
    expected = version("pyspark")
    if not Path(home, "bin", "spark-submit").is_file():
        yield make_error("SPARK_HOME", f"there is no Spark at {home}", "unset SPARK_HOME")
    elif not any(Path(home, "jars").glob(f"spark-core_*-{expected}.jar")):
        yield make_error("SPARK_HOME", f"{home} is not Spark {expected}, the version of pyspark", "unset SPARK_HOME")


def _find_space_problem(folder: Path) -> Iterator[Finding]:
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())  # Spark creates the rest
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield make_error(folder, "Spark cannot write its temporary files there", "set SPARK_LOCAL_DIRS or TMPDIR")
    elif (free := shutil.disk_usage(existing).free) < MIN_TEMPORARY_BYTES:
        problem = f"Spark's temporary folder has {free >> 20} MiB free"
        yield make_warning(folder, problem, "free some space, or set SPARK_LOCAL_DIRS")


def describe_start(settings: Settings, environ: Mapping[str, str]) -> str:
    """Say whether the JVM maps an archive of its classes, or why not. It starts a JVM where there is one."""
    programs = None if _MASTERS_WITHOUT_JAVA.fullmatch(settings.spark) else find_java_and_spark(environ)
    if programs is None:
        return ""
    if not may_map_archive(environ):
        return "Spark can start; your options replace its archive"
    found = find_archive(environ)
    if found.path is None:
        return f"Spark can start, without an archive: {found.problem}"
    if problem := find_mapping_problem(programs, found.path, environ):
        return f"Spark can start; Java does not use its archive: {problem}"
    return "Spark can start, and Java uses the archive of its classes"


MACHINE_CHECKS: Final = (
    MachineCheck("spark", "Spark can start here, or runs elsewhere", find_problems, describe_start),
)
