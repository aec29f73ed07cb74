"""The check of days: what needs a person, by condition, and the next command for it.

The conditions are those of `state inspect` and of the report, so that their numbers agree.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ads_pipeline.domain.days.conditions import BLOCKED_CONDITIONS, CONDITIONS, NEEDS_OPERATOR, Condition, GapReason
from ads_pipeline.domain.days.day_ranges import DayRange, count_conditions
from ads_pipeline.domain.days.readability import Blocker
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.operations.doctor.examination import Deployment, Finding, make_error
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days, find_ranges
from ads_pipeline.pipeline.days.next_steps import find_next_commands
from ads_pipeline.pipeline.registered_seals import check_seal

# Reasons that `reconcile` cannot repair.
_NOT_REPAIRABLE: Final = frozenset({GapReason.NO_CONTRACT, GapReason.UNLOADABLE})


def check_days(deployment: Deployment) -> Iterator[Finding]:
    """Find the blocked days, which nothing but a person ends."""
    by_condition = defaultdict[Condition, list[DayRange]](list)
    for each in _find_ranges(deployment, BLOCKED_CONDITIONS):
        by_condition[each.condition].append(each)
    for condition in sorted(by_condition):
        found = by_condition[condition]
        newest = max(found, key=lambda each: (each.last.logical_date, each.last))
        number = count_conditions(found).total()
        problem = f"{count_days(number)}; the newest is {newest.last}: {newest.day.reason}"
        step = f"ads-pipeline state inspect --condition {condition}"
        yield make_error(CONDITIONS[condition].label, problem, step)


def describe_days_that_need_you(deployment: Deployment) -> str:
    """The number of days that need a person, in any condition."""
    number = count_conditions(_find_ranges(deployment, NEEDS_OPERATOR)).total()
    return f"{count_days(number)}: ads-pipeline state inspect lists them" if number else "no day needs you"


def count_days(number: int) -> str:
    return "1 day needs you" if number == 1 else f"{number:,} days need you"


def find_steps(deployment: Deployment, keys: Iterable[PartitionKey]) -> Mapping[PartitionKey, str]:
    """The next commands of those partitions that `reconcile` cannot repair, whether it has tried to or not."""
    rules = DayRules.read(deployment.ledger, deployment.settings, now=deployment.now)
    days = describe_days(deployment.ledger, keys, rules)
    stuck = {key for key, day in days.items() if day.blocked_by and day.blocked_by.reason in _NOT_REPAIRABLE}
    lost = {state.key for state in deployment.ledger.states.get_many(days).values() if _is_lost(deployment, state)}
    unloadable = Blocker(GapReason.UNLOADABLE, deployment.now)
    blocked = {key: days[key] for key in stuck} | {
        key: replace(days[key], condition=Condition.BLOCKED, blocked_by=unloadable) for key in lost - stuck
    }
    return find_next_commands(deployment.ledger, blocked, deployment.settings.retry_policy)


def _is_lost(deployment: Deployment, state: PartitionState) -> bool:
    """True if the sealed files of the current run of a success are gone or changed."""
    if state.status is not Status.SUCCESS or state.current_run_id is None:
        return False
    known = deployment.ledger.inspect_run(Run(key=state.key, run_id=state.current_run_id))
    return known is not None and check_seal(known.registered, deployment.raw) is not None


def _find_ranges(deployment: Deployment, conditions: Collection[Condition]) -> list[DayRange]:
    ledger, apis = deployment.ledger, deployment.settings.google_apis
    rules = DayRules.read(ledger, deployment.settings, now=deployment.now)
    first_days, ranges = ledger.days.first_days(apis.source), list[DayRange]()
    for name in sorted(apis.queries):
        window = DayWindow(source=apis.source, query_name=name, since=apis.start_date, until=deployment.now.date())
        ranges += find_ranges(ledger, window, conditions, first_days=first_days.of_query(name), rules=rules)
    return ranges
