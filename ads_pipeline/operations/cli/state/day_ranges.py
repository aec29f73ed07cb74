"""Shows days with their condition: consecutive days with one reason share a line. For programs, one day an object."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby

from rich.text import Text

from ads_pipeline.domain.days.conditions import Condition
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.operations.cli.command_line.output import STATUS_STYLES, fields_of


def name_condition(condition: Condition) -> str:
    """The condition as words."""
    return condition.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRange:
    """Consecutive days of a customer and query with the same condition and reason."""

    first: PartitionKey
    last: PartitionKey
    day: DayCondition

    @property
    def days(self) -> int:
        return (self.last.logical_date - self.first.logical_date).days + 1

    @property
    def keys(self) -> Iterator[PartitionKey]:
        """The days of the range, newest first."""
        for back in range(self.days):
            yield replace(self.last, logical_date=self.last.logical_date - timedelta(days=back))

    @property
    def days_text(self) -> str:
        last = f" to {self.last.logical_date}" if self.days > 1 else ""
        return f"{self.first.logical_date}{last}"

    @property
    def row(self) -> dict[str, object]:
        """The fields that tables show."""
        condition = self.day.condition
        return {
            "customer_id": self.first.customer_id,
            "query_name": self.first.query_name,
            "days": self.days_text,
            "gaps": self.days,
            "condition": Text(name_condition(condition), style=STATUS_STYLES.get(condition, "")),
            "since": self.day.since,
            "reason": self.day.reason,
        }

    @property
    def selection(self) -> str:
        """The arguments that select the days in a command."""
        if self.days == 1:
            return self.first.short_name
        key = self.first
        return (
            f"--customer {key.customer_id} --query {key.query_name} "
            f"--since {key.logical_date} --until {self.last.logical_date}"
        )


def find_ranges(days: Mapping[PartitionKey, DayCondition]) -> Iterator[DayRange]:
    """Group the days by customer, query, condition, reason and consecutive days."""
    ordered = sorted(days.items(), key=lambda each: each[0])

    def group_key(numbered: tuple[int, tuple[PartitionKey, DayCondition]]) -> tuple[object, ...]:
        number, (key, day) = numbered
        same_range = key.logical_date.toordinal() - number
        return key.customer_id, key.query_name, day.condition, day.explanation, same_range

    for _key, members in groupby(enumerate(ordered), group_key):
        range_days = [each for _number, each in members]
        yield DayRange(first=range_days[0][0], last=range_days[-1][0], day=range_days[0][1])


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
    days: Mapping[PartitionKey, DayCondition], commands: Mapping[PartitionKey, str]
) -> Iterable[Mapping[str, object]]:
    """One row per day, for JSON."""
    for key, day in days.items():
        yield fields_of(key, **day_fields(day, commands[key]), attempts=day.attempts)
