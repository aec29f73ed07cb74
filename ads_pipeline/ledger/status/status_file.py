"""Writes the `partition_status` rows to a Parquet file for other tools."""

import tempfile
from collections.abc import Iterable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.days.materialization_status import PartitionStatus
from ads_pipeline.domain.errors import StatusFileUnavailable
from ads_pipeline.lake.storage.durable_files import atomic_write, make_durable_directories
from ads_pipeline.lake.storage.open_store import is_bucket, open_store
from ads_pipeline.lake.storage.store import Store

_TEXT, _INSTANT = pa.string(), pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("tenant_id", _TEXT, nullable=False),
        pa.field("workspace_id", _TEXT, nullable=False),
        pa.field("asset_key", _TEXT, nullable=False),
        pa.field("partition_key", _TEXT, nullable=False),
        pa.field("last_materialization_run_id", _TEXT),
        pa.field("last_materialization_at", _INSTANT),
        pa.field("last_materialization_code_version", _TEXT),
        pa.field("last_attempt_run_id", _TEXT),
        pa.field("last_attempt_at", _INSTANT),
        pa.field("last_attempt_outcome", _TEXT),
        pa.field("stale_since", _INSTANT),
        pa.field("stale_reason_code", _TEXT),
        pa.field("partition_values", pa.map_(_TEXT, _TEXT), nullable=False),
        pa.field("row_version", _TEXT, nullable=False),
    ]
)
ROWS_PER_BATCH: Final = 20_000


def write_status_file(statuses: Iterable[PartitionStatus], location: str | Path) -> int:
    """Replace the file atomically and return the number of rows. Raises StatusFileUnavailable for an OSError.

    The location is a path, or one in a bucket.
    """
    folder, _, name = str(location).rpartition("/")
    try:
        if is_bucket(folder):
            return _put(statuses, open_store(folder), name)
        make_durable_directories(Path(folder))
        with atomic_write(Path(location)) as file:
            return _write(statuses, file)
    except OSError as error:
        raise StatusFileUnavailable(f"{name}: {error.strerror or type(error).__name__}") from error


def _put(statuses: Iterable[PartitionStatus], store: Store, name: str) -> int:
    with tempfile.TemporaryFile() as spool:
        written = _write(statuses, spool)
        spool.flush()
        with mmap(spool.fileno(), 0, access=ACCESS_READ) as content:
            store.replace(name, content)
    return written


def _write(statuses: Iterable[PartitionStatus], file: object) -> int:
    written = 0
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for batch in split_batches(map(_encode_row, statuses), ROWS_PER_BATCH):
            writer.write_table(pa.Table.from_pylist(batch, schema=SCHEMA))
            written += len(batch)
    return written


def _encode_row(status: PartitionStatus) -> dict[str, object]:
    row = {name: getattr(status, name) for name in SCHEMA.names}
    return row | {"partition_values": list(status.partition_values.items())}
