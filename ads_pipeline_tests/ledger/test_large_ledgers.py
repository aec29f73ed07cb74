"""Generated large ledgers equal ledgers that were written by verdicts and loads."""

from collections import Counter
from dataclasses import replace

import pytest

from ads_pipeline.domain.transitions import Outcome, Status
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import DayWindow, ExpectedContent, StateFilter
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.pipeline.reconciliation import ReconcilePlanner
from ads_pipeline_tests.benchmarks.planning import GeneratedWarehouse
from ads_pipeline_tests.ledger.builders import accepted_runs, load_records, publish_runs
from ads_pipeline_tests.ledger.large_ledgers import (
    KINDS,
    QUERIES,
    SOURCE,
    GeneratedPartition,
    LedgerShape,
    PartitionKind,
    fill_ledger,
)

SHAPE = LedgerShape(queries=2, customers=25, days=40)


@pytest.fixture
def large_ledger(ledger: Ledger, url: str) -> Ledger:
    fill_ledger(url, SHAPE)
    return ledger


def _one_of_each_kind() -> dict[str, GeneratedPartition]:
    return {each.kind: each for each in SHAPE.partitions()}


def test_each_kind_has_its_share(large_ledger: Ledger) -> None:
    """The counts of partitions by status match the shares of the kinds."""
    shares = Counter[str]()
    for each in SHAPE.partitions():
        shares[KINDS[each.kind].status] += 1
    assert large_ledger.states.count_by_status(StateFilter()) == {status: shares[status] for status in Status}
    assert set(_one_of_each_kind()) == set(KINDS)


def test_tables_of_each_kind_agree(large_ledger: Ledger) -> None:
    """Runs, attempts, state, pointer and load record of a partition match its kind."""
    for each in _one_of_each_kind().values():
        kind, state = KINDS[each.kind], large_ledger.states.get(each.key)
        runs, attempts = large_ledger.runs.registered(each.key), large_ledger.runs.attempts(each.key)
        assert [run.run.run_id for run in runs] == [each.run_id(number + 1) for number in range(kind.runs)]
        assert [attempt.verdict.outcome for attempt in attempts] == _verdicts(kind)
        assert (state.status, state.attempt_count) == (kind.status, len(attempts))
        publication = large_ledger.publications.get(each.key)
        assert publication is not None
        assert (publication.pointer and publication.pointer.run.run_id) == (kind.loaded and each.run_id(kind.loaded))
        assert publication.demotion_pending == bool(kind.demoting)
        assert [record.run_id for record in load_records(large_ledger, each.key)] == (
            [each.run_id(kind.loaded)] if kind.loaded else []
        )


def _verdicts(kind: PartitionKind) -> list[Outcome]:
    return [Outcome(verdict) for verdict in (kind.first, kind.second) if verdict]


def test_expected_contents_match_publication_statuses(large_ledger: Ledger) -> None:
    """Both list every partition of a query with the same run. Reading by key gives the same rows."""
    publications = large_ledger.publications.in_window(DayWindow(source=SOURCE, query_name=QUERIES[0]))
    expected = {
        ExpectedContent(
            customer_id=each.state.key.customer_id,
            logical_date=each.state.key.logical_date,
            run_id=each.state.current_run_id,
            schema_version=each.state.schema_version,
            record_count=each.state.record_count,
            status=each.state.status,
            is_publishable=each.is_publishable,
            points_at_current=each.points_at_current,
        )
        for each in publications
    }
    contents = large_ledger.publications.expected_contents(DayWindow(source=SOURCE, query_name=QUERIES[0]))
    assert set(contents) == expected
    assert len(contents) == len(publications) == SHAPE.customers * SHAPE.days
    for keys in ([each.state.key for each in publications], [publications[7].state.key], []):
        by_key = sorted(
            large_ledger.publications.get_many(keys), key=lambda each: (each.state.key.logical_date, each.state.key)
        )
        assert by_key == [each for each in publications if each.state.key in set(keys)]


def test_plan_finds_each_difference(large_ledger: Ledger) -> None:
    """Reconciliation plans repairs for exactly the partitions whose table content differs from the ledger."""
    comparison = ReconcilePlanner(publications=large_ledger.publications, warehouse=GeneratedWarehouse(SHAPE))
    for query_name in QUERIES[: SHAPE.queries]:
        planned = comparison.plan(DayWindow(source=SOURCE, query_name=query_name)).repairs
        partitions = [each for each in SHAPE.partitions() if each.query_name == query_name]
        assert sorted(repair.key for repair in planned) == sorted(
            each.key for each in partitions if KINDS[each.kind].differs
        )


def test_rebuilt_partition_status_is_equal(large_ledger: Ledger) -> None:
    """A rebuild from attempts and finished attempts gives the same rows, except for the random part of versions."""
    status_table = StatusTable(large_ledger.engine)
    before = [replace(status, row_version=status.row_version[:12]) for status in status_table.read_all()]
    assert status_table.rebuild() == len(before) > 0
    assert [replace(status, row_version=status.row_version[:12]) for status in status_table.read_all()] == before


def test_new_verdicts_and_loads_work(large_ledger: Ledger) -> None:
    """A failed partition gets its next verdict and is loaded."""
    waiting = _one_of_each_kind()["waiting"].key
    (recorded,) = accepted_runs(large_ledger, [waiting], "r9")
    assert (recorded.attempt_no, recorded.state.status) == (2, Status.SUCCESS)
    assert publish_runs(large_ledger, recorded.verdict.run).published == (recorded.verdict.run,)
