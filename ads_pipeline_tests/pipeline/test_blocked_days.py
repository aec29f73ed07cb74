"""Days whose run cannot go on without a person: no contract, files that changed after the verdict."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ads_pipeline.domain.days.conditions import Condition, GapReason
from ads_pipeline.domain.days.expected_days import ExpectedDays
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Status
from ads_pipeline.lake.raw.seal import METADATA
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days, find_days
from ads_pipeline.validation.contract_registry import SHIPPED, Contracts
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    SOURCE,
    UNKNOWN_VERSION,
    LocalDeployment,
    corrupt_payload,
    key,
    seal_run,
    seal_unknown_version,
    visible_runs,
)

WINDOW = DayWindow(source=SOURCE, query_name=QUERY, since=key().logical_date, until=key(1, 9).logical_date)


def rewrite_seal(deployment: LocalDeployment, run: Run, **changes: object) -> None:
    path = deployment.home / "raw" / run.path / METADATA
    path.chmod(0o644)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def has_contract(contracts: Contracts) -> DayRules:
    now = datetime.now(UTC)
    return DayRules(
        due_after={QUERY: timedelta(hours=12)},
        now=now,
        has_contract=lambda query, version: (query, version) in contracts.declared,
    )


def describe(deployment: LocalDeployment, *keys: PartitionKey) -> list[DayCondition]:
    """The conditions of the days. A search for blocked days finds the same."""
    rules = has_contract(deployment.contracts)
    described = describe_days(deployment.ledger, keys, rules)
    first_days = {each.customer_id: ExpectedDays(first=each.logical_date) for each in keys}
    blocked = find_days(
        deployment.ledger, WINDOW, [Condition.BLOCKED, Condition.BLOCKED_RERUN], first_days=first_days, rules=rules
    )
    assert blocked == {day: each for day, each in described.items() if each.blocked_by is not None}
    return [described[each] for each in keys]


@pytest.mark.invariant("L2", "L4", "L9")
def test_run_without_a_contract_blocks_only_its_day(deployment_on_each_database: LocalDeployment) -> None:
    """Also behind a readable day. Other runs of the same load are judged, and it is judged once a contract exists."""
    deployment = deployment_on_each_database
    good = seal_run(deployment, key(2), "r1")
    deployment.pipeline.judge_and_load([good])
    stuck = [seal_unknown_version(deployment, key(1)), seal_unknown_version(deployment, key(2))]
    neighbour = seal_run(deployment, key(3), "r1")
    judged, _loaded = deployment.pipeline.judge_and_load([*stuck, neighbour])
    assert set(judged.unjudged) == set(stuck)
    assert visible_runs(deployment) == {key(2): "r1", key(3): "r1"}
    absent, behind, sound = describe(deployment, key(1), key(2), key(3))
    assert (absent.condition, absent.gap) == (Condition.BLOCKED, GapReason.NO_CONTRACT)
    assert absent.reason == "no contract judges its run: schema_version 9"
    assert (behind.condition, behind.gap) == (Condition.BLOCKED_RERUN, None)
    assert sound.condition is Condition.READABLE
    declared = Contracts({**SHIPPED.declared, (QUERY, UNKNOWN_VERSION): SHIPPED.rules(QUERY, "1")})
    later = replace(deployment, contracts=declared)
    later.pipeline.judge_and_load(stuck)
    assert visible_runs(later) == {key(1): "r9", key(2): "r9", key(3): "r1"}
    assert [each.condition for each in describe(later, key(1), key(2))] == [Condition.READABLE, Condition.RESTATED]


def test_newer_run_of_a_declared_version_ends_the_block(deployment: LocalDeployment) -> None:
    """The run without a contract is older then, so that its verdict would change nothing."""
    stuck = seal_unknown_version(deployment, key(1), "r1")
    deployment.pipeline.judge_and_load([stuck])
    deployment.pipeline.judge_and_load([seal_run(deployment, key(1), "r2")])
    (day,) = describe(deployment, key(1))
    assert day.condition is Condition.READABLE


@pytest.mark.invariant("L4")
def test_run_without_a_contract_is_searched_for_until_it_is_registered(deployment: LocalDeployment) -> None:
    """Then it waits for its contract, without a run of Dagster each hour."""
    stuck, other = seal_unknown_version(deployment, key(1)), seal_run(deployment, key(2))
    contracts = set(SHIPPED.declared)

    def search() -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        source = SealedRuns(
            raw=deployment.raw, runs=deployment.ledger.runs, has_contract=lambda *each: each in contracts
        )
        found = source.find_unjudged(source=SOURCE, since=WINDOW.since, until=WINDOW.until)
        return found.runs, found.without_contract

    assert set(search()[0]) == {stuck, other}
    deployment.pipeline.judge_and_load([stuck, other])
    assert search() == ((), (stuck,))
    contracts.add((QUERY, UNKNOWN_VERSION))
    assert search() == ((stuck,), ())


@pytest.mark.parametrize("change", ["payload", "seal", "version", "gone"])
@pytest.mark.invariant("L2", "L4", "L12")
def test_run_that_changed_after_its_verdict_blocks_only_its_day(deployment: LocalDeployment, change: str) -> None:
    """Its neighbours are loaded. Readers keep the run before it."""
    deployment.pipeline.judge_and_load([seal_run(deployment, key(2), "r1")])
    changed = [seal_run(deployment, key(1), "r2"), seal_run(deployment, key(2), "r2")]
    neighbour = seal_run(deployment, key(3), "r1")
    deployment.pipeline.validation.judge([*changed, neighbour])
    for run in changed:
        match change:
            case "payload":
                corrupt_payload(deployment, run)
            case "seal":
                rewrite_seal(deployment, run, record_count=7)
            case "version":
                rewrite_seal(deployment, run, schema_version=UNKNOWN_VERSION)
            case "gone":
                shutil.rmtree(deployment.home / "raw" / run.path)
    loaded = deployment.pipeline.loader.load([key(1), key(2), key(3)])
    assert set(loaded.unreadable) == set(changed)
    assert visible_runs(deployment) == {key(2): "r1", key(3): "r1"}
    absent, behind = describe(deployment, key(1), key(2))
    assert (absent.condition, absent.gap) == (Condition.BLOCKED, GapReason.UNLOADABLE)
    assert behind.condition is Condition.BLOCKED_RERUN
    assert deployment.ledger.states.get(key(1)).status is Status.SUCCESS
    deployment.pipeline.judge_and_load([seal_run(deployment, key(1), "r3"), seal_run(deployment, key(2), "r3")])
    assert visible_runs(deployment) == {key(1): "r3", key(2): "r3", key(3): "r1"}
    assert [each.blocked_by for each in describe(deployment, key(1), key(2))] == [None, None]
    assert deployment.differences() == []


@pytest.mark.invariant("W11", "L4")
def test_seal_rewritten_after_its_verdict_changes_no_contract(deployment: LocalDeployment) -> None:
    """The rows would be published under the rewritten version, and the ledger would record another."""
    run = seal_run(deployment, key(1))
    deployment.pipeline.validation.judge([run])
    rewrite_seal(deployment, run, schema_version="2")
    loaded = deployment.pipeline.loader.load([key(1)])
    assert str(loaded.unreadable[run]).endswith("its seal is not the one it was registered with")
    assert visible_runs(deployment) == {}


@pytest.mark.invariant("L4")
def test_contract_that_is_no_longer_declared_stops_only_its_runs(deployment: LocalDeployment) -> None:
    """An accepted run that waits for its load is blocked, and the rest of the table is loaded and reconciled."""
    older, newer = seal_run(deployment, key(1)), seal_run(deployment, key(2), all_conversions=1.0)
    deployment.pipeline.validation.judge([older, newer])
    remaining = {each: rules for each, rules in SHIPPED.declared.items() if each != (QUERY, "2")}
    without = replace(deployment, contracts=Contracts(remaining))
    window = DayWindow(source=SOURCE, query_name=QUERY)
    result = without.reconciliation.repair(window)
    assert set(result.loading.unreadable) == {newer}
    assert visible_runs(without) == {key(1): "r1"}
    first, second = describe(without, key(1), key(2))
    assert (first.condition, second.gap) == (Condition.READABLE, GapReason.NO_CONTRACT)
    deployment.reconciliation.repair(window)
    assert visible_runs(deployment) == {key(1): "r1", key(2): "r1"}
