"""Publishing runs: pointers, load records, and superseded runs."""

import pytest

from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import PublishResult, StateFilter
from ads_pipeline_tests.ledger.builders import (
    ROWS,
    acceptance,
    accepted_runs,
    action_request,
    key,
    keys,
    load_records,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
    run,
)

K = key()


def test_publish_sets_pointer_and_load_record(ledger: Ledger) -> None:
    """The pointer holds run, schema version, record count and table version."""
    accepted_runs(ledger, [K])
    result = ledger.loads.publish([run(K, "r1")], table_version=7)
    assert result == PublishResult(published=(run(K, "r1"),), superseded=(), moved=(run(K, "r1"),))
    pointer = ledger.publications.pointers([K])[K]
    assert (
        pointer.run,
        pointer.schema_version,
        pointer.record_count,
        pointer.table_version,
        pointer.is_published,
    ) == (
        run(K, "r1"),
        "1",
        ROWS,
        7,
        True,
    )
    (record,) = load_records(ledger, K)
    assert (record.run_id, record.table_version) == ("r1", 7)


@pytest.mark.invariant("W6")
def test_publishing_again_changes_nothing(ledger: Ledger) -> None:
    """A run that is published again keeps its pointer and its load record unchanged."""
    accepted_runs(ledger, [K])
    ledger.loads.publish([run(K, "r1")], table_version=7)
    before = ledger.publications.pointers([K]), load_records(ledger, K)
    assert ledger.loads.publish([run(K, "r1")], table_version=8).published == (run(K, "r1"),)
    assert (ledger.publications.pointers([K]), load_records(ledger, K)) == before


@pytest.mark.invariant("W12")
def test_only_the_current_run_of_a_success_is_published(ledger: Ledger) -> None:
    """Runs of absent, pending, failed and superseded partitions are returned as superseded."""
    absent, pending, failing, superseded, good = keys(5)
    ledger.registrations.insert_pending([pending])
    (bad,) = registered_runs(ledger, failing, "r1")
    record_verdict(ledger, rejection(bad))
    accepted_runs(ledger, [superseded, good])
    (newer,) = registered_runs(ledger, superseded, "r2")
    record_verdict(ledger, acceptance(newer))
    runs = [run(partition, "r1") for partition in (absent, pending, failing, superseded, good)]
    result = ledger.loads.publish(runs, table_version=1)
    published = (run(good, "r1"),)
    assert result == PublishResult(published=published, superseded=tuple(runs[:4]), moved=published)
    assert set(ledger.publications.pointers([absent, pending, failing, superseded, good])) == {good}


def test_new_run_moves_pointer_and_adds_load_record(ledger: Ledger) -> None:
    """A run that is published again later keeps its first load record."""
    first, second = registered_runs(ledger, K, "r1", "r2")
    record_verdict(ledger, acceptance(first))
    ledger.loads.publish([first], table_version=1)
    record_verdict(ledger, acceptance(second))
    ledger.loads.publish([second], table_version=2)
    ledger.verdicts.record([rejection(second, validation_id="v2"), acceptance(first, "v2")])
    ledger.loads.publish([first], table_version=3)
    assert ledger.publications.pointers([K])[K].run == first
    assert ledger.publications.pointers([K])[K].table_version == 3
    assert {record.run_id: record.table_version for record in load_records(ledger, K)} == {"r1": 1, "r2": 2}


def test_demoted_run_accepted_again_is_published_again(ledger: Ledger) -> None:
    """Its pointer is unavailable until the next load. Pointers of other partitions stay available."""
    partitions = keys(2)
    accepted_runs(ledger, partitions)
    ledger.loads.publish([run(partition, "r1") for partition in partitions], table_version=1)
    first = run(partitions[0], "r1")
    ledger.verdicts.record([rejection(first, validation_id="v2"), acceptance(first, "v3")])
    available = {
        partition: pointer.is_published for partition, pointer in ledger.publications.pointers(partitions).items()
    }
    assert list(available.values()) == [False, True]
    ledger.loads.publish([first], table_version=5)
    pointer = ledger.publications.pointers(partitions)[partitions[0]]
    assert (pointer.is_published, pointer.table_version) == (True, 5)


def test_withdrawn_run_cannot_be_published(ledger: Ledger) -> None:
    """After a withdrawal, publish returns the run as superseded."""
    accepted_runs(ledger, [K])
    ledger.actions.execute(Action.WITHDRAW, [K], action_request())
    assert ledger.loads.publish([run(K, "r1")], table_version=1).superseded == (run(K, "r1"),)


def test_load_records_are_read_page_by_page(ledger: Ledger) -> None:
    """Pages are in key order; a record says whether readers see its run now."""
    first, second, third = keys(3)
    accepted_runs(ledger, keys(3))
    publish_runs(ledger, *(run(each, "r1") for each in keys(3)))
    accepted_runs(ledger, [second], "r2")
    publish_runs(ledger, run(second, "r2"))
    ledger.actions.execute(Action.WITHDRAW, [third], action_request())
    records = ledger.publications.page_of_loads(StateFilter(), limit=10)
    assert [(record.run, record.is_shown) for record in records] == [
        (run(first, "r1"), True),
        (run(second, "r1"), False),
        (run(second, "r2"), True),
        (run(third, "r1"), False),
    ]
    assert {(record.schema_version, record.record_count) for record in records} == {("1", ROWS)}
    page = ledger.publications.page_of_loads(StateFilter(), after=records[0].run, limit=2)
    assert page == records[1:3]
    only_second = StateFilter(customer_ids=frozenset({second.customer_id}))
    assert ledger.publications.page_of_loads(only_second) == records[1:3]
