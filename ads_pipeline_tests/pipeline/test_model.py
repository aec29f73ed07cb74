"""A stateful test: after any sequence of operations readers see only readable rows, and none is lost."""

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
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.validation.contract_registry import SHIPPED
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.lake.warehouse.builders import read_all_versions, read_with_duckdb
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.pipeline.builders import (
    LocalDeployment,
    LocalPipeline,
    corrupt_payload,
    key,
    open_deployment,
    seal_invalid_run,
    seal_run,
    visible_runs,
)
from ads_pipeline_tests.pipeline.test_crashes import CrashingProxy, CrashPoint, SimulatedCrash

customers = st.integers(1, 3).map(key)


class PipelineOperations(RuleBasedStateMachine):
    """Operations on three partitions of one day, which share a file of the table."""

    spark: ClassVar[SparkSession]
    template: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self._opened = ExitStack()
        home = Path(self._opened.enter_context(tempfile.TemporaryDirectory()))
        shutil.copy(self.template, home / "ledger.db")
        self.deployment: LocalDeployment = self._opened.enter_context(
            open_deployment(home, self.spark, f"sqlite:///{home / 'ledger.db'}")
        )
        self.sealed = 0
        self.actions = 0
        self.current: dict[PartitionKey, str] = {}
        self.corrupted: set[Run] = set()

    def teardown(self) -> None:
        try:
            self.deployment.reconciliation.repair(DayWindow(source="google_ads", query_name="campaign_daily"))
            assert self.deployment.differences() == []
            self.only_readable_rows_are_visible()
            states = self.deployment.ledger.states.get_many(map(key, range(1, 4))).values()
            expected = {state.key: state.current_run_id for state in states if state.status is Status.SUCCESS}
            corrupted = {run.key for run in self.corrupted}
            visible = visible_runs(self.deployment)
            assert {
                each: run_id for each, run_id in expected.items() if each not in corrupted
            }.items() <= visible.items()
            assert visible.keys() <= expected.keys()
        finally:
            self._opened.close()

    @rule(valid=st.lists(customers, unique=True, max_size=2), invalid=st.lists(customers, unique=True, max_size=1))
    def judge_and_load(self, valid: list[PartitionKey], invalid: list[PartitionKey]) -> None:
        self.deployment.pipeline.judge_and_load(self._seal(valid, invalid))

    @rule(valid=st.lists(customers, unique=True, min_size=1, max_size=3), at=st.integers(1, 12))
    def judge_and_load_with_crash(self, valid: list[PartitionKey], at: int) -> None:
        with suppress(SimulatedCrash):
            self._crashing(at).judge_and_load(self._seal(valid, []))

    @rule(partition=customers)
    def judge_only(self, partition: PartitionKey) -> None:
        self.deployment.pipeline.validation.judge(self._seal([partition], []))

    @rule(partition=customers)
    def corrupt_and_judge_again(self, partition: PartitionKey) -> None:
        current = self.deployment.ledger.states.get(partition).current_run_id
        if current is not None:
            run = Run(key=partition, run_id=current)
            corrupt_payload(self.deployment, run)
            self.corrupted.add(run)
            self.actions += 1
            self.deployment.pipeline.validation.judge([run], validation_id=f"v{self.actions}")

    @rule(partition=customers)
    def withdraw(self, partition: PartitionKey) -> None:
        self.actions += 1
        self.deployment.pipeline.withdrawing.withdraw([partition], action_request(f"act-{self.actions}"))
        assert partition not in self._read_table()

    @rule(partition=customers, at=st.integers(1, 6))
    def withdraw_with_crash(self, partition: PartitionKey, at: int) -> None:
        self.actions += 1
        with suppress(SimulatedCrash):
            self._crashing(at).withdrawing.withdraw([partition], action_request(f"act-{self.actions}"))

    @rule()
    def reconcile(self) -> None:
        self.deployment.reconciliation.repair(DayWindow(source="google_ads", query_name="campaign_daily"))

    @rule()
    def optimize(self) -> None:
        self.deployment.warehouse.optimize(lambda: self.spark, source="google_ads", query_name="campaign_daily")

    @invariant()
    def only_readable_rows_are_visible(self) -> None:
        """W1, W3: one run per partition in every version, visible runs are readable, only successes have rows."""
        for version in read_all_versions(self.deployment.warehouse_location):
            assert all(len(runs) == 1 for runs, _rows in version.values())
        seen = {Run(key=partition, run_id=run_id) for partition, run_id in visible_runs(self.deployment).items()}
        assert self.deployment.ledger.publications.readable_runs(seen) == seen
        states = self.deployment.ledger.states.get_many(self._read_table())
        assert {state.status for state in states.values()} <= {Status.SUCCESS}

    def _read_table(self) -> dict[PartitionKey, tuple[set[str], int]]:
        location = self.deployment.warehouse_location
        return read_with_duckdb(location) if read_all_versions(location) else {}

    def _crashing(self, at: int) -> LocalPipeline:
        """A pipeline that crashes at this moment."""
        crash_point = CrashPoint(at=at)
        ledger: Any = CrashingProxy(self.deployment.ledger, crash_point)
        warehouse: Any = CrashingProxy(self.deployment.warehouse, crash_point)
        tables: Any = CrashingProxy(self.deployment.tables, crash_point)
        return LocalPipeline(
            start_spark=lambda: self.spark,
            raw=self.deployment.raw,
            ledger=ledger,
            warehouse=warehouse,
            contracts=SHIPPED,
            tables=tables,
        )

    def _seal(self, valid: list[PartitionKey], invalid: list[PartitionKey]) -> list[Run]:
        runs = []
        for partition in valid:
            self.sealed += 1
            runs.append(seal_run(self.deployment, partition, f"r{self.sealed}"))
        for partition in invalid:
            self.sealed += 1
            runs.append(seal_invalid_run(self.deployment, partition, f"r{self.sealed}"))
        return runs


@pytest.mark.invariant("W1", "W3", "W9")
@pytest.mark.timeout(600)
def test_readers_see_only_readable_rows(spark: SparkSession, sqlite_template: Path) -> None:
    """Loads, crashes, demotions, withdrawals, repairs and compaction show no wrong row and lose no valid one."""
    PipelineOperations.spark, PipelineOperations.template = spark, sqlite_template
    PipelineOperations.TestCase.settings = settings(
        max_examples=examples(4),
        stateful_step_count=8,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    PipelineOperations.TestCase().runTest()
