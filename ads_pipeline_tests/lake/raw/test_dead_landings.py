"""Directories of landings that died: they are removed once nothing was written to them for a week."""

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from ads_pipeline.domain.errors import UnsafePath
from ads_pipeline.lake.raw.landing import UNSEALED_KEPT, RawRuns
from ads_pipeline.lake.raw.seal import METADATA
from ads_pipeline_tests.builders import ROWS, key, run, seal_facts

WEEK_AND_HOUR = UNSEALED_KEPT + timedelta(hours=1)


def leave_landing(raw: RawRuns, run_id: str) -> Path:
    """What a process leaves that is killed while it lands a run."""
    with raw.landing(run(run_id)) as landing:
        landing.write(ROWS[0])
        (directory,) = raw.root.glob(f"{key().path}/_tmp.{run_id}.*")
        return Path(shutil.copytree(directory, directory.with_name(f"_tmp.{run_id}.dead")))


def make_older(directory: Path, by: timedelta) -> None:
    for path in (*directory.rglob("*"), directory):
        written_at = path.stat().st_mtime - by.total_seconds()
        os.utime(path, (written_at, written_at))


@pytest.mark.invariant("L6")
def test_directory_of_a_dead_landing_is_removed_after_a_week(tmp_path: Path) -> None:
    """A directory without a seal is removed a week after its last write. Newer ones and sealed runs stay."""
    raw = RawRuns(tmp_path)
    seal = raw.land(run("sealed"), ROWS, seal_facts())
    sealed = tmp_path / seal.run.path
    dead, young, writing = (leave_landing(raw, name) for name in ("dead", "young", "writing"))
    for directory in (sealed, dead, writing):
        make_older(directory, WEEK_AND_HOUR)
    payload = next(writing.iterdir())
    os.utime(payload)  # a long landing that still writes rows
    assert list(raw.remove_unsealed()) == [dead.relative_to(tmp_path).as_posix()]
    assert (sealed / METADATA).exists()
    assert (dead.exists(), young.exists(), writing.exists()) == (False, True, True)
    assert list(raw.remove_unsealed()) == []


def test_removal_follows_no_symbolic_link(tmp_path: Path) -> None:
    """A link in place of a folder is refused, so that nothing outside the raw root is removed."""
    elsewhere = RawRuns(tmp_path / "elsewhere")
    directory = leave_landing(elsewhere, "dead")
    make_older(directory, WEEK_AND_HOUR)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / key().source).symlink_to(tmp_path / "elsewhere" / key().source)
    with pytest.raises(UnsafePath):
        list(RawRuns(tmp_path / "raw").remove_unsealed())
    assert directory.exists()


def test_missing_root_has_nothing_to_remove(tmp_path: Path) -> None:
    """Maintenance before the first run finds no raw root, and goes on."""
    assert list(RawRuns(tmp_path / "raw").remove_unsealed()) == []
