"""The demo in a fresh checkout."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ads_pipeline.settings import read_settings

ROOT = Path(__file__).parents[2]


def test_demo_prints_rejections_gaps_and_rows(tmp_path: Path) -> None:
    """Two partitions are rejected with a reason, one is missing, and four customers are readable. A second run on the
    same day prints the same. The partitions in Dagster begin at the week, and the report is written."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ADS_", "DAGSTER_"))}
    environment |= {"ADS_PIPELINE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "ADS_PIPELINE_SPARK": "local[2]"}
    first, second = (_run_demo(environment) for _time in range(2))
    for text in (
        "1 of 28 partitions are not readable",
        "all partitions are readable",
        "cost_micros must be at least 0 in 1 row",
        "the payload has 4 rows, the seal says 6",
        "2 partitions: 2 failed",
        "3 of 84 expected partitions missing",
        "4 rows",
    ):
        assert text in first
    # The day without a run is yesterday, which is not yet due in the morning.
    assert re.search(r"campaign_daily, \d+ s: (1 of 27|2 of 28) partitions are not readable", first)
    assert _results(first) == _results(second)
    assert all(len(line) <= 80 for line in _results(first))
    start_date = read_settings({"ADS_PIPELINE_HOME": str(tmp_path)}).google_apis.start_date
    assert start_date in {datetime.now(UTC).date() - timedelta(days=days) for days in (7, 8)}  # midnight may pass
    assert (tmp_path / "report.html").is_file()


def _run_demo(environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", "from ads_pipeline.cli.main import main; main()", "demo"]
    process = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def _results(output: str) -> list[str]:
    return output.partition("Rejected partitions")[2].splitlines()[1:]
