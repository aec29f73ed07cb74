"""Publishing and withdrawing: what the warehouse may show, and the record of each load."""

import pytest

from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import Publication, PublishResult
from ads_pipeline_tests.ledger.builders import (
    ROWS,
    acceptance,
    accepted_runs,
    action_request,
    key,
    keys,
    load_records,
    registered_runs,
    rejection,
    run,
)

K = key()


def test_publishing_points_readers_at_the_run(ledger: Ledger) -> None:
    """The pointer and the load record tell run, schema version, rows and table version."""
    accepted_runs(ledger, [K])
    answer = ledger.publish([Publication(run=run(K, "r1"), table_version=7)])
    assert answer == PublishResult(published=(run(K, "r1"),), outdated=())
    pointer = ledger.pointers([K])[K]
    assert (pointer.run, pointer.schema_version, pointer.record_count, pointer.table_version, pointer.available) == (
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
    """The same run published again leaves pointer and load record to the letter as they were."""
    accepted_runs(ledger, [K])
    ledger.publish([Publication(run=run(K, "r1"), table_version=7)])
    before = ledger.pointers([K]), load_records(ledger, K)
    assert ledger.publish([Publication(run=run(K, "r1"), table_version=8)]).published == (run(K, "r1"),)
    assert (ledger.pointers([K]), load_records(ledger, K)) == before


@pytest.mark.invariant("W12")
def test_only_the_current_run_of_a_success_is_published(ledger: Ledger) -> None:
    """Absent, pending, failed and overtaken partitions are left out by name; the others are published."""
    absent, pending, failing, overtaken, good = keys(5)
    ledger.insert_pending([pending])
    (bad,) = registered_runs(ledger, failing, "r1")
    ledger.record_verdict(rejection(bad))
    accepted_runs(ledger, [overtaken, good])
    (newer,) = registered_runs(ledger, overtaken, "r2")
    ledger.record_verdict(acceptance(newer))
    everyone = [run(partition, "r1") for partition in (absent, pending, failing, overtaken, good)]
    answer = ledger.publish([Publication(run=each, table_version=1) for each in everyone])
    assert answer == PublishResult(published=(run(good, "r1"),), outdated=tuple(everyone[:4]))
    assert set(ledger.pointers([absent, pending, failing, overtaken, good])) == {good}


def test_a_new_run_moves_the_pointer_and_adds_a_load_record(ledger: Ledger) -> None:
    """One pointer a partition, one load record a run; coming back to a run keeps its first record."""
    first, second = registered_runs(ledger, K, "r1", "r2")
    ledger.record_verdict(acceptance(first))
    ledger.publish([Publication(run=first, table_version=1)])
    ledger.record_verdict(acceptance(second))
    ledger.publish([Publication(run=second, table_version=2)])
    ledger.record_verdicts([rejection(second, validation_id="v2"), acceptance(first, "v2")])
    ledger.publish([Publication(run=first, table_version=3)])
    assert ledger.pointers([K])[K].run == first
    assert ledger.pointers([K])[K].table_version == 3
    assert {record.run_id: record.table_version for record in load_records(ledger, K)} == {"r1": 1, "r2": 2}


def test_a_demoted_run_that_is_accepted_after_all_is_published_again(ledger: Ledger) -> None:
    """Its pointer is unavailable until it is loaded anew, and its neighbours' pointers are as they were."""
    partitions = keys(2)
    accepted_runs(ledger, partitions)
    ledger.publish([Publication(run=run(partition, "r1"), table_version=1) for partition in partitions])
    first = run(partitions[0], "r1")
    ledger.record_verdicts([rejection(first, validation_id="v2"), acceptance(first, "v3")])
    available = {partition: pointer.available for partition, pointer in ledger.pointers(partitions).items()}
    assert list(available.values()) == [False, True]
    ledger.publish([Publication(run=first, table_version=5)])
    pointer = ledger.pointers(partitions)[partitions[0]]
    assert (pointer.available, pointer.table_version) == (True, 5)


def test_a_withdrawn_success_cannot_be_published(ledger: Ledger) -> None:
    """After an operator withdrew a partition its run is outdated for the loader."""
    accepted_runs(ledger, [K])
    ledger.execute(Action.WITHDRAW, [K], action_request())
    assert ledger.publish([Publication(run=run(K, "r1"), table_version=1)]).outdated == (run(K, "r1"),)
