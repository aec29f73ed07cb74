"""Crashes before and after every step: readers see no wrong row, and one reconciliation repairs the rest."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.validation.contract_registry import SHIPPED
from ads_pipeline_tests.lake.warehouse.builders import read_with_duckdb
from ads_pipeline_tests.ledger.builders import action_request, load_records
from ads_pipeline_tests.pipeline.builders import (
    LocalDeployment,
    LocalPipeline,
    corrupt_payload,
    key,
    key_of,
    open_deployment,
    seal_invalid_run,
    seal_run,
    visible_runs,
)

RESTATED, CORRUPTED, VALID, INVALID, WITHDRAWN = (key(customer) for customer in range(1, 6))
CRASH_STEPS = (
    *("register", "begin_demotions", "begin", "remove", "record", "finish", "replace", "publish"),
    *("publish_before_removal", "publish_or_log"),
)
LEDGER_OBJECTS = ("registrations", "verdicts", "withdrawals", "loads")
CRASH_POINTS = 2 * (5 + 4 + 6)  # before and after each call of these in `run_work`


class SimulatedCrash(BaseException):
    """A crash that no exception handler of the product catches."""


@dataclass
class CrashPoint:
    """Counts the moments before and after each step, and crashes at one of them."""

    at: int
    passed: int = 0
    last: str = "nothing"

    def reach(self, name: str) -> None:
        self.passed += 1
        self.last = name
        if self.passed == self.at:
            raise SimulatedCrash(name)


class CrashingProxy:
    """Forwards calls to a ledger or warehouse and may crash before or after the calls that write."""

    def __init__(self, target: Any, crash_point: CrashPoint) -> None:
        self._target, self._crash_point = target, crash_point

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        if name in LEDGER_OBJECTS:
            return CrashingProxy(method, self._crash_point)
        if name not in CRASH_STEPS:
            return method

        def step(*args: Any, **kwargs: Any) -> Any:
            self._crash_point.reach(f"before {name}")
            result = method(*args, **kwargs)
            self._crash_point.reach(f"after {name}")
            return result

        return step


@pytest.fixture(scope="module")
def prepared_home(spark: SparkSession, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three loaded days, one with a corrupted payload. A restatement, a valid and an invalid day are sealed."""
    home = tmp_path_factory.mktemp("prepared_home") / "home"
    home.mkdir()
    shutil.copy(sqlite_template, home / "ledger.db")
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}") as deployment:
        deployment.pipeline.judge_and_load([seal_run(deployment, each) for each in (RESTATED, CORRUPTED, WITHDRAWN)])
        corrupt_payload(deployment, Run(key=CORRUPTED, run_id="r1"))
        seal_run(deployment, RESTATED, "r2", count=3)
        seal_run(deployment, VALID)
        seal_invalid_run(deployment, INVALID)
    return home


@pytest.fixture
def deployment(prepared_home: Path, spark: SparkSession, tmp_path: Path) -> Iterator[LocalDeployment]:
    home = tmp_path / "copy"
    shutil.copytree(prepared_home, home)
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}") as opened:
        yield opened


def run_work(deployment: LocalDeployment, crash_point: CrashPoint) -> None:
    """A demotion and a withdrawal, then a load with an invalid partition beside valid ones."""
    ledger: Any = CrashingProxy(deployment.ledger, crash_point)
    warehouse: Any = CrashingProxy(deployment.warehouse, crash_point)
    tables: Any = CrashingProxy(deployment.tables, crash_point)
    pipeline = LocalPipeline(
        start_spark=lambda: deployment.spark,
        raw=deployment.raw,
        ledger=ledger,
        warehouse=warehouse,
        contracts=SHIPPED,
        tables=tables,
    )
    pipeline.validation.judge([Run(key=CORRUPTED, run_id="r1")], validation_id="again")
    pipeline.withdrawing.withdraw([WITHDRAWN], action_request())
    pipeline.judge_and_load(
        [Run(key=RESTATED, run_id="r2"), Run(key=VALID, run_id="r1"), Run(key=INVALID, run_id="r1")]
    )


