"""One process at a time writes the archive of Spark's classes, and no death of one leaves an archive that harms."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ads_pipeline.operations.doctor.java_and_spark import describe_start
from ads_pipeline.settings.environment import read_settings
from ads_pipeline.spark.class_archive import NOT_MADE, archive_folder, find_archive, find_java_and_spark, name_archive
from ads_pipeline.spark.engine import archive_maker
from ads_pipeline.spark.engine.archive_maker import MIN_FREE_BYTES, SECONDS_TO_KEEP, UNFINISHED
from ads_pipeline.spark.engine_address import UNTIL_STDIN_CLOSES
from ads_pipeline.spark.jvm_options import OWN_VARIABLES
from ads_pipeline_tests.polling import wait_for
from ads_pipeline_tests.spark.servers import build_environment
from ads_pipeline_tests.test_unusual_users import SPARK_SCRIPT, needs_mounts

pytestmark = pytest.mark.timeout(1000)  # a JVM writes an archive twice
SECONDS = 600.0
COMMAND = [sys.executable, "-m", archive_maker.__name__]
DESCRIBE_JVM = """
    maps = open(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read()
    print("mapped", ".jsa" in "".join(line for line in maps.splitlines() if "spark_classes" in line))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An archive that the program has made, and the environment of its user."""

    environ: Mapping[str, str]
    archive: Path
    notes: tuple[str, ...]  # of two programs that ran at once


def variables(caches: Path) -> dict[str, str]:
    """The environment of a user without own options of the JVM."""
    inherited = build_environment()
    kept = {name: value for name, value in inherited.items() if name not in OWN_VARIABLES}
    return kept | {"XDG_CACHE_HOME": str(caches)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """An archive, made after a program and its JVM were killed while they wrote it, and by one of two at once."""
    environ = variables(tmp_path_factory.mktemp("caches"))
    folder = archive_folder(environ)
    assert folder
    with subprocess.Popen(COMMAND, env=environ, start_new_session=True) as killed:
        wait_for(lambda: list(folder.glob(f"{UNFINISHED}*")), SECONDS, is_alive=lambda: killed.poll() is None)
        os.killpg(killed.pid, signal.SIGKILL)
    assert find_archive(environ).problem == NOT_MADE
    both = [subprocess.Popen(COMMAND, env=environ, stderr=subprocess.PIPE, text=True) for _each in range(2)]
    notes = tuple(each.communicate()[1] for each in both)
    assert sorted(each.returncode for each in both) == [0, 1], notes
    archive = find_archive(environ).path
    assert archive
    assert {path.name for path in folder.iterdir()} == {archive_maker.LOCK, archive.name}
    return Made(environ=environ, archive=archive, notes=notes)


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> Made:
    """A copy of the archive, which a test may damage."""
    environ = {**made.environ, "XDG_CACHE_HOME": str(tmp_path)}
    folder = archive_folder(environ)
    assert folder
    folder.mkdir(parents=True, mode=0o700)
    archive = Path(shutil.copyfile(made.archive, folder / made.archive.name))
    return Made(environ=environ, archive=archive, notes=())


def use_spark(environ: Mapping[str, str], **more: str) -> str:
    """The output of a process that starts Spark, counts three rows, and says whether its JVM maps the archive."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-c", SPARK_SCRIPT + DESCRIBE_JVM, home],
            env={**environ, "ADS_PIPELINE_LOG": "text", **more},
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "rows 3" in done.stdout
    return done.stdout


def test_jvm_of_a_session_maps_the_archive(made: Made) -> None:
    """Its owner alone may read the folder, and a second program finds it."""
    assert "mapped True" in use_spark(made.environ)
    assert made.archive.parent.stat().st_mode & 0o077 == 0
    assert sum("another process makes it" in note for note in made.notes) == 1


