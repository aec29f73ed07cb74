"""Starts Spark's JVM with an archive and without a program, to learn whether it maps the archive."""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ads_pipeline.spark.class_archive import JavaAndSpark
from ads_pipeline.spark.own_spark import JVM_OPTIONS

SECONDS: Final = 60.0  # it takes one
MAX_REASONS: Final = 2  # lines
_GENERAL: Final = re.compile(r"An error has occurred|Error occurred during|Unable to use|OpenJDK|Picked up|WARNING")
_DECORATION: Final = re.compile(r"^\[[^\]]*s\](\[[^\]]*\])*\s*")


def find_mapping_problem(programs: JavaAndSpark, archive: Path, environ: Mapping[str, str]) -> str | None:
    """Why the JVM that Spark starts in this environment does not map the archive; None when it does.

    `-version` ends the JVM before it loads a class of Spark. Spark's script adds the class path.
    """
    options = f"-Xshare:on -XX:SharedArchiveFile={archive} -XX:+VerifySharedSpaces -version"
    environment = {**environ, JVM_OPTIONS: f"{environ.get(JVM_OPTIONS, '')} {options}"}
    try:
        with tempfile.TemporaryDirectory() as folder:  # a JVM that dies writes a file where it is
            done = subprocess.run(  # noqa: S603 - no shell
                [programs.spark_home / "bin" / "spark-submit", "pyspark-shell"],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Spark's JVM does not start: {type(error).__name__}"
    if done.returncode == 0:
        return None
    lines = (_DECORATION.sub("", line).strip(" #.") for line in (done.stderr + done.stdout).splitlines())
    reasons = [line for line in lines if line and not _GENERAL.match(line)]
    return "; ".join(reasons[:MAX_REASONS]) or f"Java ended with {done.returncode}"
