"""The built wheel: what authors of other event stores install."""

import os
import subprocess
import sys
from pathlib import Path

import ads_pipeline

ROOT = Path(ads_pipeline.__file__).parent.parent
CONFORM = """
import sys
from ads_pipeline.testing import memory_store, run_event_stores
assert memory_store.__file__.startswith(sys.argv[1]), memory_store.__file__
assert "pytest" not in sys.modules
run_event_stores.check_store(memory_store.MemoryEventStore)
print(len(run_event_stores.CHECKS), "checks")
"""


def test_wheel_contains_the_conformance_suite(tmp_path: Path) -> None:
    """A fresh interpreter imports the suite from the wheel and runs it without pytest."""
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, timeout=600)
    (wheel,) = tmp_path.glob("ads_pipeline-*.whl")
    environment = os.environ | {"PYTHONPATH": str(wheel)}
    output = subprocess.run(
        [sys.executable, "-c", CONFORM, str(wheel)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert output.returncode == 0, output.stderr
    assert output.stdout.endswith(" checks\n")
