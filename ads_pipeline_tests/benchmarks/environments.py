"""Environments of the competitors: made on first use in a cache folder, with the versions that are named here."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import uv

PINS: Final[Mapping[str, tuple[str, ...]]] = {
    "arrow": ("deltalake==1.6.6", "pyarrow==26.0.1"),
    "dlt": ("dlt[deltalake,duckdb]==1.31.0", "deltalake==1.6.6", "duckdb==1.5.5", "pyarrow==26.0.1"),
    "spark": ("pyspark==4.3.0",),
    "sqlmesh": ("sqlmesh==0.236.4", "duckdb==1.5.5"),
}
READY: Final = "ready"


def open_environment(name: str) -> Path:
    """The Python of an environment. Another set of pins, or another Python, gets another folder."""
    identity = "\n".join((sys.version, *PINS[name]))
    folder = _cache_folder() / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if not (folder / READY).exists():
        print(f"installing {', '.join(PINS[name])} into {folder}", flush=True)
        uv_command = uv.find_uv_bin()
        subprocess.run([uv_command, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
        subprocess.run([uv_command, "pip", "install", "--quiet", "--python", python, *PINS[name]], check=True)
        (folder / READY).touch()
    return python


def _cache_folder() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "ads_pipeline_benchmarks"
