"""A bucket's service that fails while a table is written: no row is lost, none is doubled, and a retry succeeds."""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from ads_pipeline.domain.errors import AdsPipelineError
from ads_pipeline.lake.warehouse import delta_commits
from ads_pipeline.lake.warehouse.delta_commits import open_table
from ads_pipeline.lake.warehouse.merging import merge_in_task, read_files_in_task
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.pipeline.staged_runs import sink_into
from ads_pipeline_tests.example_counts import TIMES
from ads_pipeline_tests.lake.storage.fault_proxy import LOST_ANSWERS, TRANSIENT, Fault, FaultProxy, start_fault_proxy
from ads_pipeline_tests.lake.storage.s3_server import KEY_ID, SECRET
from ads_pipeline_tests.lake.warehouse.builders import (
    create_old_file,
    key,
    list_data_files,
    list_table,
    list_version_files,
    publish,
    read_all_versions,
    read_with_duckdb,
    vacuum,
)

DATA, LOG = "/logical_date", "/_delta_log/"
BEFORE = {key(1): ({"r1"}, 3), key(2): ({"r1"}, 3)}
AFTER = BEFORE | {key(1): ({"r2"}, 3)}
fired: Counter[tuple[str, str]] = Counter()


@pytest.fixture(scope="module", autouse=True)
def print_fired_faults() -> Iterator[None]:
    yield
    print("\nfaults that fired:", ", ".join(f"{fault} at {target} {n}" for (target, fault), n in fired.items()))


@pytest.fixture
def proxy(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy through which this process, but no Spark task, uses the bucket. It fails nothing yet."""
    with start_fault_proxy(s3_endpoint) as started:
        started.hold = 4
        monkeypatch.setenv("AWS_ENDPOINT_URL", started.endpoint)
        monkeypatch.setenv("AWS_TIMEOUT", "3s")  # a request without a fault must not reach it on a busy machine
        yield started


def fail(proxy: FaultProxy, method: str, target: str, *faults: Fault) -> None:
    """Let the next requests of a method fail whose names contain the target."""
    left = list(faults)

    def choose(used: str, path: str) -> Fault | None:
        return left.pop(0) if left and used == method and target in path else None

    proxy.choose = choose


def try_until_done(call: Callable[[], object]) -> int:
    """Repeat what failed for a reason that may pass, as Dagster does. Gives the number of failures."""
    for failures in range(5):
        try:
            call()
        except AdsPipelineError as error:
            if not error.is_transient:
                raise
        else:
            return failures
    raise AssertionError("it never succeeded")


@pytest.mark.invariant("W1", "W7", "W13", "W18")
@pytest.mark.parametrize(
    ("target", "fault"),
    [(LOG, fault) for fault in TRANSIENT] + [(DATA, fault) for fault in (TRANSIENT if TIMES > 1 else LOST_ANSWERS)],
)
def test_fault_of_a_put_loses_and_doubles_nothing(
    spark: SparkSession, s3_location: str, proxy: FaultProxy, fault: Fault, target: str
) -> None:
    """A data file or a log entry whose put fails, or whose answer is lost: one commit publishes the run."""
    version = publish(spark, s3_location, "r1", (1, 2))
    fail(proxy, "PUT", target, fault, fault)
    failures = try_until_done(lambda: publish(spark, s3_location, "r2", (1,)))
    assert proxy.fired[fault] >= 1
    fired[target, fault] += proxy.fired[fault]
    proxy.choose = lambda _method, _path: None
    assert read_with_duckdb(s3_location) == AFTER
    versions = read_all_versions(s3_location)
    assert versions[1:] == [BEFORE, AFTER]
    assert len(versions) == version + 2
    if not failures:
        unreferenced = set(list_data_files(s3_location)) - list_version_files(s3_location)
        assert unreferenced <= list_version_files(s3_location, version)


@pytest.mark.parametrize("fault", [Fault.SERVER_ERROR, *(LOST_ANSWERS if TIMES > 1 else [])])
def test_fault_of_a_checkpoint_changes_no_row(
    spark: SparkSession, s3_location: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """A checkpoint that cannot be written is left out: the commit stands, and the log is read without it."""
    monkeypatch.setattr(delta_commits, "_COMMITS_PER_CHECKPOINT", 2)
    publish(spark, s3_location, "r1", (1, 2))
    fail(proxy, "PUT", "checkpoint", *[fault] * 20)
    publish(spark, s3_location, "r2", (1,))
    assert proxy.fired[fault] >= 1
    fired["checkpoint", fault] += proxy.fired[fault]
    proxy.choose = lambda _method, _path: None
    assert read_with_duckdb(s3_location) == AFTER
    publish(spark, s3_location, "r3", (2,))
    publish(spark, s3_location, "r4", (2,))
    assert read_with_duckdb(s3_location) == AFTER | {key(2): ({"r4"}, 3)}
    assert "_delta_log/_last_checkpoint" in list_table(s3_location)


@pytest.mark.invariant("W17")
@pytest.mark.parametrize("fault", TRANSIENT)
def test_fault_of_vacuum_removes_only_what_was_planned(
    spark: SparkSession, s3_location: str, proxy: FaultProxy, fault: Fault
) -> None:
    """After a delete that failed, or whose answer was lost, the next vacuum removes the rest."""
    publish(spark, s3_location, "r1", (1, 2))
    for number in range(3):
        create_old_file(s3_location, f"logical_date=2026-01-01/{number}.parquet", 99)
    fail(proxy, "POST", "delete", *[fault] * 6)  # obstore deletes by a request that names the objects in its body
    with suppress(AdsPipelineError):
        vacuum(s3_location)
    assert proxy.fired[fault] >= 1
    fired["delete", fault] += proxy.fired[fault]
    proxy.choose = lambda _method, _path: None
    vacuum(s3_location)
    assert set(list_data_files(s3_location)) == list_version_files(s3_location)
    assert read_with_duckdb(s3_location) == BEFORE


def test_refused_access_tells_no_secret(spark: SparkSession, s3_location: str, proxy: FaultProxy) -> None:
    """An answer of the service may repeat what the client signed. No error, nor its causes, says it."""
    publish(spark, s3_location, "r1", (1, 2))
    for target in (DATA, LOG, "list-type"):
        proxy.choose = lambda _method, path, target=target: Fault.FORBIDDEN if target in path else None  # type: ignore[misc]
        with pytest.raises((AdsPipelineError, OSError)) as caught:
            publish(spark, s3_location, "r2", (1,))
        text = "".join(traceback.format_exception(caught.value))
        assert SECRET not in text
        assert KEY_ID not in text
    proxy.choose = lambda _method, _path: None
    assert read_with_duckdb(s3_location) == BEFORE


def test_no_closure_holds_credentials(spark: SparkSession, s3_location: str) -> None:
    """What Spark sends to its tasks names the bucket, and nothing that opens it."""
    publish(spark, s3_location, "r1", (1, 2))
    table = Warehouse(s3_location).table("google_ads", "campaign_daily")
    open_table(table)
    sent = [
        sink_into(table, "1"),
        partial(merge_in_task, table.location, table.folder, pa.schema([])),
        partial(read_files_in_task, table.location, table.folder, pa.schema([])),
    ]
    for each in sent:
        content = cloudpickle.dumps(each)  # type: ignore[no-untyped-call]
        assert s3_location.encode() in content
        assert SECRET.encode() not in content
        assert KEY_ID.encode() not in content
