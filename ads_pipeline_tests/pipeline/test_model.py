"""Any acts in any order: after each of them readers see only what may be read, and in the end nothing is missing."""

import shutil
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.pipeline.builders import (
    LocalDeployment,
    corrupt_payload,
    key,
    open_deployment,
    seal_invalid_run,
    seal_run,
    visible_runs,
)
from ads_pipeline_tests.pipeline.test_crashes import Deadline, Killed, Mortal
from ads_pipeline_tests.warehouse.builders import read_all_versions, read_with_duckdb

customers = st.integers(1, 3).map(key)


class Days(RuleBasedStateMachine):
    """Three partitions of one day, which share a file of the table."""

    spark: ClassVar[SparkSession]
    template: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self._opened = ExitStack()
        home = Path(self._opened.enter_context(tempfile.TemporaryDirectory()))
        shutil.copy(self.template, home / "ledger.db")
        self.house: LocalDeployment = self._opened.enter_context(
            open_deployment(home, self.spark, f"sqlite:///{home / 'ledger.db'}")
        )
        self.landed = 0
        self.acts = 0
        self.current: dict[PartitionKey, str] = {}
        self.spoilt: set[Run] = set()

    def teardown(self) -> None:
        try:
            self.house.reconciliation.repair(source="google_ads", query_name="campaign_daily")
            assert self.house.differences() == []
            self.nothing_wrong_is_seen()
            states = self.house.ledger.states(map(key, range(1, 4))).values()
            wanted = {state.key: state.current_run_id for state in states if state.status is Status.SUCCESS}
            lost = {run.key for run in self.spoilt}
            seen = visible_runs(self.house)
            assert {each: run_id for each, run_id in wanted.items() if each not in lost}.items() <= seen.items()
            assert seen.keys() <= wanted.keys()
        finally:
            self._opened.close()

    @rule(good=st.lists(customers, unique=True, max_size=2), bad=st.lists(customers, unique=True, max_size=1))
    def carry(self, good: list[PartitionKey], bad: list[PartitionKey]) -> None:
        self.house.pipeline.judge_and_load(self._land(good, bad))

    @rule(good=st.lists(customers, unique=True, min_size=1, max_size=3), at=st.integers(1, 12))
    def carry_and_die(self, good: list[PartitionKey], at: int) -> None:
        deadline = Deadline(at=at)
        ledger: Any = Mortal(self.house.ledger, deadline)
        warehouse: Any = Mortal(self.house.warehouse, deadline)
        dying = Pipeline(spark=self.spark, raw=self.house.raw, ledger=ledger, warehouse=warehouse)
        with suppress(Killed):
            dying.judge_and_load(self._land(good, []))

    @rule(partition=customers)
    def judge_only(self, partition: PartitionKey) -> None:
        self.house.pipeline.validation.judge(self._land([partition], []))

    @rule(partition=customers)
    def spoil_and_judge_again(self, partition: PartitionKey) -> None:
        current = self.house.ledger.state(partition).current_run_id
        if current is not None:
            run = Run(key=partition, run_id=current)
            corrupt_payload(self.house, run)
            self.spoilt.add(run)
            self.acts += 1
            self.house.pipeline.validation.judge([run], validation_id=f"v{self.acts}")

    @rule(partition=customers)
    def withdraw(self, partition: PartitionKey) -> None:
        self.acts += 1
        self.house.ledger.execute(Action.WITHDRAW, [partition], action_request(f"act-{self.acts}"))

    @rule()
    def mend(self) -> None:
        self.house.reconciliation.repair(source="google_ads", query_name="campaign_daily")

    @rule()
    def optimize(self) -> None:
        self.house.warehouse.optimize(self.spark, source="google_ads", query_name="campaign_daily")

    @invariant()
    def nothing_wrong_is_seen(self) -> None:
        """W1, W3: one run a partition at every version; what is visible is readable; no failed row in the table."""
        for version in read_all_versions(self.house.home / "warehouse"):
            assert all(len(runs) == 1 for runs, _rows in version.values())
        seen = {Run(key=partition, run_id=run_id) for partition, run_id in visible_runs(self.house).items()}
        assert self.house.ledger.readable_runs(seen) == seen
        held = (
            read_with_duckdb(self.house.home / "warehouse")
            if read_all_versions(self.house.home / "warehouse")
            else {}
        )
        states = self.house.ledger.states(held)
        assert Status.FAILED not in {state.status for state in states.values()}

    def _land(self, good: list[PartitionKey], bad: list[PartitionKey]) -> list[Run]:
        runs = []
        for partition in good:
            self.landed += 1
            runs.append(seal_run(self.house, partition, f"r{self.landed}"))
        for partition in bad:
            self.landed += 1
            runs.append(seal_invalid_run(self.house, partition, f"r{self.landed}"))
        return runs


@pytest.mark.invariant("W1", "W3", "W9")
@pytest.mark.timeout(600)
def test_whatever_happens_readers_see_only_what_may_be_read(spark: SparkSession, sqlite_template: Path) -> None:
    """Loads, deaths, demotions, withdrawals, repairs and packing never show a wrong row or lose a good one."""
    Days.spark, Days.template = spark, sqlite_template
    Days.TestCase.settings = settings(
        max_examples=examples(4),
        stateful_step_count=8,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    Days.TestCase().runTest()
