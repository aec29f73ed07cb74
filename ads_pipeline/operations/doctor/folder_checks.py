"""Checks of the home and of the lake: they exist, can be used, have room, and are not readable by everybody."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ads_pipeline.lake.storage.open_store import is_bucket, open_store
from ads_pipeline.operations.doctor.examination import (
    Deployment,
    Finding,
    make_error,
    make_warning,
    quote_path,
)

_FOLDERS: Final = ("raw", "warehouse")
_PRIVATE: Final = (*_FOLDERS, "dagster", "ledger.db", "partition_status.parquet")


def check_home(deployment: Deployment) -> Iterator[Finding]:
    """Check that this user can use the directories, that nobody else can, and that the disk has free space."""
    yield from _check_folder(deployment, deployment.settings.home, "ADS_PIPELINE_HOME")


def check_lake(deployment: Deployment) -> Iterator[Finding]:
    """Check that the lake can be used: a folder like the home, or a bucket that never overwrites by `create`."""
    lake = deployment.settings.lake
    if not is_bucket(lake):
        if lake != str(deployment.settings.home):
            yield from _check_folder(deployment, Path(lake), "ADS_PIPELINE_LAKE")
        return
    try:
        open_store(lake).require_exclusive_create()
    except OSError as error:
        step = "correct ADS_PIPELINE_LAKE, or the credentials and the endpoint in the environment"
        yield make_error(lake, str(error.strerror), step)


def _check_folder(deployment: Deployment, top: Path, variable: str) -> Iterator[Finding]:
    if not top.is_dir():
        yield make_error(top, "it is not a directory", f"create it, or correct {variable}")
        return
    for folder in (top, *(top / name for name in _FOLDERS if (top / name).exists())):
        if not folder.is_dir():
            yield make_error(folder, "it is not a directory", "move it away")
            continue
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            step = "mount it writable where runs and commands that change something are executed"
            yield make_error(folder, "it is on a read-only file system, so it can only be read", step)
        elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            yield make_error(folder, "this user cannot read and write it", f"chmod u+rwx {quote_path(folder)}")
        if folder.stat().st_mode & stat.S_IWOTH:
            yield make_warning(folder, "every local user can write to it", f"chmod o-w {quote_path(folder)}")
    yield from _find_readable_by_all(top, access_by_umask=deployment.settings.access_by_umask)
    free = shutil.disk_usage(top).free
    if free < deployment.min_free_bytes:
        step = "free disk space; the schedule maintenance deletes unneeded files"
        yield make_error(top, f"only {free / (1 << 20):,.0f} MiB of disk space are free", step)


def _find_readable_by_all(top: Path, *, access_by_umask: bool) -> Iterator[Finding]:
    """Files that every local user can read, as earlier releases and users created them."""
    if access_by_umask or not top.stat().st_mode & stat.S_IXOTH:
        return
    for path in (top / name for name in _PRIVATE):
        if path.exists() and path.stat().st_mode & stat.S_IROTH:
            step = f"chmod -R o-rwx {quote_path(path)}, or set ADS_PIPELINE_FILE_ACCESS=umask"
            yield make_warning(path, "every local user can read it", step)
