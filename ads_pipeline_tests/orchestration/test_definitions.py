"""The code location, loaded by Dagster itself."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_dagster_loads_the_workspace(tmp_path: Path) -> None:
    """Dagster accepts the code location of `workspace.yaml`."""
    process = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", str(ROOT / "workspace.yaml")],
        cwd=ROOT,
        env=os.environ | {"DAGSTER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr
    assert "All code locations passed validation" in process.stdout + process.stderr
