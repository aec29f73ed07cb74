"""Turns rows of Google Ads into flat columns, by a table of columns that is read once from the descriptors."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from ads_pipeline.domain.errors import FieldRefused
from ads_pipeline.google_ads.requests.descriptors import NOT_ONE_VALUE, Field, VersionFields
from ads_pipeline.settings.query_file import name_column

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
    """Flattens rows of one query. Columns have the order of the query, values the order of the rows.

    Unset values and unset enums are None. A value of an enum that the version does not name is UNKNOWN, and counts in
    `unknown_values`. `customer_id` is text; other integers stay exact. Raises FieldRefused for an unknown field and
    for one that is not one value.
    """

    def __init__(self, selected: Sequence[str], fields: VersionFields) -> None:
        self._parents: list[tuple[str, ...]] = []
        self._columns = [self._make_column(path, fields) for path in selected]
        self._get_parents = [attrgetter(".".join(path)) for path in self._parents]
        self.unknown_values = 0

    def flatten(self, rows: Sequence[Any]) -> dict[str, list[Any]]:
        """The values of each column. Reading a column of many rows is several times as fast as row by row."""
        parents = [list(map(get_parent, rows)) for get_parent in self._get_parents]
        columns = {column.name: self._read(column, parents[column.parent]) for column in self._columns}
        if "customer_id" in columns:
            columns["customer_id"] = [None if each is None else str(each) for each in columns["customer_id"]]
        return columns

    def _read(self, column: _Column, messages: Sequence[Any]) -> list[Any]:
        values = list(map(attrgetter(column.attribute), messages))
        if column.enum_names is not None:
            return self._name_values(column.enum_names, values)
        if column.has_presence and not all(values):  # an unset value looks like a zero
            name = column.attribute
            return [v if v or message.HasField(name) else None for v, message in zip(values, messages, strict=True)]
        return values

    def _name_values(self, names: dict[int, str | None], numbers: list[int]) -> list[str | None]:
        self.unknown_values += sum(map(numbers.count, set(numbers) - names.keys()))
        return [names.get(number, UNKNOWN) for number in numbers]

    def _make_column(self, path: str, fields: VersionFields) -> _Column:
        field = fields.find(path)
        if field is None or field.kind in NOT_ONE_VALUE:
            raise FieldRefused(path, fields.version)
        if field.parents not in self._parents:
            self._parents.append(field.parents)
        return _Column(
            name_column(path), self._parents.index(field.parents), field.name, field.has_presence, _name_enum(field)
        )


def _name_enum(field: Field) -> dict[int, str | None] | None:
    if field.enum_names is None:
        return None
    return {number: None if number == _UNSET else name for number, name in field.enum_names.items()}
