"""Opens the store at a location: a path on a disk, or the URL of a bucket."""

from functools import lru_cache
from pathlib import Path
from typing import Final

from ads_pipeline.lake.storage.disk_store import DiskStore
from ads_pipeline.lake.storage.store import Store

BUCKET_SCHEMES: Final = ("s3://", "gs://", "abfss://")


def is_bucket(location: str) -> bool:
    return location.startswith(BUCKET_SCHEMES)


@lru_cache(maxsize=64)
def open_store(location: str) -> Store:
    """The store at this location. Each process opens a location once. OSError when the location is wrong."""
    if is_bucket(location):
        from ads_pipeline.lake.storage.object_store import ObjectStore  # noqa: PLC0415 - 16 MB that a disk never needs

        return ObjectStore(location)
    return DiskStore(Path(location))
