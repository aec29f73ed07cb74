"""Holds the example adapter over DynamoDB to the conformance suite. A server of moto stands in for DynamoDB."""

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from ads_pipeline.testing.event_strategies import make_completions, new_engine_run_id
from ads_pipeline.testing.fetch_checks import check_default_page_has_a_thousand_events
from ads_pipeline.testing.run_event_stores import CHECKS, Check
from ads_pipeline_tests.example_counts import TIMES
from ads_pipeline_tests.run_event_stores.dynamodb_store import DynamoEventStore, create_table

WRITERS = 4
# moto stores a thousand events in ten seconds. `make soak` has that check, too, and other stores always have it.
SHORT_CHECKS = [check for check in CHECKS if TIMES > 1 or check is not check_default_page_has_a_thousand_events]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    # ThreadedMotoServer would mix up concurrent transactions: moto has no lock, and rolls back by restoring a copy.
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield boto3.client(
        "dynamodb",
        endpoint_url=f"http://127.0.0.1:{server.port}",
        region_name="eu-west-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(proxies={}, max_pool_connections=2 * WRITERS),
    )
    server.shutdown()
    thread.join()


@pytest.fixture
def store(client: Any) -> Iterator[DynamoEventStore]:
    """A store with a new table."""
    table = f"events-{uuid.uuid4().hex}"
    create_table(client, table)
    yield DynamoEventStore(client, table)
    client.delete_table(TableName=table)  # each transaction of moto copies all tables


@pytest.mark.parametrize("check", SHORT_CHECKS, ids=lambda check: check.__name__)
def test_dynamodb_store_conforms(check: Check, store: DynamoEventStore) -> None:
    """An adapter of a third party, over another kind of database, keeps every rule of the suite."""
    check(store)


@pytest.mark.invariant("E2", "E4")
def test_racing_writers_store_each_event_once(store: DynamoEventStore) -> None:
    """Writers that append the same events get the same numbers, and the numbers have no gap."""
    events = make_completions(new_engine_run_id(), 12)
    with ThreadPoolExecutor(WRITERS) as pool:
        results = list(pool.map(lambda event: store.append(event).run_seq, events * WRITERS))
    assert results == results[: len(events)] * WRITERS
    assert (
        sorted(results[: len(events)])
        == [each.run_seq for each in store.fetch(events[0].engine_run_id)]
        == [*range(1, 13)]
    )
