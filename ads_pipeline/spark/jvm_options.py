"""Options with which Spark's JVM starts fast: an archive of its classes, the quick compiler, the serial collector.

The product's work in the JVM is short, because tasks run in Python. An option of the user's own of the same kind
replaces ours.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ads_pipeline.spark.class_archive import find_archive, find_java_and_spark

# Where a user can set options of the JVM, beside Spark's configuration file.
OWN_VARIABLES: Final = (
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_SUBMIT_OPTS",
    "SPARK_DRIVER_MEMORY",
)
_NAMED_FILE: Final = re.compile(r"--properties-file[=\s]+(\S+)")


@dataclass(frozen=True, slots=True)
class JvmOption:
    """Options of ours, and the pattern of an option of the user's that replaces them."""

    text: str
    replaced_by: re.Pattern[str]


_COMPILER: Final = JvmOption("-XX:TieredStopAtLevel=1", re.compile(r"-XX:\S*(Tiered|Compil)|-Xint|-Xcomp"))
# Its pauses grow with the heap, so it is not for a heap that the user has made larger.
_COLLECTOR: Final = JvmOption(
    "-XX:+UseSerialGC", re.compile(r"-XX:\S*Use\w+GC|(?i:driver.memory)|-Xmx|RAMPercentage")
)
# A JVM that cannot use the archive says so on its standard output, and starts without it.
_QUIET: Final = JvmOption("-Xlog:disable -Xlog:all=error:stderr", re.compile(r"-Xlog|-verbose"))
_ARCHIVE_REPLACED_BY: Final = re.compile(r"-Xshare|-XX:\S*(Shared|Archive|AOT)")
SHORT_LIFE: Final = (_COMPILER, _COLLECTOR)


@dataclass(frozen=True, slots=True)
class FastOptions:
    """The options for one JVM, and the archive that they name."""

    texts: tuple[str, ...] = ()
    archive: Path | None = None


def find_fast_options(environ: Mapping[str, str]) -> FastOptions:
    """The options for the JVM of this environment. None of them without a Java, which then cannot start at all."""
    if find_java_and_spark(environ) is None:
        return FastOptions()
    options, archive = list(SHORT_LIFE), find_archive(environ).path
    if archive is not None:
        # Without the check, an archive whose content has changed kills the JVM.
        mapped = f"{shlex.quote(f'-XX:SharedArchiveFile={archive}')} -XX:+VerifySharedSpaces"
        options += [JvmOption(mapped, _ARCHIVE_REPLACED_BY), _QUIET]
    own = "\n".join(_find_own_options(environ))
    texts = tuple(option.text for option in options if not option.replaced_by.search(own))
    return FastOptions(texts, archive)


def may_map_archive(environ: Mapping[str, str]) -> bool:
    """Return whether no option of the user's own replaces the archive."""
    return _ARCHIVE_REPLACED_BY.search("\n".join(_find_own_options(environ))) is None


def _find_own_options(environ: Mapping[str, str]) -> Iterator[str]:
    """What the user has set, in variables and in the configuration files of Spark."""
    yield from (f"{name}={environ[name]}" for name in OWN_VARIABLES if name in environ)
    files = [Path(named) for named in _NAMED_FILE.findall(environ.get("PYSPARK_SUBMIT_ARGS", ""))]
    if (folder := find_configuration(environ)) is not None:
        files.append(folder / "spark-defaults.conf")
    for file in files:
        with suppress(OSError):
            yield file.read_text(errors="replace")


def find_configuration(environ: Mapping[str, str]) -> Path | None:
    """The folder of Spark's configuration, which may not exist."""
    named, programs = environ.get("SPARK_CONF_DIR"), find_java_and_spark(environ)
    if named or programs is None:
        return Path(named) if named else None
    return programs.spark_home / "conf"
