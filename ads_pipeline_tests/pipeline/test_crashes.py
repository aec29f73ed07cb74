"""Death between any two steps: what readers see stays right, and one reconciliation ends where no death would."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import Status
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline_tests.ledger.builders import load_records
from ads_pipeline_tests.pipeline.builders import (
    LocalDeployment,
    corrupt_payload,
    key,
    open_deployment,
    seal_invalid_run,
    seal_run,
    visible_runs,
)
from ads_pipeline_tests.warehouse.builders import read_with_duckdb

RESTATED, SPOILT, GOOD, BAD = key(1), key(2), key(3), key(4)
STEPS = ("register", "begin_demotions", "remove", "record_verdicts", "replace", "publish")
POINTS = 2 * (4 + 5)  # what the work below calls of these, before and after


class Killed(BaseException):
    """No code of ours catches this, so nothing of ours can tidy up."""


@dataclass
class Deadline:
    """Counts the moments before and after every step and kills at one of them."""

    at: int
    passed: int = 0
    last: str = "nothing"

    def moment(self, name: str) -> None:
        self.passed += 1
        self.last = name
        if self.passed == self.at:
            raise Killed(name)


class Mortal:
    """A room whose changing steps are moments to die at."""

    def __init__(self, room: Any, deadline: Deadline) -> None:
        self._room, self._deadline = room, deadline

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._room, name)
        if name not in STEPS:
            return work

        def step(*args: Any, **kwargs: Any) -> Any:
            self._deadline.moment(f"before {name}")
            answer = work(*args, **kwargs)
            self._deadline.moment(f"after {name}")
            return answer

        return step


@pytest.fixture(scope="module")
def beginning(spark: SparkSession, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two loaded days, one of which spoils; a restatement, a new day and a bad one are sealed and not judged."""
    home = tmp_path_factory.mktemp("beginning") / "home"
    home.mkdir()
    shutil.copy(sqlite_template, home / "ledger.db")
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}") as house:
        house.pipeline.judge_and_load([seal_run(house, RESTATED), seal_run(house, SPOILT)])
        corrupt_payload(house, Run(key=SPOILT, run_id="r1"))
        seal_run(house, RESTATED, "r2", count=3)
        seal_run(house, GOOD)
        seal_invalid_run(house, BAD)
    return home


@pytest.fixture
def house(beginning: Path, spark: SparkSession, tmp_path: Path) -> Iterator[LocalDeployment]:
    home = tmp_path / "copy"
    shutil.copytree(beginning, home)
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}") as opened:
        yield opened


def work(house: LocalDeployment, deadline: Deadline) -> None:
    """A demotion, then a load with a bad neighbour."""
    ledger: Any = Mortal(house.ledger, deadline)
    warehouse: Any = Mortal(house.warehouse, deadline)
    pipeline = Pipeline(spark=house.spark, raw=house.raw, ledger=ledger, warehouse=warehouse)
    pipeline.validation.judge([Run(key=SPOILT, run_id="r1")], validation_id="again")
    pipeline.judge_and_load([Run(key=RESTATED, run_id="r2"), Run(key=GOOD, run_id="r1"), Run(key=BAD, run_id="r1")])


def assert_nothing_wrong_is_served(house: LocalDeployment) -> None:
    """What is visible is a success of an accepted run; no row of a failed partition is in the table."""
    for partition, run_id in visible_runs(house).items():
        run = Run(key=partition, run_id=run_id)
        assert house.ledger.readable_runs([run]) == {run}
    states = house.ledger.states(read_with_duckdb(house.home / "warehouse"))
    assert Status.FAILED not in {state.status for state in states.values()}


def outcome(house: LocalDeployment) -> tuple[Any, ...]:
    keys = (RESTATED, SPOILT, GOOD, BAD)
    states = {
        partition: (state.status, state.current_run_id, state.attempt_count, state.error_message)
        for partition, state in house.ledger.states(keys).items()
    }
    pointers = {
        partition: (pointer.run, pointer.available) for partition, pointer in house.ledger.pointers(keys).items()
    }
    records = {partition: [row.run_id for row in load_records(house.ledger, partition)] for partition in keys}
    return states, pointers, records, visible_runs(house), read_with_duckdb(house.home / "warehouse")


@pytest.fixture(scope="module")
def undisturbed(beginning: Path, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """Where the work ends when nothing dies, and that it passes every point."""
    home = tmp_path_factory.mktemp("undisturbed") / "home"
    shutil.copytree(beginning, home)
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}") as house:
        deadline = Deadline(at=-1)
        work(house, deadline)
        assert deadline.passed == POINTS
        assert visible_runs(house) == {RESTATED: "r2", GOOD: "r1"}
        return outcome(house)


@pytest.mark.invariant("W3", "W8", "W9", "W14")
@pytest.mark.parametrize("at", range(1, POINTS + 1))
def test_death_at_any_step_is_mended_by_one_pass(
    house: LocalDeployment, undisturbed: tuple[Any, ...], at: int
) -> None:
    """Dead before or after any step: nothing wrong is visible then, one pass mends it, and a rerun ends the same."""
    deadline = Deadline(at=at)
    with pytest.raises(Killed):
        work(house, deadline)
    assert_nothing_wrong_is_served(house)
    house.reconciliation.repair(source="google_ads", query_name="campaign_daily")
    assert house.differences() == [], deadline.last
    assert_nothing_wrong_is_served(house)
    work(house, Deadline(at=-1))
    assert outcome(house) == undisturbed, deadline.last


def test_a_plan_is_a_dry_run(house: LocalDeployment) -> None:
    """Planning changes neither ledger nor table, and says the same twice."""
    with pytest.raises(Killed):
        work(house, Deadline(at=4))
    before = outcome(house)
    first = house.differences()
    assert [repair.kind.name for repair in first] == ["DEMOTE"]
    assert house.differences() == first
    assert outcome(house) == before
