"""Turns a row of Google Ads into a flat dictionary, by a table of columns that is read once from the descriptors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ads_pipeline.errors import FieldRefused
from ads_pipeline.google_ads.descriptors import Field, VersionFields
from ads_pipeline.google_ads.gaql import column_name

UNKNOWN: Final = "UNKNOWN"  # Google's own name for a value that is newer than the version
_UNSET: Final = 0  # the number of an enum that is not set


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    parent: int
    attribute: str
    has_presence: bool
    enum_names: dict[int, str | None] | None


class Flattener:
    """Flattens rows of one query. Columns have the order of the query.

    Unset values and unset enums are None. A value of an enum that the version does not name is UNKNOWN, and counts in
    `unknown_values`. `customer_id` is text; other integers stay exact. Raises FieldRefused for an unknown field and
    for one that is not one value.
    """

    def __init__(self, selected: Sequence[str], fields: VersionFields) -> None:
        self._parents: list[tuple[str, ...]] = []
        self._columns = [self._make_column(path, fields) for path in selected]
        self.unknown_values = 0

    def flatten(self, row: Any) -> dict[str, Any]:
        parents = []
        for path in self._parents:
            message = row
            for name in path:
                message = getattr(message, name)
            parents.append(message)
        values: dict[str, Any] = {}
        for column in self._columns:
            message = parents[column.parent]
            if column.has_presence and not message.HasField(column.attribute):
                value = None
            else:
                value = getattr(message, column.attribute)
                if column.enum_names is not None:
                    value = self._name_value(column.enum_names, value)
            values[column.name] = value
        if (customer := values.get("customer_id")) is not None:
            values["customer_id"] = str(customer)
        return values

    def _name_value(self, names: dict[int, str | None], number: int) -> str | None:
        if number in names:
            return names[number]
        self.unknown_values += 1
        return UNKNOWN

    def _make_column(self, path: str, fields: VersionFields) -> _Column:
        field = fields.find(path)
        if field is None or field.kind in ("list", "message"):
            raise FieldRefused(path, fields.version)
        if field.parents not in self._parents:
            self._parents.append(field.parents)
        return _Column(
            column_name(path), self._parents.index(field.parents), field.name, field.has_presence, _name_enum(field)
        )


def _name_enum(field: Field) -> dict[int, str | None] | None:
    if field.enum_names is None:
        return None
    return {number: None if number == _UNSET else name for number, name in field.enum_names.items()}
