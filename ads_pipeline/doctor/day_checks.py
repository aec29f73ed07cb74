"""The check of days: what needs a person, by condition, and the next command for it.

The conditions are those of `state inspect` and of the report, so that their numbers agree.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ads_pipeline.doctor.examination import Deployment, Finding, make_error, make_note
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.readability import BLOCKED_CONDITIONS, CONDITIONS, Condition, DayCondition, GapReason
from ads_pipeline.ledger.values import DayWindow
from ads_pipeline.pipeline.day_conditions import DayRules, describe_days, find_days
from ads_pipeline.pipeline.next_steps import find_next_commands

# Reasons that `reconcile` cannot repair.
_NOT_REPAIRABLE: Final = frozenset({GapReason.NO_CONTRACT, GapReason.UNLOADABLE})


def check_days(deployment: Deployment) -> Iterator[Finding]:
    """Count the days that need a person. A blocked one is an error, because nothing else ends it."""
    by_condition = defaultdict[Condition, dict[PartitionKey, DayCondition]](dict)
    for key, day in _find_days_that_need_a_person(deployment).items():
        by_condition[day.condition][key] = day
    for condition in CONDITIONS:
        if found := by_condition[condition]:
            yield _describe(condition, found)


def find_steps(deployment: Deployment, keys: Iterable[PartitionKey]) -> Mapping[PartitionKey, str]:
    """The next commands of those partitions that `reconcile` cannot repair."""
    rules = DayRules.read(deployment.ledger, deployment.settings, now=deployment.now)
    described = describe_days(deployment.ledger, keys, rules)
    stuck = {
        key: day for key, day in described.items() if day.blocked_by and day.blocked_by.reason in _NOT_REPAIRABLE
    }
    return find_next_commands(deployment.ledger, stuck, deployment.settings.retry_policy)


def _find_days_that_need_a_person(deployment: Deployment) -> dict[PartitionKey, DayCondition]:
    ledger, apis = deployment.ledger, deployment.settings.google_apis
    rules = DayRules.read(ledger, deployment.settings, now=deployment.now)
    first_days, days = ledger.days.first_days(apis.source), dict[PartitionKey, DayCondition]()
    conditions = [condition for condition, text in CONDITIONS.items() if text.needs_operator]
    for name in sorted(apis.queries):
        window = DayWindow(source=apis.source, query_name=name, since=apis.start_date, until=deployment.now.date())
        days |= find_days(ledger, window, conditions, first_days=first_days.of_query(name), rules=rules)
    return days


def _describe(condition: Condition, found: Mapping[PartitionKey, DayCondition]) -> Finding:
    newest = max(found, key=lambda key: (key.logical_date, key))
    count = "1 day" if len(found) == 1 else f"{len(found):,} days"
    problem = f"{count} {'needs' if len(found) == 1 else 'need'} you; the newest is {newest}: {found[newest].reason}"
    make_finding = make_error if condition in BLOCKED_CONDITIONS else make_note
    return make_finding(CONDITIONS[condition].label, problem, f"ads-pipeline state inspect --condition {condition}")
