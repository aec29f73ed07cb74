"""The bare limit: pyarrow reads the payloads and delta-rs appends one table. Nothing is checked or replaced."""

from pathlib import Path

from deltalake import DeltaTable, write_deltalake
from pyarrow import compute as pc

from ads_pipeline_tests.benchmarks.competitors.payload_table import read_table
from ads_pipeline_tests.benchmarks.competitors.serving import Batch, serve


class BareLimit:
    def load(self, batch: Batch) -> None:
        write_deltalake(str(batch.home), read_table(batch.payloads), mode="append", partition_by=["date"])

    def read_totals(self, home: Path) -> tuple[int, int]:
        clicks = DeltaTable(str(home)).to_pyarrow_table(columns=["clicks"])["clicks"]
        return len(clicks), pc.sum(clicks).as_py()


if __name__ == "__main__":
    serve(BareLimit())
