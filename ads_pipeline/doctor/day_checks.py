"""The check of days: what needs a person, by condition, and the next command for it.

The conditions are those of `state inspect` and of the report, so that their numbers agree.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from ads_pipeline.doctor.examination import Deployment, Finding, make_error
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.readability import BLOCKED_CONDITIONS, CONDITIONS, Condition, DayCondition, GapReason
from ads_pipeline.ledger.values import DayWindow
from ads_pipeline.pipeline.day_conditions import DayRules, describe_days, find_days
from ads_pipeline.pipeline.next_steps import find_next_commands

# Reasons that `reconcile` cannot repair.
_NOT_REPAIRABLE: Final = frozenset({GapReason.NO_CONTRACT, GapReason.UNLOADABLE})


def check_days(deployment: Deployment) -> Iterator[Finding]:
    """Find the blocked days, which nothing but a person ends."""
    by_condition = defaultdict[Condition, dict[PartitionKey, DayCondition]](dict)
    for key, day in _find_days(deployment, BLOCKED_CONDITIONS).items():
        by_condition[day.condition][key] = day
    for condition in sorted(by_condition):
        found = by_condition[condition]
        newest = max(found, key=lambda key: (key.logical_date, key))
        problem = f"{count_days(len(found))}; the newest is {newest}: {found[newest].reason}"
        step = f"ads-pipeline state inspect --condition {condition}"
        yield make_error(CONDITIONS[condition].label, problem, step)


def describe_days_that_need_you(deployment: Deployment) -> str:
    """How many days need a person, whatever their condition."""
    number = len(_find_days(deployment, [name for name, text in CONDITIONS.items() if text.needs_operator]))
    return f"{count_days(number)}: ads-pipeline state inspect lists them" if number else "no day needs you"


def count_days(number: int) -> str:
    return "1 day needs you" if number == 1 else f"{number:,} days need you"


def find_steps(deployment: Deployment, keys: Iterable[PartitionKey]) -> Mapping[PartitionKey, str]:
    """The next commands of those partitions that `reconcile` cannot repair."""
    rules = DayRules.read(deployment.ledger, deployment.settings, now=deployment.now)
    described = describe_days(deployment.ledger, keys, rules)
    stuck = {
        key: day for key, day in described.items() if day.blocked_by and day.blocked_by.reason in _NOT_REPAIRABLE
    }
    return find_next_commands(deployment.ledger, stuck, deployment.settings.retry_policy)


def _find_days(deployment: Deployment, conditions: Collection[Condition]) -> dict[PartitionKey, DayCondition]:
    ledger, apis = deployment.ledger, deployment.settings.google_apis
    rules = DayRules.read(ledger, deployment.settings, now=deployment.now)
    first_days, days = ledger.days.first_days(apis.source), dict[PartitionKey, DayCondition]()
    for name in sorted(apis.queries):
        window = DayWindow(source=apis.source, query_name=name, since=apis.start_date, until=deployment.now.date())
        days |= find_days(ledger, window, conditions, first_days=first_days.of_query(name), rules=rules)
    return days
