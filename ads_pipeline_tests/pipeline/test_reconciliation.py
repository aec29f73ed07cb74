"""Reconciliation: plans are pure and ordered, and one pass repairs all differences."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action, PartitionState, Status, Verdict
from ads_pipeline.ledger.values import ExpectedContent, Pointer, PublicationStatus
from ads_pipeline.pipeline.reconciliation import Repair, RepairKind, _matches, plan_repairs
from ads_pipeline.warehouse.values import HeldPartition
from ads_pipeline_tests.ledger.builders import action_request, record_verdict, rejection
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    SOURCE,
    LocalDeployment,
    corrupt_payload,
    key,
    seal_run,
    visible_runs,
)
from ads_pipeline_tests.warehouse.builders import keep_all_runs, make_load, make_rows, read_with_duckdb

NOW = datetime(2026, 3, 1, tzinfo=UTC)
RUN_IDS = ("r1", "r2", "r3")


def reconcile(deployment: LocalDeployment) -> list[str]:
    repairs = deployment.reconciliation.repair(source=SOURCE, query_name=QUERY).repairs
    return [f"{repair.kind.name} {repair.key.customer_id}" for repair in repairs]


@st.composite
def publication_statuses(draw: st.DrawFn) -> PublicationStatus:
    """Any status of one of five partitions that the ledger can hold."""
    partition = key(draw(st.integers(1, 5)))
    status = draw(st.sampled_from(Status))
    current = draw(st.sampled_from(RUN_IDS)) if status is Status.SUCCESS else None
    state = PartitionState(
        key=partition,
        status=status,
        current_run_id=current,
        schema_version="1" if current else None,
        record_count=draw(st.sampled_from([0, 2])) if current else None,
        updated_at=NOW,
    )
    pointed = draw(st.sampled_from([None, *RUN_IDS]))
    pointer = pointed and Pointer(
        run=Run(key=partition, run_id=pointed),
        schema_version="1",
        record_count=2,
        table_version=1,
        is_published=draw(st.booleans()) and status is Status.SUCCESS,
        changed_at=NOW,
    )
    return PublicationStatus(
        state=state,
        pointer=pointer or None,
        demotion_pending=status is Status.SUCCESS and draw(st.booleans()),
        has_unjudged_run=False,
    )


tables = st.dictionaries(
    st.integers(1, 6).map(key),
    st.builds(
        HeldPartition,
        run_id=st.sampled_from([None, *RUN_IDS]),
        schema_version=st.just("1"),
        rows=st.sampled_from([2, 3]),
    ),
)


@given(publication_statuses(), tables, st.sets(st.sampled_from(RUN_IDS)))
def test_matching_partition_needs_no_repair(
    publication: PublicationStatus, contents: dict[PartitionKey, HeldPartition], accepted: set[str]
) -> None:
    """If the quick comparison finds no difference, the plan has no repair."""
    state = publication.state
    held = contents.get(state.key)
    content = ExpectedContent(
        customer_id=state.key.customer_id,
        logical_date=state.key.logical_date,
        run_id=state.current_run_id,
        schema_version=state.schema_version,
        record_count=state.record_count,
        is_publishable=publication.is_publishable,
        points_at_current=publication.points_at_current,
    )
    readable = {Run(key=state.key, run_id=run_id) for run_id in accepted}
    found = {} if held is None else {state.key: held}
    if _matches(content, held):
        assert plan_repairs([publication], found, demotions=[], readable=readable) == []


@pytest.mark.invariant("W9")
@given(
    st.lists(publication_statuses(), unique_by=lambda each: each.state.key), tables, st.sets(st.sampled_from(RUN_IDS))
)
def test_second_plan_is_empty(
    found: list[PublicationStatus], held: dict[PartitionKey, HeldPartition], accepted: set[str]
) -> None:
    """For any ledger and table, the plan after all repairs is empty. The order of the input does not matter."""
    readable = {Run(key=partition, run_id=run_id) for partition in map(key, range(1, 7)) for run_id in accepted}
    demotions = [_demotion(each) for each in found if each.demotion_pending]
    repairs = plan_repairs(found, held, demotions=demotions, readable=readable)
    assert repairs == plan_repairs(
        found[::-1], dict(reversed(held.items())), demotions=demotions[::-1], readable=readable
    )
    assert [repair.kind for repair in repairs] == sorted(repair.kind for repair in repairs)
    after, table = _apply(repairs, found, held)
    assert (
        plan_repairs(
            after, table, demotions=[_demotion(each) for each in after if each.demotion_pending], readable=readable
        )
        == []
    )


def _demotion(publication: PublicationStatus) -> Verdict:
    run = Run(key=publication.state.key, run_id=str(publication.state.current_run_id))
    return rejection(run)


def _apply(
    repairs: list[Repair], found: list[PublicationStatus], held: dict[PartitionKey, HeldPartition]
) -> tuple[list[PublicationStatus], dict[PartitionKey, HeldPartition]]:
    """Apply repairs to plain values."""
    after, table = {each.state.key: each for each in found}, dict(held)
    for repair in repairs:
        if repair.kind in (RepairKind.DEMOTE, RepairKind.REMOVE):
            table.pop(repair.key, None)
        if repair.kind is RepairKind.DEMOTE:
            publication = after[repair.key]
            failed = replace(publication.state, status=Status.FAILED)
            hidden = publication.pointer and replace(publication.pointer, is_published=False)
            after[repair.key] = replace(publication, state=failed, pointer=hidden, demotion_pending=False)
        if repair.kind in (RepairKind.LOAD, RepairKind.POINT):
            after[repair.key], loaded = _loaded(after[repair.key])
            table.pop(repair.key, None)
            table |= loaded
    return list(after.values()), table


def _loaded(publication: PublicationStatus) -> tuple[PublicationStatus, dict[PartitionKey, HeldPartition]]:
    state = publication.state
    rows = state.record_count or 0
    held = {state.key: HeldPartition(run_id=state.current_run_id, schema_version="1", rows=rows)} if rows else {}
    pointer = Pointer(
        run=Run(key=state.key, run_id=str(state.current_run_id)),
        schema_version="1",
        record_count=rows,
        table_version=2,
        is_published=True,
        changed_at=NOW,
    )
    return replace(publication, pointer=pointer), held


def test_every_kind_of_difference_is_repaired(deployment: LocalDeployment) -> None:
    """One pass repairs all of them, demotions first; a second pass finds nothing."""
    unpointed, withdrawn, demoting, unloaded = (seal_run(deployment, key(customer)) for customer in (1, 2, 3, 4))
    deployment.pipeline.judge_and_load([withdrawn, demoting])
    deployment.pipeline.validation.judge([unloaded, unpointed])
    deployment.warehouse.replace(
        deployment.spark,
        make_rows(deployment.spark, [make_load("r1", unpointed.key, 2), make_load("x", key(5), 2)]),
        [make_load("r1", unpointed.key, 2), make_load("x", key(5), 2)],
        is_publishable=keep_all_runs,
    )
    deployment.ledger.actions.execute(Action.WITHDRAW, [withdrawn.key], action_request())
    corrupt_payload(deployment, demoting)
    deployment.ledger.verdicts.begin_demotions([rejection(demoting, validation_id="v2")])
    assert reconcile(deployment) == ["DEMOTE 3", "REMOVE 2", "REMOVE 5", "LOAD 4", "POINT 1"]
    assert reconcile(deployment) == []
    assert visible_runs(deployment) == {unpointed.key: "r1", unloaded.key: "r1"}
    assert set(read_with_duckdb(deployment.home / "warehouse")) == {unpointed.key, unloaded.key}
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
    other = replace(make_load("r1", key(), 2), schema_version="0")
    deployment.warehouse.replace(
        deployment.spark,
        make_rows(deployment.spark, [other]).drop("cost", "campaign_id"),
        [other],
        is_publishable=keep_all_runs,
    )
    assert reconcile(deployment) == ["LOAD 1"]
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
    result = deployment.reconciliation.repair(source=SOURCE, query_name=QUERY)
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
    deployment.reconciliation.repair(source=SOURCE, query_name=QUERY, since=day, until=day)
    assert visible_runs(deployment) == {runs[1].key: "r1"}
    assert [repair.key for repair in deployment.differences()] == [runs[0].key, runs[2].key]
