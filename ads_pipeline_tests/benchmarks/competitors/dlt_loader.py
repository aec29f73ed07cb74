"""dlt merges JSON lines: into DuckDB by deleting whole partitions, into Delta by an upsert of rows.

It reads the payloads with its own reader of JSON lines, as its documentation shows, or gets them as one Arrow table.
"""

import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"RUNTIME__DLTHUB_TELEMETRY": "false", "RUNTIME__LOG_LEVEL": "ERROR"}  # dlt reads them on import

import dlt
import duckdb
from deltalake import DeltaTable
from dlt.sources.filesystem import filesystem, read_jsonl
from pyarrow import compute as pc

from ads_pipeline_tests.benchmarks.competitors.payload_table import read_table
from ads_pipeline_tests.benchmarks.competitors.serving import Batch, serve

TABLE = "campaign_daily"
COLUMNS: dict[str, Any] = {"date": {"data_type": "date", "partition": True}}


class DltLoader:
    def __init__(self, destination: str, reader: str) -> None:
        self._to_delta, self._from_arrow = destination == "delta", reader == "arrow"

    def load(self, batch: Batch) -> None:
        pipeline = dlt.pipeline(
            "benchmark",
            pipelines_dir=str(batch.home / "pipelines"),
            destination=self._find_destination(batch.home),
            dataset_name="ads",
        )
        # Without this option dlt inserts rows as text, which takes three times as long. Delta has it anyway.
        pipeline.run(self._find_rows(batch), loader_file_format="parquet").raise_on_failed_jobs()

    def read_totals(self, home: Path) -> tuple[int, int]:
        if self._to_delta:
            clicks = DeltaTable(str(home / "delta" / "ads" / TABLE)).to_pyarrow_table(columns=["clicks"])["clicks"]
            return len(clicks), pc.sum(clicks).as_py()
        with duckdb.connect(str(home / "merged.duckdb"), read_only=True) as connection:
            rows = connection.execute(f"SELECT count(*), sum(clicks) FROM ads.{TABLE}").fetchone()
        assert rows is not None
        return rows[0], rows[1]

    def _find_destination(self, home: Path) -> Any:
        if self._to_delta:
            return dlt.destinations.filesystem(bucket_url=str(home / "delta"))
        return dlt.destinations.duckdb(str(home / "merged.duckdb"))

    def _find_rows(self, batch: Batch) -> Any:
        rows = (
            dlt.resource([read_table(batch.payloads)], name=TABLE)
            if self._from_arrow
            else (filesystem(bucket_url=batch.root, file_glob=_find_glob(batch)) | read_jsonl()).with_name(TABLE)
        )
        merge: Any = {"disposition": "merge", "strategy": "upsert" if self._to_delta else "delete-insert"}
        keys: dict[str, Any] = (
            {"primary_key": ("customer_id", "date", "campaign_id")}
            if self._to_delta
            else {"merge_key": ("customer_id", "date")}
        )
        rows.apply_hints(
            write_disposition=merge,
            columns=COLUMNS,
            table_format="delta" if self._to_delta else None,
            **keys,
        )
        return rows


def _find_glob(batch: Batch) -> str:
    """One payload, those of one day, or all."""
    first, last = batch.days
    if len(batch.payloads) == 1:
        return str(Path(batch.payloads[0]).relative_to(batch.root))
    day = first if first == last else "*"
    return f"*/customer_id=*/query_name=*/logical_date={day}/run_id=*/payload.jsonl"


if __name__ == "__main__":
    serve(DltLoader(*sys.argv[1:]))
