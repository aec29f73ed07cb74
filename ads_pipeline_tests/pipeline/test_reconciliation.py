"""Reconciliation: plans are pure and ordered, and one pass repairs all differences."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action, Status, Verdict
from ads_pipeline.lake.warehouse.table_values import HeldPartition
from ads_pipeline.ledger.sql.ledger_values import DayWindow, ExpectedContent
from ads_pipeline.pipeline.reconciliation import Repair, RepairKind, find_differences, plan_repairs
from ads_pipeline_tests.lake.warehouse.builders import make_load, publish_loads, read_with_duckdb
from ads_pipeline_tests.ledger.builders import action_request, record_verdict, rejection
from ads_pipeline_tests.ledger.forging import forge
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    SOURCE,
    LocalDeployment,
    corrupt_payload,
    key,
    seal_run,
    visible_runs,
)

RUN_IDS = ("r1", "r2", "r3")


def reconcile(deployment: LocalDeployment) -> list[str]:
    repairs = deployment.reconciliation.repair(DayWindow(source=SOURCE, query_name=QUERY)).repairs
    return [f"{repair.kind.name} {repair.key.customer_id}" for repair in repairs]


@st.composite
def contents(draw: st.DrawFn) -> ExpectedContent:
    """Any content of one of five partitions that the ledger can expect."""
    status = draw(st.sampled_from(Status))
    current = draw(st.sampled_from(RUN_IDS)) if status is Status.SUCCESS else None
    return ExpectedContent(
        customer_id=str(draw(st.integers(1, 5))),
        logical_date=key().logical_date,
        run_id=current,
        schema_version="1" if current else None,
        record_count=draw(st.sampled_from([0, 2])) if current else None,
        status=status,
        is_publishable=status is Status.SUCCESS and draw(st.booleans()),
        points_at_current=status is Status.SUCCESS and draw(st.booleans()),
    )


tables = st.dictionaries(
    st.integers(1, 6).map(key),
    st.builds(
        HeldPartition,
        run_id=st.sampled_from([None, *RUN_IDS]),
        schema_version=st.sampled_from(["1", "2"]),
        rows=st.sampled_from([2, 3]),
    ),
)


def plan(
    expected: list[ExpectedContent], held: dict[PartitionKey, HeldPartition], accepted: set[str]
) -> list[Repair]:
    readable = {Run(key=partition, run_id=run_id) for partition in map(key, range(1, 7)) for run_id in accepted}
    demotions = [_demotion(each) for each in expected if _is_demoting(each)]
    differences = find_differences(SOURCE, QUERY, expected, held)
    return plan_repairs(differences, demotions=demotions, readable=readable)


@pytest.mark.invariant("W9", "W10")
@given(contents(), tables)
def test_only_a_difference_needs_repair(expected: ExpectedContent, held: dict[PartitionKey, HeldPartition]) -> None:
    """A partition needs no repair if the table and the pointer have exactly the current run, or may have nothing."""
    partition = _key(expected)
    found = {each: held[each] for each in held if each == partition}
    rows = {partition: (expected.run_id, expected.schema_version, expected.record_count)}
    in_table = {each: (content.run_id, content.schema_version, content.rows) for each, content in found.items()}
    if expected.is_publishable:
        matches = expected.points_at_current and in_table == (rows if expected.record_count else {})
    else:
        matches = not found and not _is_demoting(expected)
    assert (plan([expected], found, set()) == []) == matches


@pytest.mark.invariant("W9")
@given(st.lists(contents(), unique_by=lambda each: each.customer_id), tables, st.sets(st.sampled_from(RUN_IDS)))
def test_second_plan_is_empty(
    found: list[ExpectedContent], held: dict[PartitionKey, HeldPartition], accepted: set[str]
) -> None:
    """For any ledger and table, the plan after all repairs is empty. The order of the input does not matter."""
    repairs = plan(found, held, accepted)
    assert repairs == plan(found[::-1], dict(reversed(held.items())), accepted)
    assert [repair.kind for repair in repairs] == sorted(repair.kind for repair in repairs)
    after, table = _apply(repairs, found, held)
    assert plan(after, table, accepted) == []


def _key(content: ExpectedContent) -> PartitionKey:
    return key(int(content.customer_id))


def _is_demoting(content: ExpectedContent) -> bool:
    return content.status == Status.SUCCESS and not content.is_publishable


def _demotion(content: ExpectedContent) -> Verdict:
    return rejection(Run(key=_key(content), run_id=str(content.run_id)))


def _apply(
    repairs: list[Repair], found: list[ExpectedContent], held: dict[PartitionKey, HeldPartition]
) -> tuple[list[ExpectedContent], dict[PartitionKey, HeldPartition]]:
    """Apply repairs to plain values."""
    after, table = {_key(each): each for each in found}, dict(held)
    for repair in repairs:
        if repair.kind in (RepairKind.DEMOTE, RepairKind.REMOVE, RepairKind.LOAD):
            table.pop(repair.key, None)
        if repair.kind is RepairKind.DEMOTE:
            after[repair.key] = after[repair.key]._replace(status=Status.FAILED, points_at_current=False)
        if repair.kind in (RepairKind.LOAD, RepairKind.POINT):
            content = after[repair.key] = after[repair.key]._replace(points_at_current=True)
            if content.record_count:
                table[repair.key] = HeldPartition(
                    run_id=content.run_id, schema_version=content.schema_version, rows=content.record_count
                )
    return list(after.values()), table


def test_every_kind_of_difference_is_repaired(deployment: LocalDeployment) -> None:
    """One pass repairs all of them, demotions first; a second pass finds nothing."""
    unpointed, withdrawn, demoting, unloaded = (seal_run(deployment, key(customer)) for customer in (1, 2, 3, 4))
    deployment.pipeline.judge_and_load([withdrawn, demoting])
    deployment.pipeline.validation.judge([unloaded, unpointed])
    loads = [make_load("r1", unpointed.key, 2), make_load("x", key(5), 2)]
    publish_loads(deployment.spark, deployment.warehouse_location, loads)
    deployment.ledger.actions.execute(Action.WITHDRAW, [withdrawn.key], action_request())
    corrupt_payload(deployment, demoting)
    deployment.ledger.verdicts.begin_demotions([rejection(demoting, validation_id="v2")])
    assert reconcile(deployment) == ["DEMOTE 3", "REMOVE 2", "REMOVE 5", "LOAD 4", "POINT 1"]
    assert reconcile(deployment) == []
    assert visible_runs(deployment) == {unpointed.key: "r1", unloaded.key: "r1"}
    assert set(read_with_duckdb(deployment.warehouse_location)) == {unpointed.key, unloaded.key}
    assert deployment.ledger.states.get(demoting.key).status is Status.FAILED


@pytest.mark.invariant("W8")
def test_lost_table_is_rebuilt(deployment: LocalDeployment) -> None:
    """A deleted table is loaded again from raw, with the same visible runs."""
    deployment.pipeline.judge_and_load([seal_run(deployment, key(1)), seal_run(deployment, key(2))])
    before = visible_runs(deployment)
    shutil.rmtree(deployment.home / "warehouse")
    assert reconcile(deployment) == ["LOAD 1", "LOAD 2"]
    assert visible_runs(deployment) == before
    assert reconcile(deployment) == []


@pytest.mark.invariant("W10")
def test_wrong_schema_version_is_repaired(deployment: LocalDeployment) -> None:
    """The right run under the wrong schema version is a difference."""
    run = seal_run(deployment, key())
    deployment.pipeline.validation.judge([run])
    other = make_load("r1", key(), 2, schema_version="0")
    publish_loads(deployment.spark, deployment.warehouse_location, [other])
    assert reconcile(deployment) == ["LOAD 1"]
    assert reconcile(deployment) == []


@pytest.mark.invariant("W10")
def test_pointer_with_another_schema_version_is_repaired(deployment_on_each_database: LocalDeployment) -> None:
    """A pointer at the right run with a schema version or row count that the state does not have is loaded again."""
    deployment = deployment_on_each_database
    first, second = seal_run(deployment, key(1)), seal_run(deployment, key(2))
    deployment.pipeline.judge_and_load([first, second])
    for column, value, run in ("schema_version", "'9'", first), ("record_count", "7", second):
        forge(
            deployment.ledger.engine,
            f"UPDATE warehouse_pointer SET {column} = {value} WHERE customer_id = '{run.key.customer_id}'",
        )
    assert reconcile(deployment) == ["POINT 1", "POINT 2"]
    pointers = deployment.ledger.publications.pointers([first.key, second.key]).values()
    assert [(pointer.schema_version, pointer.record_count) for pointer in pointers] == [("1", 2), ("1", 2)]
    assert reconcile(deployment) == []


def test_rejected_rows_are_removed_before_the_next_load(deployment: LocalDeployment) -> None:
    """The rows are gone even if the load of the next run fails."""
    first = seal_run(deployment, key())
    deployment.pipeline.judge_and_load([first])
    record_verdict(deployment.ledger, rejection(first, validation_id="again"))
    deployment.pipeline.validation.judge([seal_run(deployment, key(), "r2")])
    assert reconcile(deployment) == ["REMOVE 1", "LOAD 1"]
    assert visible_runs(deployment) == {key(): "r2"}


def test_unrepairable_difference_is_reported_every_time(deployment: LocalDeployment) -> None:
    """An accepted run without raw data cannot be loaded; the other partitions are repaired."""
    lost, valid = seal_run(deployment, key(1)), seal_run(deployment, key(2))
    deployment.pipeline.validation.judge([lost, valid])
    shutil.rmtree(deployment.home / "raw" / lost.path)
    result = deployment.reconciliation.repair(DayWindow(source=SOURCE, query_name=QUERY))
    assert set(result.loading.unreadable) == {lost}
    assert visible_runs(deployment) == {valid.key: "r1"}
    assert [str(repair) for repair in deployment.differences()] == [
        f"load {lost.key}: the table holds nothing, current is r1"
    ]


def test_only_days_in_the_window_are_repaired(deployment: LocalDeployment) -> None:
    """Differences on other days stay."""
    runs = [seal_run(deployment, key(1, day)) for day in (1, 2, 3)]
    deployment.pipeline.validation.judge(runs)
    day = runs[1].key.logical_date
    deployment.reconciliation.repair(DayWindow(source=SOURCE, query_name=QUERY, since=day, until=day))
    assert visible_runs(deployment) == {runs[1].key: "r1"}
    assert [repair.key for repair in deployment.differences()] == [runs[0].key, runs[2].key]
