"""A JVM maps the archive of Spark's classes only when it is whole, of this Java and Spark, and its user's own."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ads_pipeline.spark.class_archive import (
    NOT_MADE,
    FoundArchive,
    archive_folder,
    find_archive,
    find_java_and_spark,
    mark_used,
    name_archive,
)
from ads_pipeline.spark.engine.archive_maker import SECONDS_TO_KEEP
from ads_pipeline.spark.jvm_options import find_fast_options

CONTENT = b"classes"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with a Java and a Spark of two jars, whose programs do nothing."""
    java, spark = tmp_path / "java", tmp_path / "spark"
    for path in (java / "bin" / "java", java / "release", spark / "jars" / "a.jar", spark / "jars" / "b.jar"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    return {"JAVA_HOME": str(java), "SPARK_HOME": str(spark), "XDG_CACHE_HOME": str(tmp_path / "caches")}


def put_archive(environ: Mapping[str, str], content: bytes = CONTENT) -> Path:
    """An archive of this content for the Java and Spark of the environment."""
    programs, folder = find_java_and_spark(environ), archive_folder(environ)
    assert programs
    assert folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    archive = folder / name_archive(programs.digest(), len(content))
    archive.write_bytes(content)
    return archive


def test_own_whole_archive_is_found(environ: dict[str, str]) -> None:
    """It is that of the Java and Spark that a session would start."""
    assert find_archive(environ) == FoundArchive(problem=NOT_MADE)
    archive = put_archive(environ)
    assert find_archive(environ) == FoundArchive(path=archive)


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


UNUSABLE: Mapping[str, tuple[Callable[[Path, pytest.MonkeyPatch], object], str]] = {
    "cut": (lambda archive, _patch: archive.write_bytes(CONTENT[:-1]), "is cut"),
    "grown": (lambda archive, _patch: archive.write_bytes(CONTENT + b"x"), "is cut"),
    "of another user": (give_away, "belongs to another user"),
    "writable by the group": (lambda archive, _patch: archive.chmod(0o620), "other users can write to"),
    "writable by all": (lambda archive, _patch: archive.chmod(0o602), "other users can write to"),
    "a link": (lambda archive, _patch: replace_by_link(archive), "other users can write to"),
    "in a folder of another user": (lambda archive, patch: give_away(archive.parent, patch), "another user"),
    "in an open folder": (lambda archive, _patch: archive.parent.chmod(0o777), "other users can write to"),
}


@pytest.mark.parametrize("damage", UNUSABLE)
def test_archive_that_may_kill_or_deceive_the_jvm_is_not_used(
    environ: dict[str, str], damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut archive kills the JVM. One that another user can have written holds any code."""
    change, expected = UNUSABLE[damage]
    change(put_archive(environ), monkeypatch)
    found = find_archive(environ)
    assert found.path is None
    assert expected in found.problem
    assert "SharedArchiveFile" not in str(find_fast_options(environ).texts)


@pytest.mark.parametrize(
    "change",
    [
        lambda java, _jars: (java / "release").write_text("another version"),
        lambda _java, jars: (jars / "a.jar").write_text("another release"),
        lambda _java, jars: os.utime(jars / "a.jar", (1, 1)),
        lambda _java, jars: (jars / "c.jar").write_text("c"),
        lambda _java, jars: (jars / "b.jar").unlink(),
    ],
    ids=["java", "jar", "time of a jar", "more jars", "fewer jars"],
)
def test_archive_of_another_java_or_spark_is_not_found(
    environ: dict[str, str], change: Callable[[Path, Path], object]
) -> None:
    """The digest in its name changes with both."""
    put_archive(environ)
    change(Path(environ["JAVA_HOME"]), Path(environ["SPARK_HOME"], "jars"))
    assert find_archive(environ).problem == NOT_MADE


def test_java_without_archives_is_not_asked_again(environ: dict[str, str]) -> None:
    """An empty archive says so."""
    put_archive(environ, b"")
    assert find_archive(environ) == FoundArchive(problem="this Java writes none")


def test_machine_without_java_has_no_options(environ: dict[str, str]) -> None:
    """So that a session that cannot start is not tried twice."""
    Path(environ["JAVA_HOME"], "bin", "java").unlink()
    assert find_fast_options(environ).texts == ()


OURS = ("TieredStopAtLevel=1", "UseSerialGC", "SharedArchiveFile", "Xlog:disable")
REPLACEMENTS: Mapping[str, tuple[str, ...]] = {
    "-Dname=value": (),
    "-XX:+UseZGC": ("UseSerialGC",),
    "-XX:-UseParallelGC": ("UseSerialGC",),
    "-Xmx8g": ("UseSerialGC",),
    "-XX:TieredStopAtLevel=4": ("TieredStopAtLevel=1",),
    "-XX:-TieredCompilation": ("TieredStopAtLevel=1",),
    "-Xint": ("TieredStopAtLevel=1",),
    "-XX:SharedArchiveFile=own.jsa": ("SharedArchiveFile",),
    "-Xshare:off": ("SharedArchiveFile",),
    "-XX:AOTCache=own.aot": ("SharedArchiveFile",),
    "-Xlog:gc": ("Xlog:disable",),
    "-verbose:gc": ("Xlog:disable",),
    "-XX:+UseG1GC -Xlog:gc -Xint": ("UseSerialGC", "Xlog:disable", "TieredStopAtLevel=1"),
}


@pytest.mark.parametrize("own", REPLACEMENTS)
@pytest.mark.parametrize("place", ["variable", "arguments", "named file", "configuration", "of Spark"])
def test_own_options_replace_ours_of_the_same_kind(
    environ: dict[str, str], own: str, place: str, tmp_path: Path
) -> None:
    """Wherever the user sets them: two collectors would stop the JVM, and our options stand behind some of his."""
    put_archive(environ)
    line = f"spark.driver.extraJavaOptions  {own}\n"
    match place:
        case "variable":
            environ["JAVA_TOOL_OPTIONS"] = own
        case "arguments":
            environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-java-options '{own}' pyspark-shell"
        case "named file":
            (tmp_path / "own.conf").write_text(line)
            environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {tmp_path / 'own.conf'} pyspark-shell"
        case _:
            folder = tmp_path / "configuration"
            if place == "of Spark":
                folder = Path(environ["SPARK_HOME"], "conf")
            else:
                environ["SPARK_CONF_DIR"] = str(folder)
            folder.mkdir()
            (folder / "spark-defaults.conf").write_text(line)
    texts = " ".join(find_fast_options(environ).texts)
    assert {name for name in OURS if name not in texts} == set(REPLACEMENTS[own])


def test_larger_heap_keeps_the_collector_of_java(environ: dict[str, str]) -> None:
    """The pauses of the serial collector grow with the heap."""
    for name, value in (
        ("PYSPARK_SUBMIT_ARGS", "--driver-memory 32g pyspark-shell"),
        ("PYSPARK_SUBMIT_ARGS", "--conf spark.driver.memory=32g pyspark-shell"),
        ("SPARK_DRIVER_MEMORY", "32g"),
    ):
        texts = find_fast_options({**environ, name: value}).texts
        assert "-XX:+UseSerialGC" not in texts
        assert "-XX:TieredStopAtLevel=1" in texts


def test_use_of_an_archive_is_noted_once_a_day(environ: dict[str, str]) -> None:
    """So the one in use is not removed with those of earlier releases."""
    archive = put_archive(environ)
    os.utime(archive, (1, 1))
    mark_used(archive)
    marked = archive.stat().st_mtime
    assert marked > SECONDS_TO_KEEP
    mark_used(archive)
    assert archive.stat().st_mtime == marked
    mark_used(archive.with_name("gone.jsa"))
