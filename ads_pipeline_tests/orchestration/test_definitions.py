"""The code location, as Dagster itself loads it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_dagster_loads_the_workspace(tmp_path: Path) -> None:
    """The workspace file names a code location that Dagster finds valid."""
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", str(ROOT / "workspace.yaml")],
        cwd=ROOT,
        env=os.environ | {"DAGSTER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "All code locations passed validation" in done.stdout + done.stderr
