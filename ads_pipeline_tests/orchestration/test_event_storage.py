"""Our storage of Dagster's events: it keeps what Dagster's own storage keeps, in fewer transactions."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster_postgres import PostgresEventLogStorage

from ads_pipeline.orchestration.event_storage.batching import MAX_BATCH, batched_events
from ads_pipeline.orchestration.event_storage.dagster_private import SqlEventLogStorage, SqliteEventLogStorage
from ads_pipeline.orchestration.event_storage.event_batches import (
    BatchedPostgresEvents,
    BatchedSqliteEvents,
    EventBatches,
)
from ads_pipeline.orchestration.event_storage.instance_storage import BATCH_SIZE

# Partitioned checks and backfill policies are beta features.
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")
ASSET = dg.AssetKey("rows")
NAMES = [f"{number:03d}" for number in range(40)]
PARTITIONS = dg.StaticPartitionsDefinition(NAMES)
TABLES = ("event_logs", "asset_keys", "asset_event_tags", "asset_check_executions")
TIMES_OF_INSERTION = {"create_timestamp"}
FORK = """
import os, sys
from ads_pipeline.orchestration.event_storage.event_batches import BatchedSqliteEvents
storage = BatchedSqliteEvents(sys.argv[1])
storage.add_dynamic_partitions("keys", ["parent"])
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    print(*storage.get_dynamic_partitions("keys"))
else:
    storage.add_dynamic_partitions("keys", ["child"])
    os._exit(0)
"""


def define_assets() -> list[Any]:
    @dg.asset(key=ASSET, partitions_def=PARTITIONS, backfill_policy=dg.BackfillPolicy.single_run())
    def rows(context: dg.AssetExecutionContext) -> int:
        for name in context.partition_keys[:3]:
            context.log_event(
                dg.AssetObservation(asset_key=ASSET, partition=str(name), tags={"dagster/data_version": "7"})
            )
        return 7

    @dg.asset_check(asset=ASSET, partitions_def=PARTITIONS)  # type: ignore[arg-type] # as in asset_checks
    def valid(context: dg.AssetCheckExecutionContext) -> Iterator[Any]:
        with batched_events(context.instance):
            for name in context.partition_keys:
                yield dg.AssetCheckEvaluation(
                    asset_key=ASSET, check_name="valid", partition=str(name), passed=name < "030"
                )
        yield dg.Output(None)

    return [rows, valid]


@pytest.fixture(scope="module")
def events() -> Sequence[dg.EventLogEntry]:
    """All events of a range run."""
    with dg.instance_for_test() as instance:
        return run(instance, len(NAMES))


@pytest.fixture(params=["sqlite", "postgres"])
def storages(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[SqlEventLogStorage, EventBatches]:
    """Dagster's own storage and ours, both empty."""
    if request.param == "sqlite":
        stock = SqliteEventLogStorage(str(tmp_path / "stock"))
        return stock, BatchedSqliteEvents(str(tmp_path / "ours"))
    url = sa.make_url(request.getfixturevalue("unmigrated_postgres_url"))
    urls = []
    for name in ("stock", "ours"):
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {name}")
        engine.dispose()
        schema = url.update_query_dict({"options": f"-c search_path={name}"})
        urls.append(schema.render_as_string(hide_password=False))
    return PostgresEventLogStorage(urls[0]), BatchedPostgresEvents(urls[1])


def run(instance: dg.DagsterInstance, partitions: int) -> Sequence[dg.EventLogEntry]:
    tags = {
        "dagster/asset_partition_range_start": NAMES[0],
        "dagster/asset_partition_range_end": NAMES[partitions - 1],
    }
    resources = {"io_manager": dg.mem_io_manager}
    result = dg.materialize(define_assets(), instance=instance, tags=tags, resources=resources)
    return instance.all_logs(result.run_id)


