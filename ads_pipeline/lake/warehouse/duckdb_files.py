"""DuckDB connections that can read the files of a warehouse, on a disk or in a bucket."""

import os
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final

import duckdb

from ads_pipeline.lake.storage.open_store import is_bucket, open_store

_NEVER_CHANGED: Final = datetime(2000, 1, 1, tzinfo=UTC)


def connect_to_files(location: str, **config: str | bool | float | list[str]) -> duckdb.DuckDBPyConnection:
    """A connection in which read_parquet opens the files of the warehouse at this location.

    In a bucket, DuckDB reads them through the store. So it holds no credentials, and the store repeats what failed.
    """
    connection = duckdb.connect(config=config)
    if is_bucket(location):
        connection.register_filesystem(_open_filesystem(location))
    return connection


def _open_filesystem(location: str) -> Any:
    from fsspec import AbstractFileSystem  # noqa: PLC0415 - a disk needs none

    store, scheme = open_store(location), location.partition("://")[0]
    sizes: dict[str, int] = {}

    class StoreFiles(AbstractFileSystem):  # type: ignore[misc] # fsspec ships no types
        """The data files for DuckDB. They never change, and each is opened before anything is asked."""

        protocol = scheme
        cachable = False

        def glob(self, path: str, **_options: Any) -> list[str]:
            return [path]

        def open(self, path: str, mode: str = "rb", **_options: Any) -> BinaryIO:
            if mode != "rb":
                raise PermissionError("the files of a warehouse are only read")
            file = store.open(path.removeprefix(f"{location}/"))
            sizes[path] = file.seek(0, os.SEEK_END)
            file.seek(0)
            return file

        def size(self, path: str) -> int:
            return sizes[path]

        def modified(self, _path: str) -> datetime:
            return _NEVER_CHANGED

    return StoreFiles()
