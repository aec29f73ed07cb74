"""Measures how much CPU a search for new sealed runs takes beside many old ones, on a disk."""

import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.arrivals import SealedRuns, SearchMemory
from ads_pipeline.pipeline.registration import SealRegister
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline_tests.benchmarks.ratios import Figure
from ads_pipeline_tests.benchmarks.runs import with_new_run_ids, write_runs
from ads_pipeline_tests.builders import acceptance, write_sealed_run

CUSTOMERS, DAYS, NEW = 1_000, 100, 100


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as home:
        root = Path(home) / "raw"
        runs = write_runs(root, customers=CUSTOMERS, days=DAYS, rows=1)
        with Ledger.opened(f"sqlite:///{home}/ledger.db") as ledger:
            raw = RawRuns(root)
            SealRegister(raw=raw, registrations=ledger.registrations).register(run.seal for run in runs)
            ledger.verdicts.record([acceptance(run.seal.run, 1) for run in runs])
            sealed, memory = SealedRuns(raw=raw, runs=ledger.runs), SearchMemory()
            time.sleep(2)  # a folder that changed less than two seconds ago is looked at again
            yield _measure(sealed, memory, 0, f"first search, {len(runs):,} judged runs", limit=60.0)
            yield _measure(sealed, memory, 0, "later search, nothing new", limit=0.5)
            some = runs[:: len(runs) // NEW]
            for old, new in zip(some, with_new_run_ids(some, "new"), strict=True):
                write_sealed_run(root, new.seal.run, Path(old.payload_path).read_bytes())
            yield _measure(sealed, memory, NEW, f"later search, {NEW} new runs", limit=0.5)


def _measure(sealed: SealedRuns, memory: SearchMemory, expected: int, name: str, *, limit: float) -> Figure:
    started = time.process_time()
    found = sealed.find_unjudged(source="google_ads", since=date.min, until=date.max, memory=memory)
    seconds = time.process_time() - started
    assert len(found.runs) == expected, len(found.runs)
    return Figure(name=f"{name}, CPU", value=seconds, unit="s", limit=limit)
