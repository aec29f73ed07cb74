"""Compares the columns of new rows with a table's, and spells them for Delta, Spark and Arrow.

A table's columns only ever grow. Which schema version may hold which column is for `contracts`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import Field
from deltalake import Schema as DeltaSchema
from pyspark.sql.types import StructType

from ads_pipeline.errors import SchemaConflict, WarehouseError, printable
from ads_pipeline.warehouse.values import DATE, KEYS

_FORBIDDEN = frozenset(" ,;{}()\n\t=")
_SIMPLE = frozenset(
    {"string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date", "timestamp"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A nullable column. The type is Delta's own JSON, which Spark writes as well."""

    name: str
    type: str

    @property
    def document(self) -> dict[str, Any]:
        return {"name": self.name, "type": json.loads(self.type), "nullable": True, "metadata": {}}


_FIXED = {name: TableColumn(name=name, type='"string"') for name in KEYS} | {
    DATE: TableColumn(name=DATE, type='"date"')
}


def columns_offered(table: object, schema: StructType) -> tuple[TableColumn, ...]:
    """The columns of new rows in the table's order, or WarehouseError where Delta readers could not take one."""
    found = {column.name: column for column in _columns(schema.json())}
    for fixed in _FIXED.values():
        if fixed.name not in found:
            raise WarehouseError(str(table), f"the new rows lack the column {fixed.name}")
        _refuse_change(table, fixed, found.pop(fixed.name))
    _refuse_names(table, [*found, *_FIXED])
    for column in found.values():
        if not _storable(json.loads(column.type)):
            problem = f"column {printable(column.name)} is of type {column.type}, which not every Delta reader knows"
            raise WarehouseError(str(table), problem)
    *keys, day = _FIXED.values()
    return (*keys, *found.values(), day)


def columns_held(schema: DeltaSchema) -> tuple[TableColumn, ...]:
    return tuple(_columns(schema.to_json()))


def columns_merged(
    table: object, *, held: tuple[TableColumn, ...], offered: tuple[TableColumn, ...]
) -> tuple[TableColumn, ...]:
    """The table's columns, then the new ones. SchemaConflict when a known column changes its type."""
    known = {column.name: column for column in held}
    for column in offered:
        if column.name in known:
            _refuse_change(table, known[column.name], column)
    fresh = tuple(column for column in offered if column.name not in known)
    _refuse_names(table, [*known, *(column.name for column in fresh)])
    return held + fresh


def delta_schema(columns: Iterable[TableColumn]) -> DeltaSchema:
    return DeltaSchema.from_json(json.dumps(_struct(columns)))


def delta_fields(columns: Iterable[TableColumn]) -> list[Field]:
    return list(delta_schema(columns).fields)


def spark_schema(columns: Iterable[TableColumn]) -> StructType:
    return StructType.fromJson(_struct(columns))


def arrow_schema(columns: Iterable[TableColumn]) -> pa.Schema:
    return pa.schema(delta_schema(columns).to_arrow())


def _struct(columns: Iterable[TableColumn]) -> dict[str, Any]:
    return {"type": "struct", "fields": [column.document for column in columns]}


def _columns(document: str) -> list[TableColumn]:
    return [
        TableColumn(name=field["name"], type=json.dumps(_nullable(field["type"]), sort_keys=True))
        for field in json.loads(document)["fields"]
    ]


def _nullable(kind: Any) -> Any:
    """The type with every inner null allowed: whether nulls occur says nothing of what readers can take."""
    match kind:
        case {"type": "struct", "fields": fields}:
            inner = [
                {**field, "type": _nullable(field["type"]), "nullable": True, "metadata": {}} for field in fields
            ]
            return {"type": "struct", "fields": inner}
        case {"type": "array", "elementType": element}:
            return {"type": "array", "elementType": _nullable(element), "containsNull": True}
        case {"type": "map", "keyType": key, "valueType": value}:
            return {
                "type": "map",
                "keyType": _nullable(key),
                "valueType": _nullable(value),
                "valueContainsNull": True,
            }
    return kind


def _storable(kind: Any) -> bool:
    match kind:
        case {"type": "struct", "fields": fields}:
            return all(_storable(field["type"]) for field in fields)
        case {"type": "array", "elementType": element}:
            return _storable(element)
        case {"type": "map", "keyType": key, "valueType": value}:
            return _storable(key) and _storable(value)
        case str():
            return kind in _SIMPLE or kind.startswith("decimal(")
    return False


def _refuse_change(table: object, held: TableColumn, offered: TableColumn) -> None:
    if held.type != offered.type:
        raise SchemaConflict(str(table), printable(held.name), _words(held), _words(offered))


def _words(column: TableColumn) -> str:
    return printable(column.type.strip('"'), limit=200)


def _refuse_names(table: object, names: Iterable[str]) -> None:
    """Delta compares names without regard to case, and many readers cannot spell some characters."""
    seen: dict[str, str] = {}
    for name in names:
        twin = seen.setdefault(name.casefold(), name)
        if not name or not _FORBIDDEN.isdisjoint(name):
            raise WarehouseError(str(table), f"column {printable(name)!r} cannot be stored; rename it")
        if twin != name:
            raise WarehouseError(str(table), f"columns {printable(twin)} and {printable(name)} differ only in case")
