"""Measures the CPU time of starts as ratios to `import dagster`, which every process of Dagster pays."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ads_pipeline.ledger.sql import database
from ads_pipeline_tests.benchmarks.ratios import Ratio, compare

ROUNDS = 7
CLI = "from ads_pipeline.operations.cli.main import main; main()"
LOAD = "from ads_pipeline.definitions import defs; defs()"


def measure() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        with database.open_checked_engine(f"sqlite:///{home / 'ledger.db'}"):
            pass
        yield _compare(home, "python -c pass", "pass", required=None)
        yield _compare(home, "ads-pipeline --help", CLI, "--help", required=1 / 0.7)
        yield _compare(home, "ads-pipeline state inspect", CLI, "state", "inspect", required=1 / 1.25)
        yield _compare(home, "loading the definitions", LOAD, required=1 / 2.6)


def _compare(home: Path, name: str, code: str, *arguments: str, required: float | None) -> Ratio:
    return compare(
        name,
        lambda _number: _start(home, code, *arguments),
        lambda _number: _start(home, "import dagster"),
        baseline_name="import dagster",
        rounds=ROUNDS,
        required=required,
        cpu=True,
    )


def _start(home: Path, code: str, *arguments: str) -> None:
    environment = os.environ | {"ADS_PIPELINE_HOME": str(home)}
    subprocess.run([sys.executable, "-c", code, *arguments], env=environment, check=True, capture_output=True)
