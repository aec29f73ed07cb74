"""The public interface: what users import lands, reports and reads; the examples run; importing it costs nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ads_pipeline import api
from ads_pipeline.domain.errors import BadName, RunExists
from ads_pipeline.domain.partition import parse_key
from ads_pipeline_tests.pipeline.builders import open_deployment

EXAMPLES = Path(__file__).parents[1] / "examples"
DAY = "1180250317/campaign_daily/2026-03-01"
DOCUMENTED = {
    path.name: path.read_text() for path in (*Path(__file__).parents[1].glob("docs/*.md"), *EXAMPLES.glob("*.py"))
}


@pytest.fixture
def settings(tmp_path: Path) -> api.Settings:
    return api.read_settings({"ADS_PIPELINE_HOME": str(tmp_path / "home")})


def run_example(settings: api.Settings, name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env=os.environ | {"ADS_PIPELINE_HOME": str(settings.home)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout


def test_examples_land_and_read_a_day(settings: api.Settings, spark: SparkSession) -> None:
    """What the example of an extractor seals passes the contract, and the example of a reader shows it."""
    assert run_example(settings, "own_extractor.py", "1180250317", "2026-03-01").startswith("sealed 1 rows")
    with open_deployment(settings.home, spark, settings.database_url) as deployment:
        seals = deployment.raw.list_runs(parse_key(f"google_ads/{DAY}"))
        judged, _loaded = deployment.pipeline.judge_and_load(
            [seal.run for seal in seals if isinstance(seal, api.SealedRun)]
        )
    assert [result.state.status for result in judged.recorded] == ["success"]
    assert run_example(settings, "read_warehouse.py").splitlines()[1].split() == ["1180250317", "1", "4.50", "EUR"]


def test_run_is_landed_once(settings: api.Settings) -> None:
    """A sealed run is never replaced, and a name that breaks its rule lands nothing."""
    assert api.land(DAY, [{"date": "2026-03-01"}], run_id="r1", settings=settings).record_count == 1
    with pytest.raises(RunExists):
        api.land(DAY, [], run_id="r1", settings=settings)
    with pytest.raises(BadName):
        api.land("118-025-0317/campaign_daily/2026-03-01", [], run_id="r1", settings=settings)


def test_failure_is_reported_once(settings: api.Settings) -> None:
    """A failure that is reported again changes nothing."""
    reports = [
        api.report_failure(DAY, error_class="timeout", message="no answer", failure_id="f1", settings=settings)
        for _attempt in range(2)
    ]
    assert reports == [True, False]


def test_import_of_the_interface_loads_nothing() -> None:
    """The module itself costs no time: neither a library nor another module of the package is loaded."""
    script = "import sys, ads_pipeline.api; print(*sorted(m for m in sys.modules if m.startswith('ads_pipeline')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ads_pipeline", "ads_pipeline.api"]


def test_every_public_name_resolves() -> None:
    """Each name of the interface exists, and an unknown one is refused as usual."""
    assert [name for name in api.__all__ if not hasattr(api, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'Ledger'"):
        _ = api.Ledger


def test_documents_import_only_the_interface() -> None:
    """Pages and examples import the interface, and `ads_pipeline.testing` for authors of event stores."""
    imported = {
        line.split()[1]
        for text in DOCUMENTED.values()
        for line in text.splitlines()
        if line.startswith(("from ads_pipeline", "import ads_pipeline"))
    }
    assert {name for name in imported if not name.startswith("ads_pipeline.testing.")} == {"ads_pipeline.api"}
