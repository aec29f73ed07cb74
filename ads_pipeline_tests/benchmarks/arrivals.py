"""Measures how much CPU a search for new sealed runs takes beside many old ones, on a disk and in a bucket.

A search of a bucket lists a part of it, so the figures of a bucket are those of the most expensive search of a round.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import METADATA, PAYLOAD, encode_seal
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.arrivals import SealedRuns, SearchMemory
from ads_pipeline.pipeline.registered_seals import SealRegister
from ads_pipeline_tests.benchmarks.ratios import Figure
from ads_pipeline_tests.benchmarks.runs import with_new_run_ids, write_runs
from ads_pipeline_tests.builders import acceptance, write_sealed_run
from ads_pipeline_tests.lake.storage import s3_server
from ads_pipeline_tests.lake.storage.listing_server import ListingServer, start_listing_server
from ads_pipeline_tests.validation.builders import SealedPayload

CUSTOMERS, DAYS, NEW = 1_000, 100, 100
FIRST_LIMIT, LATER_LIMIT = 60.0, 0.5
LOCATION = f"s3://{s3_server.BUCKET}/lake"


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as home:
        root = Path(home) / "raw"
        runs = write_runs(root, customers=CUSTOMERS, days=DAYS, rows=1)
        with Ledger.opened(f"sqlite:///{home}/ledger.db") as ledger:
            raw = RawRuns(root)
            SealRegister(raw=raw, registrations=ledger.registrations).register(run.seal for run in runs)
            ledger.verdicts.record([acceptance(run.seal.run, 1) for run in runs])
            yield from _measure_disk(ledger, root, runs)
            yield from _measure_bucket(ledger, runs)


def _measure_disk(ledger: Ledger, root: Path, runs: Sequence[SealedPayload]) -> Iterator[Figure]:
    sealed, memory = SealedRuns(raw=RawRuns(root), runs=ledger.runs), SearchMemory()
    time.sleep(2)  # a folder that changed less than two seconds ago is looked at again
    yield _measure(sealed, memory, 0, f"disk: first search, {len(runs):,} judged runs", limit=FIRST_LIMIT)
    yield _measure(sealed, memory, 0, "disk: later search, nothing new", limit=LATER_LIMIT)
    for old, new in _choose_new(runs):
        write_sealed_run(root, new.seal.run, Path(old.payload_path).read_bytes())
    yield _measure(sealed, memory, NEW, f"disk: later search, {NEW} new runs", limit=LATER_LIMIT)


def _measure_bucket(ledger: Ledger, runs: Sequence[SealedPayload]) -> Iterator[Figure]:
    with start_listing_server() as server:
        os.environ |= s3_server.variables(server.endpoint)
        server.add(_create_objects((run, run) for run in runs))
        sealed, memory = SealedRuns(raw=RawRuns(LOCATION), runs=ledger.runs), SearchMemory()
        yield _measure(sealed, memory, 0, f"bucket: first searches, {len(runs):,} judged runs", limit=FIRST_LIMIT)
        yield from _measure_later(server, sealed, memory, 0, "bucket: later search, nothing new")
        server.add(_create_objects(_choose_new(runs)))
        yield from _measure_later(server, sealed, memory, NEW, f"bucket: later search, {NEW} new runs")


def _measure_later(
    server: ListingServer, sealed: SealedRuns, memory: SearchMemory, expected: int, name: str
) -> Iterator[Figure]:
    server.count_requests()
    yield _measure(sealed, memory, expected, name, limit=LATER_LIMIT)
    requests = server.count_requests()
    yield Figure(
        name=f"{name}, listings in a round", value=requests["list"], unit="", limit=2.1 * CUSTOMERS * DAYS / 1000
    )


def _measure(sealed: SealedRuns, memory: SearchMemory, expected: int, name: str, *, limit: float) -> Figure:
    """The CPU time of the most expensive search until every run was looked at once."""
    seconds, found, is_done = list[float](), 0, False
    while not is_done:
        started = time.process_time()
        searched = sealed.find_unjudged(source="google_ads", since=date.min, until=date.max, memory=memory)
        seconds.append(time.process_time() - started)
        found, is_done = found + len(searched.runs), memory.position is None
    assert found == expected, found
    searches = f" (the longest of {len(seconds)})" if len(seconds) > 1 else ""
    return Figure(name=f"{name}, CPU{searches}", value=max(seconds), unit="s", limit=limit)


def _choose_new(runs: Sequence[SealedPayload]) -> Iterator[tuple[SealedPayload, SealedPayload]]:
    """Runs at equal distances, and a later run of each one's partition with the same payload."""
    some = list(runs[:: len(runs) // NEW])
    return zip(some, with_new_run_ids(some, "new"), strict=True)


def _create_objects(pairs: Iterator[tuple[SealedPayload, SealedPayload]]) -> dict[str, bytes]:
    objects = {}
    for old, new in pairs:
        folder = f"lake/{new.seal.run.path}"
        objects[f"{folder}/{METADATA}"] = encode_seal(new.seal)
        objects[f"{folder}/{PAYLOAD}"] = Path(old.payload_path).read_bytes()
    return objects
