"""DuckDB connections that can read the files of a warehouse, on a disk or in a bucket."""

from typing import Any

import duckdb

from ads_pipeline.storage.open_store import is_bucket


def connect_to_files(location: str, **config: str | bool | float | list[str]) -> duckdb.DuckDBPyConnection:
    """A connection in which read_parquet opens the files of the warehouse at this location."""
    connection = duckdb.connect(config=config)
    if is_bucket(location):
        from obstore.fsspec import FsspecStore  # noqa: PLC0415 - a disk needs none

        scheme: Any = location.partition(":")[0]
        connection.register_filesystem(FsspecStore(scheme))
    return connection
