"""Plans reconciliation over all of a grown ledger, in a process that does only this, and says what it took.

The ledger is asked as the command asks it, query by query with every plan kept. What the tables hold is given and not
read from files: it counts as memory and not as time.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.pipeline.reconciliation import ReconcilePlanner
from ads_pipeline.warehouse.publication import Warehouse
from ads_pipeline.warehouse.values import HeldPartition
from ads_pipeline_tests.ledger.large_ledgers import KINDS, QUERIES, ROWS, SOURCE, VERSION, Shape


class Given(Warehouse):
    """Tables that hold what the ledger's pointers say."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(Path("nowhere"))
        self._shape = shape
        self.seconds = 0.0

    def held(self, **asked: Any) -> dict[PartitionKey, HeldPartition]:
        started = time.perf_counter()
        held = {}
        for each in self._shape.partitions():
            loaded = KINDS[each.kind].loaded
            if each.query_name == asked["query_name"] and loaded is not None:
                held[each.key] = HeldPartition(run_id=each.run_id(loaded), schema_version=VERSION, rows=ROWS)
        self.seconds += time.perf_counter() - started
        return held


def main(url: str, *numbers: str) -> None:
    queries, customers, days = map(int, numbers)
    tables = Given(Shape(queries=queries, customers=customers, days=days))
    started = time.perf_counter()
    with LedgerReader.opened(url) as ledger:
        comparison = ReconcilePlanner(ledger=ledger, warehouse=tables)
        plans = {name: comparison.plan(source=SOURCE, query_name=name) for name in QUERIES[:queries]}
    took = time.perf_counter() - started - tables.seconds
    # The kernel's own count of this program; getrusage's begins with what the process was forked from.
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    repairs = sum(map(len, plans.values()))
    print(json.dumps({"seconds": took, "peak_mib": int(peak) / 1024, "repairs": repairs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
