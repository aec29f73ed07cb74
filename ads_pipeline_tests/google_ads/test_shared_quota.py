"""One budget for all processes: no operation is spent twice, and the server sees exactly the granted ones."""

import multiprocessing
from datetime import UTC, datetime, timedelta
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest

from ads_pipeline.domain.fetching.quota import QuotaLimits
from ads_pipeline.google_ads.configuration import read_configuration
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.pipeline.extraction.google_ads_extraction import Extraction
from ads_pipeline.settings.extraction_section import ExtractionSettings
from ads_pipeline_tests.builders import key
from ads_pipeline_tests.google_ads.builders import shipped_apis

PROCESSES, CUSTOMERS, OPERATIONS = 8, 20, 100


def fetch(
    number: int, url: str, root: Path, configuration: str, results: "SimpleQueue[tuple[int, int, int]]"
) -> None:
    """Fetch yesterday's day before of 20 customers of one's own; report the sealed runs and the waits."""
    apis = shipped_apis().model_copy(
        update={"google_ads": ExtractionSettings(daily_operations=OPERATIONS, reserved_for_fresh=0.0)}
    )
    day = datetime.now(UTC).date() - timedelta(days=2)
    keys = [key(f"{3_000_000_000 + number * 100 + each}", day=day) for each in range(CUSTOMERS)]
    raw = RawRuns(root, is_in_use=lambda: False)
    with Ledger.opened(url) as ledger:
        extraction = Extraction(apis=apis, configuration=read_configuration(configuration, {}), ledger=ledger)
        landed = extraction.source(raw, SealedRuns(raw=raw, runs=ledger.runs)).land(keys)
    waits = [each for each in landed.failed if each.error_class == "quota_exhausted" and each.wait_until]
    results.put((number, len(landed.runs), len(waits)))


@pytest.mark.timeout(600)
def test_eight_processes_share_a_hundred_operations(server: LoopbackServer, sqlite_url: str, tmp_path: Path) -> None:
    """Eight processes want 160 operations of 100: exactly 100 reach the server, and the others wait.

    `ledger.extraction.test_quota` has the same race on both databases, without the client.
    """
    url = sqlite_url
    spawn = multiprocessing.get_context("spawn")
    results = spawn.SimpleQueue()
    processes = [
        spawn.Process(target=fetch, args=(number, url, tmp_path / "raw", str(server.configuration), results))
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(500)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    done = [results.get() for _ in processes]
    results.close()
    assert sum(server.operations().values()) == OPERATIONS
    assert sum(sealed for _number, sealed, _waits in done) == OPERATIONS
    assert sum(waits for _number, _sealed, waits in done) == PROCESSES * CUSTOMERS - OPERATIONS
    with Ledger.opened(url) as ledger:
        usage = ledger.quota.usage("google_ads", QuotaLimits(daily_operations=OPERATIONS))
    assert usage.used == OPERATIONS
