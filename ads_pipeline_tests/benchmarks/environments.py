"""Environments of the competitors, with the versions that are named here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ads_pipeline_tests.environments import make_environment

PINS: Final[Mapping[str, tuple[str, ...]]] = {
    "arrow": ("deltalake==1.6.6", "pyarrow==26.0.1"),
    "dlt": ("dlt[deltalake,duckdb]==1.31.0", "deltalake==1.6.6", "duckdb==1.5.5", "pyarrow==26.0.1"),
    "spark": ("pyspark==4.3.0",),
    "sqlmesh": ("sqlmesh==0.236.4", "duckdb==1.5.5"),
}


def open_environment(name: str) -> Path:
    """The Python of an environment. Another set of pins gets another folder."""
    return make_environment(name, PINS[name], identity="\n".join(PINS[name]))
