"""Ledgers that were filled at once answer as those do that came to be verdict by verdict."""

from collections import Counter
from dataclasses import replace

import pytest

from ads_pipeline.domain.transitions import Outcome, Status
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.values import ExpectedContent, StateFilter
from ads_pipeline.pipeline.reconciliation import ReconcilePlanner
from ads_pipeline_tests.benchmarks.planning import Given
from ads_pipeline_tests.ledger.builders import accepted_runs, load_records, publish_runs
from ads_pipeline_tests.ledger.large_ledgers import KINDS, QUERIES, SOURCE, Kind, Partition, Shape, grow

SHAPE = Shape(queries=2, customers=25, days=40)


@pytest.fixture
def grown(ledger: Ledger, url: str) -> Ledger:
    grow(url, SHAPE)
    return ledger


def _one_of_each() -> dict[str, Partition]:
    return {each.kind: each for each in SHAPE.partitions()}


def test_every_partition_is_there_in_its_share(grown: Ledger) -> None:
    """There are as many partitions as the shape says, of each status as many as its kinds."""
    shares = Counter[str]()
    for each in SHAPE.partitions():
        shares[KINDS[each.kind].status] += 1
    assert grown.count_by_status(StateFilter()) == {status: shares[status] for status in Status}
    assert set(_one_of_each()) == set(KINDS)


def test_each_kind_is_what_its_verdicts_made_of_it(grown: Ledger) -> None:
    """Runs, attempts, state and pointer of a partition tell one story."""
    for each in _one_of_each().values():
        kind, state = KINDS[each.kind], grown.state(each.key)
        runs, attempts = grown.runs(each.key), grown.attempts(each.key)
        assert [run.run.run_id for run in runs] == [each.run_id(number + 1) for number in range(kind.runs)]
        assert [attempt.outcome for attempt in attempts] == _verdicts(kind)
        assert (state.status, state.attempt_count) == (kind.status, len(attempts))
        standing = grown.publication_status(each.key)
        assert standing is not None
        assert (standing.pointer and standing.pointer.run.run_id) == (kind.loaded and each.run_id(kind.loaded))
        assert standing.demotion_pending == bool(kind.demoting)
        assert [record.run_id for record in load_records(grown, each.key)] == (
            [each.run_id(kind.loaded)] if kind.loaded else []
        )


def _verdicts(kind: Kind) -> list[Outcome]:
    return [Outcome(verdict) for verdict in (kind.first, kind.second) if verdict]


def test_outlines_and_standings_tell_the_same(grown: Ledger) -> None:
    """Every partition of a query is in both, with the same run, and asked for by key it is as in the whole list."""
    standings = grown.publication_statuses_of_query(source=SOURCE, query_name=QUERIES[0])
    told = {
        ExpectedContent(
            customer_id=each.state.key.customer_id,
            logical_date=each.state.key.logical_date,
            run_id=each.state.current_run_id,
            schema_version=each.state.schema_version,
            record_count=each.state.record_count,
            is_publishable=each.is_publishable,
            points_at_current=each.points_at_current,
        )
        for each in standings
    }
    found = grown.expected_contents(source=SOURCE, query_name=QUERIES[0])
    assert {each._replace(points_at_current=bool(each.points_at_current)) for each in found} == told
    assert len(found) == len(standings) == SHAPE.customers * SHAPE.days
    for keys in ([each.state.key for each in standings], [standings[7].state.key], []):
        asked = sorted(grown.publication_statuses(keys), key=lambda each: (each.state.key.logical_date, each.state.key))
        assert asked == [each for each in standings if each.state.key in set(keys)]


def test_a_plan_finds_each_difference(grown: Ledger) -> None:
    """Of many partitions those are planned for, and no others, that the tables do not hold as the ledger says."""
    comparison = ReconcilePlanner(ledger=grown, warehouse=Given(SHAPE))
    for query_name in QUERIES[: SHAPE.queries]:
        planned = comparison.plan(source=SOURCE, query_name=query_name)
        mine = [each for each in SHAPE.partitions() if each.query_name == query_name]
        assert sorted(repair.key for repair in planned) == sorted(
            each.key for each in mine if KINDS[each.kind].differs
        )


def test_its_statuses_are_what_the_logs_give(grown: Ledger) -> None:
    """Made anew from attempts and finishes, every status is as it was, but for what tells versions apart."""
    book = StatusTable(grown._engine)
    before = [replace(status, row_version=status.row_version[:12]) for status in book.read_all()]
    assert book.rebuild() == len(before) > 0
    assert [replace(status, row_version=status.row_version[:12]) for status in book.read_all()] == before


def test_life_goes_on_in_it(grown: Ledger) -> None:
    """A failed partition takes its next verdict, and is loaded."""
    waiting = _one_of_each()["waiting"].key
    (recorded,) = accepted_runs(grown, [waiting], "r9")
    assert (recorded.attempt_no, recorded.state.status) == (2, Status.SUCCESS)
    assert publish_runs(grown, recorded.verdict.run).published == (recorded.verdict.run,)
