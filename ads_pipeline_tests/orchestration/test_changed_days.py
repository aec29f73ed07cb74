"""Assets of users that follow the days of warehouse tables."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pytest

from ads_pipeline.api import on_changed_days
from ads_pipeline.domain.errors import BadName
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import CUSTOMERS, define_partitions
from ads_pipeline_tests.pipeline.builders import FACTS, QUERY

FIRST = FACTS.extracted_at.date().replace(month=1, day=1)
DAYS = dg.DailyPartitionsDefinition(FIRST.isoformat())
NAMES = Names(("ads",))


@dg.asset(partitions_def=DAYS, **on_changed_days(QUERY, key_prefix="ads"))
def spend() -> None: ...


@dataclass
class Automation:
    """The condition of the asset, evaluated as the daemon does. `tick` gives the requested days."""

    instance: dg.DagsterInstance
    defs: dg.Definitions
    cursor: Any = None

    def load(self, customer: int, day: int, version: str) -> None:
        """Report what a load of a run reports; `none` is the version of a day without rows."""
        partition, tags = f"{customer}|2026-01-{day:02}", {"dagster/data_version": version}
        self.instance.report_runless_asset_event(
            dg.AssetMaterialization(NAMES.warehouse(QUERY), partition=partition, tags=tags)
        )

    def tick(self) -> list[int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)
            result = dg.evaluate_automation_conditions(defs=self.defs, instance=self.instance, cursor=self.cursor)
        self.cursor = result.cursor
        return sorted(int(str(name)[-2:]) for name in result.get_requested_partitions(spend.key))

    def start_run(self, day: int) -> dg.DagsterRun:
        job = self.defs.resolve_implicit_global_asset_job_def()
        tags = {"dagster/partition": f"2026-01-{day:02}"}
        run = self.instance.create_run_for_job(job, tags=tags, asset_selection=frozenset([spend.key]))
        self._report(run, dg.DagsterEventType.RUN_START)
        return run

    def end_run(self, run: dg.DagsterRun) -> None:
        partition = run.tags["dagster/partition"]
        self.instance.report_runless_asset_event(dg.AssetMaterialization(spend.key, partition=partition))
        self._report(run, dg.DagsterEventType.RUN_SUCCESS)

    def _report(self, run: dg.DagsterRun, kind: dg.DagsterEventType) -> None:
        event = dg.DagsterEvent(event_type_value=kind.value, job_name=run.job_name)
        self.instance.report_dagster_event(event, run.run_id)


@pytest.fixture
def automation() -> Iterator[Automation]:
    with dg.instance_for_test() as instance:
        instance.add_dynamic_partitions(NAMES.name(CUSTOMERS), ["1", "2", "3"])
        table = dg.AssetSpec(NAMES.warehouse(QUERY), partitions_def=define_partitions(NAMES, FIRST))
        yield Automation(instance, dg.Definitions(assets=[table, spend]))


def test_each_changed_day_is_requested_once(automation: Automation) -> None:
    """Also an old day, and one that lacks customers. What was there before the first tick is no change."""
    automation.load(1, 9, "r0")
    assert automation.tick() == []
    automation.load(1, 1, "r1")
    assert (automation.tick(), automation.tick()) == ([1], [])
    automation.load(2, 1, "r1")
    automation.load(3, 20, "r1")
    assert (automation.tick(), automation.tick()) == ([1, 20], [])
    automation.load(1, 9, "r2")
    assert automation.tick() == [9]


def test_only_other_rows_are_a_change(automation: Automation) -> None:
    """A run that is loaded again is none; removed rows are one, and so is their return."""
    automation.load(1, 1, "r1")
    automation.tick()
    requested = []
    for version in ("r1", "none", "none", "r1", "r2"):
        automation.load(1, 1, version)
        requested.append(automation.tick())
    assert requested == [[], [1], [], [1], [1]]


def test_change_during_a_run_is_requested_after_it(automation: Automation) -> None:
    """The run may have read the earlier rows. A day waits only for its own run. The change may come right after the
    request, or later."""
    automation.tick()
    for version in ("r1", "r2"):
        automation.load(1, 1, version)
        assert automation.tick() == [1]
        run = automation.start_run(1)
        if version == "r2":
            assert automation.tick() == []
        automation.load(2, 1, version)
        automation.load(1, 2, version)
        assert (automation.tick(), automation.tick()) == ([2], [])
        automation.end_run(run)
        assert (automation.tick(), automation.tick()) == ([1], [])


def test_other_dependencies_are_kept() -> None:
    """They are mapped as Dagster does, and their changes count too."""
    given = on_changed_days("campaign_daily", "keyword_daily", deps=["budgets"])

    @dg.asset(partitions_def=DAYS, **given)
    def both() -> None: ...

    assert both.asset_deps[both.key] == {
        dg.AssetKey(["warehouse", "campaign_daily"]),
        dg.AssetKey(["warehouse", "keyword_daily"]),
        dg.AssetKey("budgets"),
    }


def test_invalid_prefix_is_refused() -> None:
    """By the rule of deployments."""
    with pytest.raises(BadName):
        on_changed_days(QUERY, key_prefix="a|b")
