"""Finds the damaged file of a table's log after the table could not be opened, and says how to do without it.

The log has an entry for each version. A checkpoint replaces all entries up to its version, and `_last_checkpoint`
names the newest one.
"""

import io
import json
import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ads_pipeline.domain.errors import LogDamaged
from ads_pipeline.domain.quoting import printable
from ads_pipeline.lake.warehouse.table_values import WarehouseTable

_LAST_CHECKPOINT: Final = "_last_checkpoint"
_ENTRY: Final = re.compile(r"([0-9]{20})\.json", re.ASCII)
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint\.parquet", re.ASCII)


def find_log_damage(table: WarehouseTable, folder: str) -> LogDamaged | None:
    """The first damaged file below the folder of the log, or None. OSError when the store does not answer."""
    names = [file.name.removeprefix(f"{folder}/") for file in table.store.list(folder)]
    entries = {int(match[1]): name for name in names if (match := _ENTRY.fullmatch(name))}
    checkpoints = {int(match[1]): name for name in names if (match := _CHECKPOINT.fullmatch(name))}
    return next(_find(table, folder, entries, checkpoints), None)


def _find(
    table: WarehouseTable, folder: str, entries: dict[int, str], checkpoints: dict[int, str]
) -> Iterator[LogDamaged]:
    newest, last = max(checkpoints, default=-1), max(entries, default=-1)
    missing = [version for version in range(newest + 1, last + 1) if version not in entries]
    damaged = [
        version
        for version in range(newest + 1, last + 1)
        if version in entries and not _is_entry(table, f"{folder}/{entries[version]}")
    ]
    for version in sorted({*missing, *damaged}):
        name, problem = f"{version:020}.json", "is missing" if version in missing else "is cut or damaged"
        advice = _drop_newest(table, folder, name) if damaged == [last] and not missing else _rebuild(table)
        yield LogDamaged(str(table), f"{folder}/{name}", problem, advice)
    complete = all(version in entries for version in range(last + 1)) and last >= newest
    if newest >= 0 and not _is_parquet(table, f"{folder}/{checkpoints[newest]}"):
        advice = _drop_checkpoint(table, folder, checkpoints[newest]) if complete else _rebuild(table)
        yield LogDamaged(str(table), f"{folder}/{checkpoints[newest]}", "is cut or damaged", advice)
    if newest < 0 and table.store.head(f"{folder}/{_LAST_CHECKPOINT}") is not None:
        advice = f"delete {_uri(table, folder, _LAST_CHECKPOINT)}" if complete else _rebuild(table)
        yield LogDamaged(str(table), f"{folder}/{_LAST_CHECKPOINT}", "names a checkpoint that is missing", advice)


def _drop_newest(table: WarehouseTable, folder: str, name: str) -> str:
    again = f"{_reconcile(table)} loads again what it had added"
    return f"delete {_uri(table, folder, name)}; {again}"


def _drop_checkpoint(table: WarehouseTable, folder: str, name: str) -> str:
    both = f"{_uri(table, folder, name)} and {_uri(table, folder, _LAST_CHECKPOINT)}"
    return f"delete {both}; the log is complete without them"


def _rebuild(table: WarehouseTable) -> str:
    return f"move {printable(table.uri)} away; {_reconcile(table)} loads the table again from raw"


def _reconcile(table: WarehouseTable) -> str:
    return f"ads-pipeline reconcile --query {table.query_name}"


def _uri(table: WarehouseTable, folder: str, name: str) -> str:
    return printable(f"{table.location}/{folder}/{name}")


def _is_entry(table: WarehouseTable, name: str) -> bool:
    try:
        lines = [line for line in table.store.read(name).split(b"\n") if line.strip()]
        return all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False


def _is_parquet(table: WarehouseTable, name: str) -> bool:
    content = io.BytesIO(table.store.read(name))
    try:
        pq.read_table(content)
    except (pa.ArrowException, OSError, ValueError):
        return False
    return True
