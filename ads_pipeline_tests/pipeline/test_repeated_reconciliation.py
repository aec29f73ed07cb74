"""Passes over what has changed: they find every difference, and read nothing else."""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from ads_pipeline.domain.transitions import Action
from ads_pipeline.lake.warehouse.replacement import HeldContent, Warehouse
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.pipeline.reconciliation import Reconciliation
from ads_pipeline.pipeline.repeated_reconciliation import FULL_PASS_AFTER, LastPasses, RepeatedReconciliation
from ads_pipeline_tests.lake.warehouse.builders import make_load, publish_loads
from ads_pipeline_tests.ledger.builders import action_request, rejection
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

NOW = datetime(2026, 2, 4, tzinfo=UTC)
OLD = "2026-01-20T00:00:00.000000Z"


class RecordingWarehouse(Warehouse):
    """Records the days whose files are read for a plan."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.read: list[tuple[date, date]] = []

    def read_held_partitions(self, **options: Any) -> HeldContent:
        self.read.append((options["since"], options["until"]))
        return super().read_held_partitions(**options)


class Passes:
    """Passes over one deployment, one after the other."""

    def __init__(self, deployment: LocalDeployment) -> None:
        self.deployment = deployment
        self.folder = deployment.home / "reconciled"
        self.read: list[tuple[date, date]] = []

    def repair(self, *, now: datetime = NOW, granted: bool = True) -> list[str]:
        """The repairs of a pass, carried out unless other runs hold the partitions."""
        warehouse = RecordingWarehouse(self.deployment.warehouse_location)
        reconciliation = Reconciliation(
            publications=self.deployment.ledger.publications,
            warehouse=warehouse,
            open_pipeline=lambda: self.deployment.pipeline,
            claim=None if granted else lambda _keys: (),
        )
        results = RepeatedReconciliation(reconciliation, LastPasses(self.folder)).repair(SOURCE, QUERY, now=now)
        self.read = warehouse.read
        return [f"{each.kind.name} {each.key.logical_date.day}" for result in results for each in result.repairs]


@pytest.fixture
def passes(deployment: LocalDeployment) -> Passes:
    """Five loaded days that nobody has changed for weeks, after a pass over everything."""
    deployment.pipeline.judge_and_load([seal_run(deployment, key(1, day)) for day in (1, 10, 15, 20, 31)])
    age_changes(deployment)
    passes = Passes(deployment)
    assert passes.repair() == []
    assert passes.read == [(date.min, date.max)]
    return passes


def age_changes(deployment: LocalDeployment) -> None:
    """Move the changes of all days but the last into the past."""
    condition = "WHERE logical_date <> '2026-01-31'"
    forge(
        deployment.ledger.engine,
        f"UPDATE partition_state SET updated_at = '{OLD}' {condition}",
        f"UPDATE warehouse_pointer SET changed_at = '{OLD}' {condition}",
    )


def withdraw(deployment: LocalDeployment) -> None:
    deployment.ledger.actions.execute(Action.WITHDRAW, [key(1, 10)], action_request())


def accept_newer_run(deployment: LocalDeployment) -> None:
    deployment.pipeline.validation.judge([seal_run(deployment, key(1, 10), "r2")])


def begin_demotion(deployment: LocalDeployment) -> None:
    run = deployment.ledger.publications.pointers([key(1, 10)])[key(1, 10)].run
    corrupt_payload(deployment, run)
    deployment.ledger.verdicts.begin_demotions([rejection(run, validation_id="v2")])


def write_unknown_rows(deployment: LocalDeployment) -> None:
    """What only a foreign writer, or a ledger that was lost, leaves behind."""
    publish_loads(deployment.spark, deployment.warehouse_location, [make_load("x", key(5, 10), 2)])


def restore_older_pointer(deployment: LocalDeployment) -> None:
    """A ledger that was restored from a backup, whose changes are all older than the last pass."""
    older = OLD.replace("-20T", "-19T")
    forge(
        deployment.ledger.engine,
        f"UPDATE warehouse_pointer SET record_count = 7, changed_at = '{older}' WHERE logical_date = '2026-01-10'",
        f"UPDATE partition_state SET updated_at = '{older}' WHERE logical_date = '2026-01-10'",
    )


@pytest.mark.invariant("W8", "W9")
@pytest.mark.parametrize(
    ("change", "repair"),
    [
        (withdraw, "REMOVE 10"),
        (accept_newer_run, "LOAD 10"),
        (begin_demotion, "DEMOTE 10"),
        (write_unknown_rows, "REMOVE 10"),
        (restore_older_pointer, "POINT 10"),
    ],
)
def test_difference_on_an_old_day_is_repaired_alone(
    passes: Passes, change: Callable[[LocalDeployment], None], repair: str
) -> None:
    """The pass reads the day that changed and the days of the newest changes, and afterwards nothing differs."""
    change(passes.deployment)
    assert passes.repair() == [repair]
    assert all(since.day == until.day for since, until in passes.read)
    assert {since.day for since, _until in passes.read} <= {10, 31}
    assert passes.repair() == []
    assert passes.deployment.differences() == []


def test_pass_without_changes_reads_only_the_newest_days(passes: Passes) -> None:
    """A change that became visible late carries an earlier time, so the days of the last minutes are read again."""
    last = date(2026, 1, 31)
    for _ in range(2):
        assert passes.repair() == []
        assert passes.read == [(last, last)]


@pytest.mark.parametrize("later", [FULL_PASS_AFTER, -timedelta(seconds=1)])
def test_everything_is_read_once_a_day(passes: Passes, later: timedelta) -> None:
    """Also when the clock has gone back. The passes in between do not put it off."""
    assert passes.repair(now=NOW + FULL_PASS_AFTER / 2) == []
    assert passes.read != [(date.min, date.max)]
    passes.repair(now=NOW + later)
    assert passes.read == [(date.min, date.max)]


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"full_at": 1, "changes": {}, "files": {}})])
def test_everything_is_read_without_a_sound_file(passes: Passes, content: str) -> None:
    """A lost or damaged file costs a pass over everything, and nothing else."""
    (file,) = passes.folder.iterdir()
    file.write_text(content)
    assert passes.repair() == []
    assert passes.read == [(date.min, date.max)]


def test_difference_that_could_not_be_repaired_is_looked_at_again(passes: Passes) -> None:
    """A partition that another run holds is left, and repaired by a later pass although nothing has changed."""
    withdraw(passes.deployment)
    assert passes.repair(granted=False) == []
    age_changes(passes.deployment)
    assert passes.repair(granted=False) == []
    assert passes.repair() == ["REMOVE 10"]
    assert passes.deployment.differences() == []


@pytest.mark.invariant("W8")
def test_deleted_table_is_rebuilt(passes: Passes) -> None:
    """All of its files are missing, so all days have changed."""
    before = visible_runs(passes.deployment)
    shutil.rmtree(passes.deployment.home / "warehouse")
    assert sorted(passes.repair()) == ["LOAD 1", "LOAD 10", "LOAD 15", "LOAD 20", "LOAD 31"]
    assert visible_runs(passes.deployment) == before


@pytest.mark.invariant("W9")
def test_day_changes_show_every_change(deployment_on_each_database: LocalDeployment) -> None:
    """A verdict, a load and an operator's action each change the values of the day, and of no other."""
    deployment = deployment_on_each_database
    window = DayWindow(source=SOURCE, query_name=QUERY)
    first, second = key(1, 1), key(1, 2)
    deployment.pipeline.judge_and_load([seal_run(deployment, second)])
    seen = [deployment.ledger.publications.day_changes(window)]
    for change in (
        lambda: deployment.pipeline.validation.judge([seal_run(deployment, first)]),
        lambda: deployment.pipeline.loader.load([first]),
        lambda: deployment.ledger.actions.execute(Action.WITHDRAW, [first], action_request()),
    ):
        change()
        seen.append(deployment.ledger.publications.day_changes(window))
    of_first = [changes.get(first.logical_date) for changes in seen]
    assert len(set(of_first)) == len(of_first)
    assert len({changes[second.logical_date] for changes in seen}) == 1
