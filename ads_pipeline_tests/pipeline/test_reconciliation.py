"""Reconciliation: a plan is a function of what it is given, in one order, and carried out it leaves nothing."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action, Outcome, PartitionState, Status, Verdict
from ads_pipeline.ledger.values import ExpectedContent, Pointer, PublicationStatus
from ads_pipeline.pipeline.reconciliation import Repair, RepairKind, _matches, plan_repairs
from ads_pipeline.warehouse.values import HeldPartition
from ads_pipeline_tests.ledger.builders import action_request, rejection
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


def mended(house: LocalDeployment) -> list[str]:
    repairs = house.reconciliation.repair(source=SOURCE, query_name=QUERY).repairs
    return [f"{repair.kind.name} {repair.key.customer_id}" for repair in repairs]


@st.composite
def standings(draw: st.DrawFn) -> PublicationStatus:
    """Any standing of one of five partitions that the ledger can hold."""
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
        available=draw(st.booleans()) and status is Status.SUCCESS,
        changed_at=NOW,
    )
    return PublicationStatus(
        state=state,
        pointer=pointer or None,
        demoting=status is Status.SUCCESS and draw(st.booleans()),
        unjudged=False,
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


@given(standings(), tables, st.sets(st.sampled_from(RUN_IDS)))
def test_what_is_settled_needs_no_mending(
    standing: PublicationStatus, contents: dict[PartitionKey, HeldPartition], accepted: set[str]
) -> None:
    """A partition that its outline lets pass is one of which the plan says nothing."""
    state = standing.state
    held = contents.get(state.key)
    outline = ExpectedContent(
        customer_id=state.key.customer_id,
        logical_date=state.key.logical_date,
        run_id=state.current_run_id,
        schema_version=state.schema_version,
        record_count=state.record_count,
        publishable=standing.publishable,
        pointed_at_current=standing.pointed_at_current,
    )
    readable = {Run(key=state.key, run_id=run_id) for run_id in accepted}
    found = {} if held is None else {state.key: held}
    if _matches(outline, held):
        assert plan_repairs([standing], found, demotions=[], readable=readable) == []


@pytest.mark.invariant("W9")
@given(st.lists(standings(), unique_by=lambda each: each.state.key), tables, st.sets(st.sampled_from(RUN_IDS)))
def test_a_plan_carried_out_leaves_nothing(
    found: list[PublicationStatus], held: dict[PartitionKey, HeldPartition], accepted: set[str]
) -> None:
    """For any ledger and any table: carried out to the letter, the next plan is empty; and order does not matter."""
    readable = {Run(key=partition, run_id=run_id) for partition in map(key, range(1, 7)) for run_id in accepted}
    demotions = [_demotion(each) for each in found if each.demoting]
    repairs = plan_repairs(found, held, demotions=demotions, readable=readable)
    assert repairs == plan_repairs(
        found[::-1], dict(reversed(held.items())), demotions=demotions[::-1], readable=readable
    )
    assert [repair.kind for repair in repairs] == sorted(repair.kind for repair in repairs)
    after, table = _carried_out(repairs, found, held)
    assert (
        plan_repairs(after, table, demotions=[_demotion(each) for each in after if each.demoting], readable=readable)
        == []
    )


def _demotion(standing: PublicationStatus) -> Verdict:
    run = Run(key=standing.state.key, run_id=str(standing.state.current_run_id))
    return Verdict(run=run, outcome=Outcome.REJECTED, error_class="damaged", error_message="bad")


def _carried_out(
    repairs: list[Repair], found: list[PublicationStatus], held: dict[PartitionKey, HeldPartition]
) -> tuple[list[PublicationStatus], dict[PartitionKey, HeldPartition]]:
    """What each word of a plan means, on plain values."""
    after, table = {each.state.key: each for each in found}, dict(held)
    for repair in repairs:
        if repair.kind in (RepairKind.DEMOTE, RepairKind.REMOVE):
            table.pop(repair.key, None)
        if repair.kind is RepairKind.DEMOTE:
            standing = after[repair.key]
            failed = replace(standing.state, status=Status.FAILED)
            hidden = standing.pointer and replace(standing.pointer, available=False)
            after[repair.key] = replace(standing, state=failed, pointer=hidden, demoting=False)
        if repair.kind in (RepairKind.LOAD, RepairKind.POINT):
            after[repair.key], loaded = _loaded(after[repair.key])
            table.pop(repair.key, None)
            table |= loaded
    return list(after.values()), table


def _loaded(standing: PublicationStatus) -> tuple[PublicationStatus, dict[PartitionKey, HeldPartition]]:
    state = standing.state
    rows = state.record_count or 0
    held = {state.key: HeldPartition(run_id=state.current_run_id, schema_version="1", rows=rows)} if rows else {}
    pointer = Pointer(
        run=Run(key=state.key, run_id=str(state.current_run_id)),
        schema_version="1",
        record_count=rows,
        table_version=2,
        available=True,
        changed_at=NOW,
    )
    return replace(standing, pointer=pointer), held


def test_every_kind_of_difference_is_mended(house: LocalDeployment) -> None:
    """Unloaded, unpointed, withdrawn, foreign and half-demoted: one pass, demotions first, then nothing."""
    unpointed, withdrawn, demoting, unloaded = (seal_run(house, key(customer)) for customer in (1, 2, 3, 4))
    house.pipeline.judge_and_load([withdrawn, demoting])
    house.pipeline.validation.judge([unloaded, unpointed])
    house.warehouse.replace(
        house.spark,
        make_rows(house.spark, [make_load("r1", unpointed.key, 2), make_load("x", key(5), 2)]),
        [make_load("r1", unpointed.key, 2), make_load("x", key(5), 2)],
        is_publishable=keep_all_runs,
    )
    house.ledger.execute(Action.WITHDRAW, [withdrawn.key], action_request())
    corrupt_payload(house, demoting)
    bad = Verdict(
        run=demoting, outcome=Outcome.REJECTED, validation_id="v2", error_class="damaged", error_message="bad"
    )
    house.ledger.begin_demotions([bad])
    assert mended(house) == ["DEMOTE 3", "REMOVE 2", "REMOVE 5", "LOAD 4", "POINT 1"]
    assert mended(house) == []
    assert visible_runs(house) == {unpointed.key: "r1", unloaded.key: "r1"}
    assert set(read_with_duckdb(house.home / "warehouse")) == {unpointed.key, unloaded.key}
    assert house.ledger.state(demoting.key).status is Status.FAILED


@pytest.mark.invariant("W8")
def test_a_lost_table_is_loaded_again(house: LocalDeployment) -> None:
    """A table that was lost altogether is made anew from raw; readers then see what they saw."""
    house.pipeline.judge_and_load([seal_run(house, key(1)), seal_run(house, key(2))])
    before = visible_runs(house)
    shutil.rmtree(house.home / "warehouse")
    assert mended(house) == ["LOAD 1", "LOAD 2"]
    assert visible_runs(house) == before
    assert mended(house) == []


@pytest.mark.invariant("W10")
def test_rows_of_another_schema_version_are_loaded_again(house: LocalDeployment) -> None:
    """The table holds the right run under the wrong schema version: that is a difference."""
    run = seal_run(house, key())
    house.pipeline.validation.judge([run])
    other = replace(make_load("r1", key(), 2), schema_version="0")
    house.warehouse.replace(
        house.spark,
        make_rows(house.spark, [other]).drop("cost", "campaign_id"),
        [other],
        is_publishable=keep_all_runs,
    )
    assert mended(house) == ["LOAD 1"]
    assert mended(house) == []


def test_a_rejected_run_leaves_the_table_before_its_successor_is_loaded(house: LocalDeployment) -> None:
    """The table still holds a run that was rejected; even if loading the next one fails, its rows are gone first."""
    first = seal_run(house, key())
    house.pipeline.judge_and_load([first])
    house.ledger.record_verdict(rejection(first, validation_id="again"))
    house.pipeline.validation.judge([seal_run(house, key(), "r2")])
    assert mended(house) == ["REMOVE 1", "LOAD 1"]
    assert visible_runs(house) == {key(): "r2"}


def test_what_cannot_be_mended_is_told_every_time(house: LocalDeployment) -> None:
    """An accepted run whose raw data is gone cannot be loaded: the pass says so, and mends the rest."""
    lost, good = seal_run(house, key(1)), seal_run(house, key(2))
    house.pipeline.validation.judge([lost, good])
    shutil.rmtree(house.home / "raw" / lost.path)
    done = house.reconciliation.repair(source=SOURCE, query_name=QUERY)
    assert set(done.loading.unreadable) == {lost}
    assert visible_runs(house) == {good.key: "r1"}
    assert [str(repair) for repair in house.differences()] == [
        f"load {lost.key}: the table holds nothing, current is r1"
    ]


def test_a_window_of_days_is_mended_alone(house: LocalDeployment) -> None:
    """Days outside are left as they are, whatever they lack."""
    runs = [seal_run(house, key(1, day)) for day in (1, 2, 3)]
    house.pipeline.validation.judge(runs)
    day = runs[1].key.logical_date
    house.reconciliation.repair(source=SOURCE, query_name=QUERY, since=day, until=day)
    assert visible_runs(house) == {runs[1].key: "r1"}
    assert [repair.key for repair in house.differences()] == [runs[0].key, runs[2].key]
