"""How a Spark session is chosen from the settings."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ads_pipeline.domain.errors import BadSettings
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline.spark.session import start_spark


def settings_for(home: Path, spark: str) -> Settings:
    return read_settings({"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": spark})


def test_own_function_returns_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting module:function is called, and the Python of the workers is left to it."""
    (tmp_path / "our_sessions.py").write_text("def build():\n    return 'our session'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert start_spark(settings_for(tmp_path, "our_sessions:build")) == "our session"  # type: ignore[comparison-overlap]
    assert "PYSPARK_PYTHON" not in os.environ


@pytest.mark.parametrize("spark", ["no_such_module_of_ours:build", "json:no_such_function"])
def test_missing_function_is_refused_without_its_name(tmp_path: Path, spark: str) -> None:
    """The message names the setting. It does not repeat the value, which may be a secret set by mistake."""
    with pytest.raises(BadSettings, match="ADS_PIPELINE_SPARK: names no function that can be imported") as error:
        start_spark(replace(settings_for(tmp_path, "local[2]"), spark=spark))
    assert spark not in str(error.value)