def contents(storage: SqlEventLogStorage, run_id: str) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of every table that holds events, without the times at which they were inserted."""
    with storage.run_connection(run_id) as connection:
        found = {"events of the run": read_table(connection, "event_logs")}
    with storage.index_connection() as connection:
        return found | {name: read_table(connection, name) for name in TABLES}


def read_table(connection: sa.Connection, name: str) -> list[tuple[Any, ...]]:
    table = sa.Table(name, sa.MetaData(), autoload_with=connection)
    columns = [column for column in table.columns if column.name not in TIMES_OF_INSERTION]
    found = connection.execute(sa.select(*columns).order_by(table.c.id)).all()
    return [tuple(row) for row in found]


def store_one_by_one(storage: EventBatches, events: Sequence[dg.EventLogEntry]) -> None:
    for event in events:
        storage.store_event(event)


def store_in_a_block(storage: EventBatches, events: Sequence[dg.EventLogEntry]) -> None:
    with storage.batch(), storage.batch():
        store_one_by_one(storage, events)


def store_as_batches(storage: EventBatches, events: Sequence[dg.EventLogEntry]) -> None:
    """Successive events of one kind together, as Dagster does, and the others one by one."""
    start = 0
    for end in range(1, len(events) + 1):
        if end == len(events) or events[end].dagster_event_type is not events[start].dagster_event_type:
            if end - start > 1:
                storage.store_event_batch(events[start:end])
            else:
                storage.store_event(events[start])
            start = end


@pytest.mark.parametrize("store", [store_one_by_one, store_in_a_block, store_as_batches])
def test_tables_are_those_of_dagsters_storage(
    storages: tuple[SqlEventLogStorage, EventBatches],
    events: Sequence[dg.EventLogEntry],
    store: Callable[[EventBatches, Sequence[dg.EventLogEntry]], None],
) -> None:
    """The events of a range run leave the same rows in every table, however they are stored."""
    stock, ours = storages
    for event in events:
        stock.store_event(event)
    store(ours, events)
    expected = contents(stock, events[0].run_id)
    assert contents(ours, events[0].run_id) == expected
    assert {name: len(found) > 0 for name, found in expected.items()} == dict.fromkeys(expected, True)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[BatchedSqliteEvents]:
    opened = BatchedSqliteEvents(str(tmp_path / "events"))
    yield opened
    opened.dispose()


def find_stored(storage: SqlEventLogStorage, run_id: str) -> list[str]:
    return [each.get_dagster_event().event_type_value for each in storage.get_logs_for_run(run_id)]


def test_block_stores_at_its_end(storage: BatchedSqliteEvents, events: Sequence[dg.EventLogEntry]) -> None:
    """Another storage sees the events after the block, also when the block raises."""
    batch = [event for event in events if "ASSET" in event.get_dagster_event().event_type_value][:3]
    other = BatchedSqliteEvents(str(Path(storage.path_for_shard("index")).parent))
    with suppress(ZeroDivisionError), storage.batch():
        store_one_by_one(storage, batch)
        assert find_stored(other, batch[0].run_id) == []
        raise ZeroDivisionError
    assert len(find_stored(other, batch[0].run_id)) == len(batch)


def test_reader_in_the_block_sees_its_events(
    storage: BatchedSqliteEvents, events: Sequence[dg.EventLogEntry]
) -> None:
    """The thread that collects events also reads them, and an event of another kind keeps its place in the log."""
    with storage.batch():
        for number, event in enumerate(events, start=1):
            storage.store_event(event)
            if number % 10 == 0:
                assert len(find_stored(storage, event.run_id)) == number
    assert find_stored(storage, events[0].run_id) == [each.get_dagster_event().event_type_value for each in events]


def test_failed_batch_stores_nothing(storage: BatchedSqliteEvents, events: Sequence[dg.EventLogEntry]) -> None:
    """Dagster then stores the events of the batch one by one, so none may be left in either database."""
    planned = [each for each in events if each.get_dagster_event().event_type_value.endswith("EVALUATION_PLANNED")]
    with pytest.raises(sa.exc.IntegrityError):  # a run cannot plan a check of one partition twice
        storage.store_event_batch([*planned, *planned])
    assert find_stored(storage, planned[0].run_id) == []
    with storage.index_connection() as connection:
        assert read_table(connection, "event_logs") == []


@contextmanager
def counted_transactions() -> Iterator[list[sa.Connection]]:
    """The transactions that are committed in the block, on all engines."""
    committed: list[sa.Connection] = []
    count = committed.append
    sa.event.listen(sa.Engine, "commit", count)
    try:
        yield committed
    finally:
        sa.event.remove(sa.Engine, "commit", count)


def test_run_of_many_partitions_needs_no_more_transactions(tmp_path: Path) -> None:
    """Planned events, materializations and evaluations of a range run are stored together."""
    storage = {
        "custom": {"module": "ads_pipeline.orchestration.event_storage.instance_storage", "class": "InstanceStorage"}
    }
    counts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADS_PIPELINE_HOME", str(tmp_path / "home"))
        patch.setenv(*BATCH_SIZE)
        with dg.instance_for_test(temp_dir=str(tmp_path), overrides={"storage": storage}) as instance:
            run(instance, 4)  # creates tables
            for partitions in (4, len(NAMES)):
                with counted_transactions() as committed:
                    run(instance, partitions)
                counts.append(len(committed))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("given", [None, "25"])
def test_batches_of_dagster_are_on_by_default(tmp_path: Path, given: str | None) -> None:
    """Opening the storage turns Dagster's own batches on, unless the environment names another size."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ADS_PIPELINE_HOME": str(tmp_path / "home")}
    script = (
        "import os; from ads_pipeline.orchestration.event_storage.instance_storage import InstanceStorage; "
        f"InstanceStorage.from_config_value(None, None); print(os.environ['{BATCH_SIZE[0]}'])"
    )
    path = os.pathsep.join(sys.path)
    environment = variables | {"PYTHONPATH": path} | ({BATCH_SIZE[0]: given} if given else {})
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [given or str(MAX_BATCH)]


