"""Shows days with their condition: consecutive days with one reason share a line. For programs, one day an object."""

from collections.abc import Iterable, Mapping
from typing import Final

from rich.text import Text

from ads_pipeline.domain.days.conditions import Condition
from ads_pipeline.domain.days.day_ranges import DayRange
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.operations.cli.command_line.output import STATUS_STYLES, Column, fields_of

NAME_COLUMN: Final = Column("account", "customer_name", from_width=100)


def name_condition(condition: Condition) -> str:
    """The condition as words."""
    return condition.replace("_", " ")


def row_of(found: DayRange, names: Mapping[str, str]) -> dict[str, object]:
    """The fields that tables show. `names` are those of the accounts."""
    condition, first, last, day = found.condition, found.first, found.last, found.day
    until = f" to {last.logical_date}" if found.days > 1 else ""
    return {
        "customer_id": first.customer_id,
        "customer_name": names.get(first.customer_id, ""),
        "query_name": first.query_name,
        "days": f"{first.logical_date}{until}",
        "gaps": found.days,
        "condition": Text(name_condition(condition), style=STATUS_STYLES.get(condition, "")),
        "since": day.since,
        "reason": day.reason,
    }


def selection_of(found: DayRange) -> str:
    """The arguments that select the days in a command."""
    key = found.first
    if found.days == 1:
        return key.short_name
    return (
        f"--customer {key.customer_id} --query {key.query_name} "
        f"--since {key.logical_date} --until {found.last.logical_date}"
    )


def day_fields(day: DayCondition, command: str) -> dict[str, object]:
    """The JSON fields of a day's condition."""
    return {
        "condition": day.condition,
        "reason": day.gap and day.gap.name.lower(),
        "because": day.gap and day.gap.value,
        "detail": day.detail or None,
        "operator": day.operator or None,
        "acknowledged_because": day.acknowledged and day.acknowledged.reason,
        "since": day.since,
        "report": day.report,
        "final_from": day.settles_at,
        "next_command": command or None,
    }


def day_rows(
    days: Mapping[PartitionKey, DayCondition], commands: Mapping[PartitionKey, str], names: Mapping[str, str]
) -> Iterable[Mapping[str, object]]:
    """One row per day, for JSON."""
    for key, day in days.items():
        name = names.get(key.customer_id)
        yield fields_of(key, **day_fields(day, commands[key]), attempts=day.attempts, customer_name=name)
