"""Measures fetching from a server on loopback against bare iteration of the client's rows, and its memory."""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from statistics import median
from typing import Any

from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.configuration import read_configuration
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer, loopback_server
from ads_pipeline.google_ads.requests.gaql import complete_query
from ads_pipeline_tests.benchmarks.processes import read_peak_mib
from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio
from ads_pipeline_tests.google_ads.builders import (
    API_VERSION,
    CUSTOMER,
    LOGIN,
    behaving,
    partitions,
    range_request,
    shipped_query,
    streams,
)

ROWS_PER_BATCH = 10_000  # as Google sends them
ROUNDS = 7
LEAST_SHARE = 0.10
MOST_MEMORY = 1.10


def measure() -> Iterator[Ratio | Figure]:
    with tempfile.TemporaryDirectory() as folder, loopback_server(Path(folder), API_VERSION) as server:
        yield _compare_with_iteration(server, Path(folder) / "rate")
        yield _compare_memory(server, Path(folder) / "memory")
        yield from _compare_ranges_with_days(server, Path(folder) / "ranges")


def _compare_with_iteration(server: LoopbackServer, root: Path) -> Ratio:
    """Rows per CPU second of the client's process, the two in turn: 100,000 rows in 10 days.

    The process is a new one, as that of a step is. In this process, the memory that earlier suites have freed decides
    whether the client's messages cause page faults, which are half of the CPU time of bare iteration.
    """
    server.answer(behaving(rows=ROWS_PER_BATCH))
    bare, ours = _in_a_process(_iterate_and_fetch, str(server.configuration), root)
    return Ratio(
        name="fetching and sealing 100,000 rows of 13 columns",
        baseline="bare iteration of the client",
        value=median(bare) / median(ours),
        ours_ms=median(ours) * 1000,
        baseline_ms=median(bare) * 1000,
        rounds=ROUNDS,
        required=LEAST_SHARE,
        clock="CPU",
    )


def _compare_memory(server: LoopbackServer, root: Path) -> Figure:
    peaks = []
    for batches_per_day in (1, 10):
        server.answer(behaving(rows=ROWS_PER_BATCH, batches_per_day=batches_per_day))
        peaks.append(_in_a_process(_fetch_and_measure, str(server.configuration), root / str(batches_per_day)))
    return Figure(
        name=f"peak memory at 1,000,000 rows against 100,000 rows ({peaks[0]} MB)",
        value=peaks[1] / peaks[0],
        unit="times",
        limit=MOST_MEMORY,
    )


def _compare_ranges_with_days(server: LoopbackServer, root: Path) -> Iterator[Figure]:
    """31 days in one range against 31 requests of a day: wall time and operations."""
    server.answer(behaving(rows=100))
    clients = _open_clients(server)
    _fetch(clients, root / "warm", days=1)
    seconds, operations = dict[str, float](), dict[str, int]()
    for name, ranges in (("days", [1] * 31), ("range", [31])):
        server.reset()
        server.answer(behaving(rows=100))
        began = time.perf_counter()
        for number, days in enumerate(ranges):
            _fetch(clients, root / f"{name}-{number}", days=days)
        seconds[name], operations[name] = time.perf_counter() - began, sum(server.operations().values())
    share = operations["range"] / operations["days"]
    yield Figure(name="operations of 31 days by ranges against by days", value=share, unit="times", limit=1 / 20)
    time_share = seconds["range"] / seconds["days"]
    yield Figure(name="time of 31 days by ranges against by days", value=time_share, unit="times", limit=1.0)


def _open_clients(server: LoopbackServer) -> Clients:
    return Clients(read_configuration(str(server.configuration), {}), API_VERSION)


def _iterate(clients: Clients) -> None:
    days = [each.logical_date for each in partitions(10)]
    query = complete_query(shipped_query().gaql, days[0], days[-1])
    stream = clients.search_stream(customer_id=CUSTOMER, login_customer_id=LOGIN, query=query)
    count = sum(1 for batch in stream for _row in batch.results)
    assert count == 10 * ROWS_PER_BATCH, count


def _fetch(clients: Clients, root: Path, *, days: int) -> None:
    result = streams(clients, root).fetch(range_request(partitions(days)))
    assert len(result.seals) == days, result.fault


def _cpu_seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _in_a_process(work: Callable[..., None], *arguments: object) -> Any:
    spawn = multiprocessing.get_context("spawn")
    results: SimpleQueue[Any] = spawn.SimpleQueue()
    process = spawn.Process(target=work, args=(*arguments, results))
    process.start()
    result = results.get()
    process.join()
    return result


def _iterate_and_fetch(
    configuration: str, root: Path, results: "SimpleQueue[tuple[list[float], list[float]]]"
) -> None:
    """The CPU seconds of each round of bare iteration, and of fetching. The first round of both only warms up."""
    clients = Clients(read_configuration(configuration, {}), API_VERSION)
    bare, ours = list[float](), list[float]()
    for number in range(1 + ROUNDS):
        bare.append(_cpu_seconds(partial(_iterate, clients)))
        ours.append(_cpu_seconds(partial(_fetch, clients, root / str(number), days=10)))
    results.put((bare[1:], ours[1:]))


def _fetch_and_measure(configuration: str, root: Path, results: "SimpleQueue[int]") -> None:
    """Fetch 10 days and report the peak resident size in MiB."""
    clients = Clients(read_configuration(configuration, {}), API_VERSION)
    _fetch(clients, root, days=10)
    results.put(read_peak_mib())