def test_changed_archive_does_not_kill_the_jvm(copied: Made) -> None:
    """It has its full size, so only the JVM itself can find the change."""
    with copied.archive.open("r+b") as file:
        file.seek(copied.archive.stat().st_size // 2)
        file.write(b"changed")
    assert find_archive(copied.environ).path == copied.archive
    assert "mapped False" in use_spark(copied.environ)


def test_jvm_that_ends_at_its_start_is_started_without_our_options(copied: Made, tmp_path: Path) -> None:
    """Here a file that only Java reads names a second collector. The archive is removed: it may be the cause."""
    (tmp_path / "options").write_text("-XX:+UseParallelGC\n")
    assert "mapped False" in use_spark(copied.environ, JDK_JAVA_OPTIONS=f"@{tmp_path / 'options'}")
    assert find_archive(copied.environ).problem == NOT_MADE


def test_archives_that_nobody_has_used_for_a_month_are_removed(copied: Made) -> None:
    """An archive of an earlier release has another digest. That of today stays, and is not written again."""
    old, recent = (copied.archive.with_name(name_archive(digest, 3)) for digest in ("0ld", "recent"))
    for path in (old, recent):
        path.write_bytes(b"old")
    os.utime(old, (1, copied.archive.stat().st_mtime - SECONDS_TO_KEEP))
    before = copied.archive.stat()
    subprocess.run(COMMAND, env=dict(copied.environ), check=True)
    assert not old.exists()
    assert recent.exists()
    assert copied.archive.stat() == before


def test_program_ends_with_its_engine(tmp_path: Path) -> None:
    """Its standard input closes when the engine dies in any way."""
    command = [*COMMAND, UNTIL_STDIN_CLOSES]
    with subprocess.Popen(command, env=variables(tmp_path), stdin=subprocess.PIPE) as program:
        wait_for((tmp_path / "ads_pipeline").exists, SECONDS, is_alive=lambda: program.poll() is None)
        assert os.getpriority(os.PRIO_PROCESS, program.pid) == archive_maker.LOWEST_PRIORITY
        assert program.stdin
        program.stdin.close()
        assert program.wait(60) == 1


@pytest.fixture
def refusals(tmp_path: Path) -> dict[str, str]:
    return variables(tmp_path / "caches")


def find_refusal(environ: Mapping[str, str], *wrapper: str) -> str:
    """The message of a program that makes no archive and starts no JVM."""
    done = subprocess.run(
        [*wrapper, *COMMAND], env=dict(environ), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    return done.stderr


@needs_mounts
def test_disk_without_room_is_left_alone(refusals: dict[str, str]) -> None:
    """Nothing is written to a disk that an archive might fill."""
    caches = Path(refusals["XDG_CACHE_HOME"])
    caches.mkdir()
    mount = f'mount -t tmpfs -o size={MIN_FREE_BYTES // 2} none "$0" && exec "$@"'
    assert "less than 1024 MiB free" in find_refusal(refusals, "unshare", "-m", "sh", "-c", mount, str(caches))


@needs_mounts
def test_folder_on_a_read_only_disk_has_no_archive(refusals: dict[str, str]) -> None:
    """As in a container whose root cannot be written."""
    caches = Path(refusals["XDG_CACHE_HOME"])
    caches.mkdir()
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    assert "Read-only file system" in find_refusal(refusals, "unshare", "-m", "sh", "-c", mount, str(caches))


def test_folder_that_others_can_write_to_is_refused(refusals: dict[str, str]) -> None:
    """The program does not correct it either: somebody may have put files there."""
    folder = archive_folder(refusals)
    assert folder
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert f"other users can write to {folder}" in find_refusal(refusals)


def test_user_without_a_home_has_no_archive(refusals: dict[str, str]) -> None:
    """There is no other folder that only this user can write to and that stays."""
    del refusals["XDG_CACHE_HOME"]
    assert "no folder for caches" in find_refusal(refusals | {"HOME": ""})


def test_java_that_writes_no_archive_is_tried_once(refusals: dict[str, str]) -> None:
    """An empty file in place of the archive says so."""
    folder, programs = archive_folder(refusals), find_java_and_spark(refusals)
    assert folder
    assert programs
    folder.mkdir(mode=0o700, parents=True)
    (folder / name_archive(programs.digest(), 0)).touch()
    assert "this Java writes none" in find_refusal(refusals)


def test_doctor_says_whether_java_uses_the_archive(made: Made, tmp_path: Path) -> None:
    """Java itself is asked: it compares the class path, where a folder of Spark's configuration stands first."""
    settings = read_settings({"ADS_PIPELINE_HOME": str(tmp_path), "ADS_PIPELINE_SPARK": "local[2]"})
    assert describe_start(settings, made.environ) == "Spark can start, and Java uses the archive of its classes"
    (tmp_path / "spark-defaults.conf").touch()
    configured = describe_start(settings, {**made.environ, "SPARK_CONF_DIR": str(tmp_path)})
    assert "does not use its archive: shared class paths mismatch" in configured
    replaced = describe_start(settings, {**made.environ, "JAVA_TOOL_OPTIONS": "-Xshare:off"})
    assert "your options replace its archive" in replaced
    elsewhere = describe_start(settings, {**made.environ, "XDG_CACHE_HOME": str(tmp_path)})
    assert NOT_MADE in elsewhere
