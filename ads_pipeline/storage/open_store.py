"""Opens the store at a location: a path on a disk, or the URL of a bucket."""

from functools import lru_cache
from pathlib import Path

from ads_pipeline.storage.disk_store import DiskStore
from ads_pipeline.storage.store import Store


@lru_cache(maxsize=64)
def open_store(location: str) -> Store:
    """The store at this location. Each process opens a location once."""
    return DiskStore(Path(location))
