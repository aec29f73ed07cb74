"""Demotion in its steps: what was found bad is hidden, then gone, and only then recorded as failed."""

from collections.abc import Sequence
from typing import Any

import pytest

from ads_pipeline.domain.transitions import Action, Effect, Status, Verdict
from ads_pipeline.ledger.values import VerdictResult
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.pipeline.builders import (
    LocalDeployment,
    corrupt_payload,
    key,
    seal_invalid_run,
    seal_run,
    visible_runs,
)
from ads_pipeline_tests.warehouse.builders import read_all_versions, read_with_duckdb


class Watched:
    """A ledger that looks at the table's rows right before it records a verdict."""

    def __init__(self, house: LocalDeployment) -> None:
        self._house, self._ledger = house, house.ledger
        self.seen: list[tuple[set[str], set[str]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def record_verdicts(self, verdicts: Sequence[Verdict], **how: Any) -> list[VerdictResult]:
        in_table = {partition.customer_id for partition in read_with_duckdb(self._house.home / "warehouse")}
        self.seen.append((in_table, {partition.customer_id for partition in visible_runs(self._house)}))
        return self._ledger.record_verdicts(verdicts, **how)


@pytest.mark.invariant("W3", "W4")
def test_rows_are_gone_before_the_failure_is_recorded(each_house: LocalDeployment) -> None:
    """When the failed verdict is written neither the ledger's readers nor readers of the table find the rows."""
    house = each_house
    bad, good = seal_run(house, key(1)), seal_run(house, key(2))
    house.pipeline.judge_and_load([bad, good])
    corrupt_payload(house, bad)
    watched: Any = Watched(house)
    pipeline = Pipeline(spark=house.spark, raw=house.raw, ledger=watched, warehouse=house.warehouse)
    judged = pipeline.validation.judge([bad, good], validation_id="again")
    assert {each.verdict.run: each.effect for each in judged.recorded} == {
        bad: Effect.DEMOTED,
        good: Effect.CONFIRMED,
    }
    assert watched.seen == [({"2"}, {"2"})]
    assert visible_runs(house) == {good.key: "r1"}
    assert house.ledger.state(bad.key).status is Status.FAILED
    assert [set(each) for each in read_all_versions(house.home / "warehouse")][-2:] == [
        {bad.key, good.key},
        {good.key},
    ]
    assert house.differences() == []


@pytest.mark.invariant("W5")
def test_a_demoted_run_is_never_seen_again(house: LocalDeployment) -> None:
    """r1 is demoted, r2 accepted but not loaded: nothing is visible until r2 is."""
    first = seal_run(house, key(), "r1")
    house.pipeline.judge_and_load([first])
    corrupt_payload(house, first)
    house.pipeline.validation.judge([first], validation_id="again")
    assert visible_runs(house) == {}
    house.pipeline.validation.judge([seal_run(house, key(), "r2")])
    assert visible_runs(house) == {}
    house.pipeline.loader.load([key()])
    assert visible_runs(house) == {key(): "r2"}


def test_demoting_a_run_that_was_never_loaded_takes_its_predecessor_along(house: LocalDeployment) -> None:
    """r2 is accepted over a loaded r1, then found bad: the partition failed, so r1's rows go as well."""
    house.pipeline.judge_and_load([seal_run(house, key(), "r1")])
    second = seal_run(house, key(), "r2")
    house.pipeline.validation.judge([second])
    assert visible_runs(house) == {key(): "r1"}
    corrupt_payload(house, second)
    house.pipeline.validation.judge([second], validation_id="again")
    assert visible_runs(house) == {}
    assert read_with_duckdb(house.home / "warehouse") == {}


def test_a_rejected_rerun_demotes_nothing(house: LocalDeployment) -> None:
    """A bad run that readers never got takes nothing from them, and costs the table no commit."""
    house.pipeline.judge_and_load([seal_run(house, key(), "r1")])
    before = len(read_all_versions(house.home / "warehouse"))
    house.pipeline.validation.judge([seal_invalid_run(house, key(), "r2")])
    assert visible_runs(house) == {key(): "r1"}
    assert len(read_all_versions(house.home / "warehouse")) == before


@pytest.mark.invariant("W3")
def test_a_load_that_a_demotion_overtakes_serves_nothing(house: LocalDeployment) -> None:
    """The run is found bad after the loader asked for leave and before it published: nobody sees a row of it."""
    run = seal_run(house, key())
    house.pipeline.validation.judge([run])

    class Overtaken:
        def __getattr__(self, name: str) -> Any:
            return getattr(house.ledger, name)

        def publish(self, publications: Any) -> Any:
            corrupt_payload(house, run)
            house.pipeline.validation.judge([run], validation_id="again")
            return house.ledger.publish(publications)

    ledger: Any = Overtaken()
    pipeline = Pipeline(spark=house.spark, raw=house.raw, ledger=ledger, warehouse=house.warehouse)
    loading = pipeline.loader.load([run.key])
    assert (loading.published, loading.superseded) == ((), (run,))
    assert visible_runs(house) == {}
    assert read_with_duckdb(house.home / "warehouse") == {}
    assert house.differences() == []


def test_what_an_operator_withdraws_during_its_load_does_not_stay(house: LocalDeployment) -> None:
    """The withdrawal comes after the commit and before the pointer: the loader takes the rows out again by itself."""
    run = seal_run(house, key())
    house.pipeline.validation.judge([run])

    class Withdrawn:
        def __getattr__(self, name: str) -> Any:
            return getattr(house.ledger, name)

        def publish(self, publications: Any) -> Any:
            house.ledger.execute(Action.WITHDRAW, [run.key], action_request())
            return house.ledger.publish(publications)

    ledger: Any = Withdrawn()
    pipeline = Pipeline(spark=house.spark, raw=house.raw, ledger=ledger, warehouse=house.warehouse)
    assert pipeline.loader.load([run.key]).superseded == (run,)
    assert read_with_duckdb(house.home / "warehouse") == {}
