"""delta-rs overwrites what a predicate selects, which other engines call replaceWhere."""

from pathlib import Path

from deltalake import DeltaTable, write_deltalake
from pyarrow import compute as pc

from ads_pipeline_tests.benchmarks.competitors.payload_table import read_table
from ads_pipeline_tests.benchmarks.competitors.serving import Batch, serve


class DeltaRs:
    def load(self, batch: Batch) -> None:
        first, last = batch.days
        customers = ", ".join(f"'{name}'" for name in sorted(batch.customers))
        predicate = f"date >= '{first}' AND date <= '{last}' AND customer_id IN ({customers})"
        table = read_table(batch.payloads)
        if DeltaTable.is_deltatable(str(batch.home)):
            write_deltalake(str(batch.home), table, mode="overwrite", predicate=predicate)
        else:
            write_deltalake(str(batch.home), table, partition_by=["date"])

    def read_totals(self, home: Path) -> tuple[int, int]:
        clicks = DeltaTable(str(home)).to_pyarrow_table(columns=["clicks"])["clicks"]
        return len(clicks), pc.sum(clicks).as_py()


if __name__ == "__main__":
    serve(DeltaRs())
