"""Plans reconciliation of a whole generated ledger in its own process, and prints its time and peak memory.

It plans query by query, as the command does, and keeps all plans. The content of the tables is generated instead of
read from files; generating it counts as memory but not as time.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from ads_pipeline.lake.warehouse.replacement import HeldContent, Warehouse
from ads_pipeline.lake.warehouse.table_values import HeldPartition
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.pipeline.reconciliation import ReconcilePlanner
from ads_pipeline_tests.ledger.large_ledgers import KINDS, QUERIES, ROWS_PER_RUN, SOURCE, VERSION, LedgerShape


class GeneratedWarehouse(Warehouse):
    """A warehouse whose tables hold what the ledger's pointers say."""

    def __init__(self, shape: LedgerShape) -> None:
        super().__init__("unused")
        self._shape = shape
        self.seconds = 0.0

    def read_held_partitions(self, **options: Any) -> HeldContent:
        started = time.perf_counter()
        held = {}
        for partition in self._shape.partitions():
            loaded = KINDS[partition.kind].loaded
            if partition.query_name == options["query_name"] and loaded is not None:
                held[partition.key] = HeldPartition(
                    run_id=partition.run_id(loaded), schema_version=VERSION, rows=ROWS_PER_RUN
                )
        self.seconds += time.perf_counter() - started
        return HeldContent(partitions=held)


def main(url: str, *numbers: str) -> None:
    queries, customers, days = map(int, numbers)
    warehouse = GeneratedWarehouse(LedgerShape(queries=queries, customers=customers, days=days))
    started = time.perf_counter()
    with LedgerReader.opened(url) as ledger:
        comparison = ReconcilePlanner(publications=ledger.publications, warehouse=warehouse)
        plans = {name: comparison.plan(DayWindow(source=SOURCE, query_name=name)) for name in QUERIES[:queries]}
    took = time.perf_counter() - started - warehouse.seconds
    # VmHWM, because the peak of getrusage includes the process that this one was forked from.
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    repairs = sum(len(plan.repairs) for plan in plans.values())
    print(json.dumps({"seconds": took, "peak_mib": int(peak) / 1024, "repairs": repairs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
