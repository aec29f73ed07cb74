"""The dependencies and the automation condition of an asset of your own that follows the days of warehouse tables."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import dagster as dg

from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import DATE


class FollowedDays(TypedDict):
    """Arguments of `@dg.asset`."""

    deps: list[Any]
    automation_condition: "dg.AutomationCondition[Any]"


def on_changed_days(
    *query_names: str, key_prefix: str | Sequence[str] = (), deps: Iterable[Any] = ()
) -> FollowedDays:
    """Arguments of `@dg.asset` for an asset with daily partitions that is run for each day that changed.

        @dg.asset(partitions_def=dg.DailyPartitionsDefinition("2024-01-01"), **on_changed_days("campaign_daily"))
        def spend_by_client(context): ...

    A day has changed when readers get other rows of any customer than before: a run was loaded, or its rows were
    removed. Loading the same run again is no change. `deps` are further dependencies of the asset, and `key_prefix`
    is that of the deployment. The condition works once the automation sensor of your code location is on.
    """
    names = Names.below(key_prefix)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # as of the partitions themselves
        mapping = dg.MultiToSingleDimensionPartitionMapping(DATE)
    tables = [dg.AssetDep(names.warehouse(name), partition_mapping=mapping) for name in query_names]
    return {"deps": [*tables, *deps], "automation_condition": build_condition()}


def build_condition() -> "dg.AutomationCondition[Any]":
    """True for each partition with a changed dependency since it was last requested, when no run is at work on it.

    `AutomationCondition.eager()` waits until all customers of the newest day are there, and looks at no other day. A
    change during a run of the day counts for the next run: only a request resets the condition, and not in a tick
    that finds a change. `since_last_handled()` loses a change that is found together with the last request.
    """
    condition = dg.AutomationCondition
    changed = condition.any_deps_updated().replace(condition.newly_updated(), condition.data_version_changed())
    handled = (condition.newly_requested() & ~changed) | condition.initial_evaluation()
    return (changed.since(handled) & ~condition.in_progress()).with_label("on_changed_days")