def assert_only_readable_rows(deployment: LocalDeployment) -> None:
    """Assert that visible runs are readable and that the table has rows of successes alone."""
    for partition, run_id in visible_runs(deployment).items():
        run = Run(key=partition, run_id=run_id)
        assert deployment.ledger.publications.readable_runs([run]) == {run}
    states = deployment.ledger.states.get_many(read_with_duckdb(deployment.warehouse_location))
    assert {state.status for state in states.values()} <= {Status.SUCCESS}
    assert find_readable_days(deployment) <= set(read_with_duckdb(deployment.warehouse_location))


def find_readable_days(deployment: LocalDeployment) -> set[PartitionKey]:
    """The days that the table `days` says are readable."""
    table = DeltaTable(deployment.tables.days.table.uri).to_pyarrow_table(
        columns=["customer_id", "logical_date", "is_readable"]
    )
    return {key_of(row["customer_id"], row["logical_date"]) for row in table.to_pylist() if row["is_readable"]}


def read_outcome(deployment: LocalDeployment) -> tuple[Any, ...]:
    keys = (RESTATED, CORRUPTED, VALID, INVALID, WITHDRAWN)
    states = {
        partition: (state.status, state.current_run_id, state.attempt_count, state.error_message)
        for partition, state in deployment.ledger.states.get_many(keys).items()
    }
    pointers = {
        partition: (pointer.run, pointer.is_published)
        for partition, pointer in deployment.ledger.publications.pointers(keys).items()
    }
    records = {partition: [row.run_id for row in load_records(deployment.ledger, partition)] for partition in keys}
    return states, pointers, records, visible_runs(deployment), read_with_duckdb(deployment.warehouse_location)


@pytest.fixture(scope="module")
def state_without_crash(
    prepared_home: Path, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, ...]:
    """The final state without a crash, which reaches every crash point."""
    home = tmp_path_factory.mktemp("state_without_crash") / "home"
    shutil.copytree(prepared_home, home)
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}") as deployment:
        crash_point = CrashPoint(at=-1)
        run_work(deployment, crash_point)
        assert crash_point.passed == CRASH_POINTS
        assert visible_runs(deployment) == {RESTATED: "r2", VALID: "r1"}
        return read_outcome(deployment)


@pytest.mark.invariant("W3", "W8", "W9", "W14")
@pytest.mark.parametrize("at", range(1, CRASH_POINTS + 1))
def test_one_reconciliation_repairs_a_crash_at_any_step(
    deployment: LocalDeployment, state_without_crash: tuple[Any, ...], at: int
) -> None:
    """After a crash no wrong row is visible; one pass repairs it, and a rerun ends in the same state."""
    crash_point = CrashPoint(at=at)
    with pytest.raises(SimulatedCrash):
        run_work(deployment, crash_point)
    assert_only_readable_rows(deployment)
    deployment.reconciliation.repair(DayWindow(source="google_ads", query_name="campaign_daily"))
    assert deployment.differences() == [], crash_point.last
    deployment.tables.publish_all()
    assert_only_readable_rows(deployment)
    assert find_readable_days(deployment) == set(visible_runs(deployment))
    run_work(deployment, CrashPoint(at=-1))
    assert read_outcome(deployment) == state_without_crash, crash_point.last


def test_planning_changes_nothing(deployment: LocalDeployment) -> None:
    """A repeated plan is the same, and neither ledger nor table changes."""
    with pytest.raises(SimulatedCrash):
        run_work(deployment, CrashPoint(at=4))
    before = read_outcome(deployment)
    first = deployment.differences()
    assert [repair.kind.name for repair in first] == ["DEMOTE"]
    assert deployment.differences() == first
    assert read_outcome(deployment) == before
