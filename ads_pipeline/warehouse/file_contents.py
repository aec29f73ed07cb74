"""Counts and digests the rows of Parquet files, slice by slice, without a cluster.

Two readings of the same rows give the same answer whatever their order and however they lie in files, so what was
carried from one file to another can be held against what it was.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date

import duckdb
import pyarrow.parquet as pq

from ads_pipeline.warehouse.columns import TableColumn
from ads_pipeline.warehouse.values import DATE, KEYS, Content, Slice

_NOTHING = "NULL"


def read_contents(
    paths: Sequence[str], columns: Iterable[TableColumn], *, days: tuple[date, date] | None = None
) -> dict[Slice, Content]:
    """What the files hold, by partition, run and schema version; the digest covers these columns, if any."""
    if not paths:
        return {}
    present = {name for path in paths for name in pq.read_schema(path).names} | {DATE}
    digested = ", ".join(
        _quoted(column.name) if column.name in present else _NOTHING for column in columns if column.name != DATE
    )
    digest = f"sum(hash({digested})::HUGEINT)" if digested else "0"
    keys = ", ".join((KEYS[0], f"{DATE}::DATE AS {DATE}", *KEYS[1:]))
    query = (
        f"SELECT {keys}, count(*), {digest} "  # noqa: S608 - names of our own table, quoted
        "FROM read_parquet($paths, hive_partitioning = true, hive_types_autocast = false, union_by_name = true) "
        f"WHERE {DATE}::DATE BETWEEN $since AND $until GROUP BY ALL"
    )
    since, until = days or (date.min, date.max)
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        found = connection.execute(query, {"paths": list(paths), "since": since, "until": until}).fetchall()
    return {Slice(*key): Content(rows=rows, digest=int(digest)) for *key, rows, digest in found}


def by_partition(contents: Mapping[Slice, Content]) -> dict[tuple[str, date], list[tuple[Slice, Content]]]:
    """The slices of each partition; more than one only where a foreign writer mixed runs."""
    grouped: dict[tuple[str, date], list[tuple[Slice, Content]]] = {}
    for each, content in contents.items():
        grouped.setdefault((each.customer_id, each.day), []).append((each, content))
    return grouped


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