def find_open_files(directory: Path) -> set[str]:
    """The names of the files in the directory that this process has open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = descriptor.readlink()
        except FileNotFoundError:
            continue
        if target.parent == directory:
            found.add(target.name.partition(".")[0])
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists open files as Linux does")
def test_only_the_index_stays_open(storage: BatchedSqliteEvents, events: Sequence[dg.EventLogEntry]) -> None:
    """The file of a run is closed after each transaction, which changes it: the webserver waits for that."""
    directory = Path(storage.path_for_shard("index")).parent
    for event in events:
        storage.store_event(event)
    assert find_open_files(directory) == {"index"}
    assert not directory.joinpath(f"{events[0].run_id}.db-wal").exists()
    storage.dispose()
    assert find_open_files(directory) == set()
    assert len(find_stored(storage, events[0].run_id)) == len(events)


def test_wiped_storage_can_be_used(storage: BatchedSqliteEvents, events: Sequence[dg.EventLogEntry]) -> None:
    """Wiping deletes the files of runs; the next event of a run creates its file again."""
    for _ in range(2):
        for event in events:
            storage.store_event(event)
        assert len(find_stored(storage, events[0].run_id)) == len(events)
        assert len(storage.get_materialized_partitions(ASSET)) == len(NAMES)
        storage.wipe()
        assert list(Path(storage.path_for_shard("index")).parent.glob(f"{events[0].run_id}*")) == []
        assert storage.get_materialized_partitions(ASSET) == set()


def test_replaced_index_is_opened(storage: BatchedSqliteEvents) -> None:
    """When the directory is deleted and created again, nothing is written to the deleted file."""
    directory = Path(storage.path_for_shard("index")).parent
    storage.add_dynamic_partitions("keys", ["old"])
    shutil.rmtree(directory)
    other = BatchedSqliteEvents(str(directory))
    storage.add_dynamic_partitions("keys", ["new"])
    assert other.get_dynamic_partitions("keys") == ["new"]
    other.dispose()


def test_forked_process_opens_its_own_connections(tmp_path: Path) -> None:
    """Both processes write after the fork."""
    command = [sys.executable, "-c", FORK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["parent", "child"]


def add_keys(directory: str, first: int) -> None:
    storage = BatchedSqliteEvents(directory)
    for number in range(first, first + 50):
        storage.add_dynamic_partitions("keys", [str(number)])
    storage.dispose()


def test_processes_write_at_once(storage: BatchedSqliteEvents) -> None:
    """Nothing is lost when several processes write to the index."""
    directory = str(Path(storage.path_for_shard("index")).parent)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=add_keys, args=(directory, first)) for first in (0, 50)]
    for writer in writers:
        writer.start()
    add_keys(directory, 100)
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert set(storage.get_dynamic_partitions("keys")) == {str(number) for number in range(150)}
