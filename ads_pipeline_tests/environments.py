"""Python environments beside the tests' own, for packages of other versions. Made on first use in a cache."""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uv

READY: Final = "ready"


def make_environment(name: str, requirements: Sequence[str | Path], *, identity: str) -> Path:
    """The Python of an environment. `requirements` are arguments of `uv pip install`.

    Another identity, or another Python, gets another folder. Of several processes, one installs and the others wait.
    """
    digest = hashlib.sha256(f"{sys.version}\n{identity}".encode()).hexdigest()[:12]
    folder = _cache_folder() / f"{name}-{digest}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / READY).exists():
            print(f"installing {' '.join(map(str, requirements))} into {folder}", flush=True)
            command = uv.find_uv_bin()
            subprocess.run([command, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
            subprocess.run([command, "pip", "install", "--quiet", "--python", python, *requirements], check=True)
            (folder / READY).touch()
    return python


def _cache_folder() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "ads_pipeline_environments"
