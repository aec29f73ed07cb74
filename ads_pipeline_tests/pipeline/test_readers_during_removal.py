"""Readers of plain Delta and of the product, in a loop, while days are withdrawn and demoted."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.pipeline.actions.operator_actions import Result, ResultRow
from ads_pipeline.pipeline.actions.row_actions import demote, withdraw
from ads_pipeline_tests.lake.warehouse.builders import connect_with_delta, table_uri
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.pipeline.builders import QUERY, LocalDeployment, key, seal_run

ROWS = 3
CUSTOMERS = range(1, 7)
Count = Mapping[str, int]  # rows of each customer
Read = Callable[[LocalDeployment], Count]
_COUNT = "SELECT customer_id, count(*) AS rows FROM {} GROUP BY customer_id"


def _to_counts(rows: Any) -> Count:
    return {row["customer_id"]: row["rows"] for row in rows}


def _read_with_pandas(deployment: LocalDeployment) -> Count:
    frame = DeltaTable(table_uri(deployment.warehouse_location)).to_pandas(columns=["customer_id"])
    return dict(frame["customer_id"].value_counts())


def _read_with_polars(deployment: LocalDeployment) -> Count:
    frame = (
        pl.scan_delta(table_uri(deployment.warehouse_location)).group_by("customer_id").agg(pl.len().alias("rows"))
    )
    return _to_counts(frame.collect().to_dicts())


def _read_with_delta_rs(deployment: LocalDeployment) -> Count:
    builder = QueryBuilder().register("t", DeltaTable(table_uri(deployment.warehouse_location)))
    return _to_counts(pa.table(builder.execute(_COUNT.format("t")).read_all()).to_pylist())


def _read_with_delta_scan(deployment: LocalDeployment) -> Count:
    location = deployment.warehouse_location
    with connect_with_delta(location) as connection:
        found = connection.execute(_COUNT.format("delta_scan(?)"), [table_uri(location)])
        return _to_counts(found.to_arrow_table().to_pylist())


def _read_with_session(deployment: LocalDeployment) -> Count:
    """A session that was opened before a removal refuses the day, and the reader opens another one."""
    while True:
        with deployment.readers.connect([QUERY]) as connection:
            try:
                return _to_counts(connection.execute(_COUNT.format(QUERY)).to_arrow_table().to_pylist())
            except duckdb.Error as error:
                if "open a new session" not in str(error):
                    raise


def _read_with_spark(deployment: LocalDeployment) -> Count:
    frame = deployment.readers.read_rows(deployment.spark, QUERY)
    assert frame is not None
    return {row["customer_id"]: row["count"] for row in frame.groupBy("customer_id").count().collect()}


READERS: Mapping[str, Read] = {
    "pandas": _read_with_pandas,
    "polars": _read_with_polars,
    "delta-rs": _read_with_delta_rs,
    "DuckDB delta_scan": _read_with_delta_scan,
    "warehouse query": _read_with_session,
    "Spark": _read_with_spark,
}


Readings = dict[str, list[tuple[float, Count]]]  # of each reader: when each reading began, and what it found


@contextmanager
def reading_in_loops(deployment: LocalDeployment) -> Iterator[Callable[[int], Readings]]:
    """Let every reader read again and again. The function waits until each has ended so many more readings."""
    found, is_over = Readings({name: [] for name in READERS}), threading.Event()

    def read(name: str) -> None:
        while not is_over.is_set():
            began = time.monotonic()
            found[name].append((began, READERS[name](deployment)))

    with ThreadPoolExecutor(len(READERS)) as threads:
        loops = [threads.submit(read, name) for name in READERS]

        def wait(more: int) -> Readings:
            aims = {name: len(readings) + more for name, readings in found.items()}
            while any(len(readings) < aims[name] for name, readings in found.items()):
                for loop in loops:
                    if loop.done():
                        loop.result()
                time.sleep(0.02)
            return found

        try:
            yield wait
        finally:
            is_over.set()


def remove(deployment: LocalDeployment, partition: PartitionKey) -> list[ResultRow]:
    """Withdraw days of customers with even numbers, and demote the others."""
    request = action_request(f"act-{partition.customer_id}")
    if int(partition.customer_id) % 2:
        return demote(deployment.pipeline, [Run(key=partition, run_id="r1")], request)
    return withdraw(deployment.pipeline, [deployment.ledger.states.get(partition)], request)


@pytest.mark.invariant("W2", "W3", "W4")
@pytest.mark.timeout(300)
def test_no_reader_finds_a_row_after_the_command_has_returned(deployment: LocalDeployment) -> None:
    """A reading that begins later has no row of the day. Every reading has each day whole, or not at all."""
    days = [key(customer) for customer in CUSTOMERS]
    deployment.pipeline.judge_and_load([seal_run(deployment, each, count=ROWS) for each in days])
    returned: dict[str, float] = {}
    with reading_in_loops(deployment) as wait:
        wait(1)
        for day in days[:-1]:
            assert remove(deployment, day) == [ResultRow(target=day, result=Result.DONE)]
            returned[day.customer_id] = time.monotonic()
            wait(2)
        found = wait(1)
    for name, readings in found.items():
        assert {rows for _began, counts in readings for rows in counts.values()} == {ROWS}, name
        assert dict(readings[-1][1]) == {days[-1].customer_id: ROWS}, name
        late = {
            (customer, name)
            for began, counts in readings
            for customer, at in returned.items()
            if began >= at and customer in counts
        }
        assert late == set()
