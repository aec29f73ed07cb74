"""Publishes the rows of `partition_status` as one Parquet file that any tool can read; old or new, never half.

Where the rows come from is the caller's business.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ads_pipeline.domain.freshness import PartitionStatus
from ads_pipeline.errors import StatusFileUnavailable
from ads_pipeline.storage.atomic_files import written_whole

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
AT_ONCE: Final = 20_000


def publish(statuses: Iterable[PartitionStatus], path: Path) -> int:
    """Write the rows beside the file and put them in its place in one step; how many they are."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as file:
            return _write(statuses, file)
    except OSError as error:
        raise StatusFileUnavailable(path.name, error.strerror or type(error).__name__) from error


def _write(statuses: Iterable[PartitionStatus], file: object) -> int:
    written = 0
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for some in _portions(statuses):
            writer.write_table(pa.Table.from_pylist([_row(each) for each in some], schema=SCHEMA))
            written += len(some)
    return written


def _row(status: PartitionStatus) -> dict[str, object]:
    row = {name: getattr(status, name) for name in SCHEMA.names}
    return row | {"partition_values": list(status.partition_values.items())}


def _portions(statuses: Iterable[PartitionStatus]) -> Iterator[list[PartitionStatus]]:
    rest = iter(statuses)
    while some := list(islice(rest, AT_ONCE)):
        yield some
