"""The two demos before anything runs: a home that is in use for something else is refused."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from ads_pipeline.query_file import DEFAULT_QUERIES_FILE, narrow_query_file
from ads_pipeline_tests.cli.running import CommandLine


@pytest.mark.parametrize("arguments", [(), ("--google-ads",)], ids=["plain", "google-ads"])
def test_home_with_another_query_file_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Dagster has no partitions before the file's first day. Nothing is written, and the way out is named."""
    query_file = tmp_path / DEFAULT_QUERIES_FILE.name
    query_file.write_text(narrow_query_file(datetime.now(UTC).date(), ["campaign_daily"]))
    result = CommandLine(home=tmp_path).run("demo", *arguments)
    assert result.code == 64
    assert f"{query_file} does not fit the demo" in result.err
    assert "ADS_PIPELINE_HOME" in result.err
    assert list(tmp_path.iterdir()) == [query_file]
