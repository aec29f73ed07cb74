"""Finds the archive of the classes that Spark's JVM loads. A JVM that maps it starts in half of the CPU time.

There is one for each Java and each set of Spark's jars; its name holds their digest and its size. A JVM that maps a
cut archive is killed, and what an archive holds is code. So one is used only with its full size, and when nobody but
this user and root can have written it. `archive_maker` writes it.
"""

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

HAS_OWNERS: Final = hasattr(os, "geteuid")  # without them nobody can tell who has written an archive
NOT_MADE: Final = "not made yet"
SECONDS_BETWEEN_MARKS: Final = 86_400.0
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_PARTS_OF_JAVA: Final = ("release", "lib/modules", "lib/server/libjvm.so", "lib/server/libjvm.dylib")


@dataclass(frozen=True, slots=True)
class JavaAndSpark:
    """The programs that a session starts."""

    java: Path
    spark_home: Path

    @property
    def jars(self) -> Path:
        return self.spark_home / "jars"

    def digest(self) -> str:
        """Changes with Java, with a jar, and with the order of the jars in their folder, which the class path has.

        Times are whole seconds, because the layers of an image keep no others.
        """
        facts = [str(self.java), str(self.jars)]
        for name in _PARTS_OF_JAVA:
            with suppress(OSError):
                facts.append(_describe(name, (self.java.parent.parent / name).stat()))
        with os.scandir(self.jars) as jars:
            facts += [_describe(jar.name, jar.stat()) for jar in jars]
        return hashlib.sha256("\n".join(facts).encode(errors="surrogateescape")).hexdigest()[:16]


def _describe(name: str, status: os.stat_result) -> str:
    return f"{name} {status.st_size} {int(status.st_mtime)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundArchive:
    """The archive for the JVMs of an environment, or why there is none."""

    path: Path | None = None
    problem: str = ""


def find_java_and_spark(environ: Mapping[str, str]) -> JavaAndSpark | None:
    """The programs as Spark's scripts find them. None when one is missing. It starts no Java."""
    home = environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH"))
    package = find_spec("pyspark")
    spark = environ.get("SPARK_HOME") or (str(Path(package.origin).parent) if package and package.origin else None)
    if java is None or spark is None or not Path(java).is_file() or not Path(spark, "jars").is_dir():
        return None
    return JavaAndSpark(Path(java).resolve(), Path(spark))


def archive_folder(environ: Mapping[str, str]) -> Path | None:
    """The folder of this user's archives. None for a user without a folder for caches."""
    caches = Path(environ.get("XDG_CACHE_HOME", ""))
    if not caches.is_absolute():  # then it means nothing
        caches = Path(environ.get("HOME", ""), ".cache")
    return caches / "ads_pipeline" / "spark_classes" if caches.is_absolute() and HAS_OWNERS else None


def name_archive(digest: str, size: int) -> str:
    return f"spark-{digest}-{size}.jsa"


def list_archives(folder: Path, digest: str = "*") -> Iterator[Path]:
    """The archives of a Java and Spark, or all. An empty one says that this Java writes none."""
    return folder.glob(f"spark-{digest}-*.jsa")


def find_archive(environ: Mapping[str, str]) -> FoundArchive:
    """The archive that the JVMs of this environment may map."""
    folder, programs = archive_folder(environ), find_java_and_spark(environ)
    if folder is None or programs is None:
        return FoundArchive(problem="this user has no folder for caches" if folder is None else "there is no Java")
    try:
        for archive in list_archives(folder, programs.digest()):
            if problem := find_risk(folder) or find_risk(archive) or _find_damage(archive):
                return FoundArchive(problem=problem)
            return FoundArchive(path=archive)
    except OSError as error:
        return FoundArchive(problem=f"{folder} cannot be read: {error.strerror}")
    return FoundArchive(problem=NOT_MADE)


def find_risk(path: Path) -> str | None:
    """Why another user may have written this file or folder; None when only this user or root can have."""
    status = path.lstat()
    if status.st_uid not in {os.geteuid(), 0}:
        return f"{path} belongs to another user"
    if stat.S_ISLNK(status.st_mode) or status.st_mode & _WRITABLE_BY_OTHERS:
        return f"other users can write to {path}"
    return None


def _find_damage(archive: Path) -> str | None:
    size = archive.lstat().st_size
    if archive.name == name_archive(archive.name.split("-")[1], size):
        return None if size else "this Java writes none"
    return f"{archive} is cut"


def mark_used(archive: Path) -> None:
    """Note that an archive is in use, so that it is not removed as an old one."""
    with suppress(OSError):  # that of an image may be on a disk that can only be read
        if archive.stat().st_mtime < time.time() - SECONDS_BETWEEN_MARKS:
            os.utime(archive)


def discard(archive: Path) -> None:
    """Remove an archive with which a JVM has died."""
    with suppress(OSError):
        archive.unlink()
