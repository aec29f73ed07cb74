"""A code location in a home of its own, for tests that need no other one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ads_pipeline_tests.orchestration.builders import Location, open_location


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession) -> Iterator[Location]:
    with open_location(tmp_path / "home", spark) as opened:
        yield opened
