"""Compares the columns of new rows with a table's columns, and converts columns for Delta and Spark.

Columns are only ever added to a table. `contracts` decides which schema version has which columns.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import Schema as DeltaSchema
from pyspark.sql.types import StructType

from ads_pipeline.domain.errors import SchemaConflict, WarehouseError
from ads_pipeline.domain.quoting import printable
from ads_pipeline.lake.warehouse.table_values import DATE_COLUMN, KEY_COLUMNS, SEAL_COLUMNS

LONG_TYPE = '"long"'  # of integers, in Delta's JSON
_FORBIDDEN_CHARACTERS = frozenset(" ,;{}()\n\t=")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A nullable column. The type is Delta's JSON for it, which Spark uses as well."""

    name: str
    type: str


_REQUIRED_TYPES = dict.fromkeys((*KEY_COLUMNS, *SEAL_COLUMNS), '"string"')
_REQUIRED_TYPES |= {"extracted_at": '"timestamp"', DATE_COLUMN: '"date"'}
_REQUIRED = {name: TableColumn(name=name, type=kind) for name, kind in _REQUIRED_TYPES.items()}


def make_columns(table: object, kinds: Mapping[str, str]) -> tuple[TableColumn, ...]:
    """The columns of new rows in the table's order: those of their runs, the columns of a contract, and the day.

    `kinds` gives the type of each column of a contract. Raises WarehouseError if Delta readers do not support a name.
    """
    for required in _REQUIRED.values():
        if kinds.get(required.name) not in (None, json.loads(required.type)):
            _check_same_type(table, required, TableColumn(name=required.name, type=json.dumps(kinds[required.name])))
    data = {name: kind for name, kind in kinds.items() if name not in _REQUIRED}
    _check_names(table, [*data, *_REQUIRED])
    *keys, day = _REQUIRED.values()
    return (*keys, *(TableColumn(name=name, type=json.dumps(kind)) for name, kind in data.items()), day)


def read_delta_columns(schema: DeltaSchema) -> tuple[TableColumn, ...]:
    return tuple(_parse_columns(schema.to_json()))


def find_new_columns(
    table: object, *, existing: tuple[TableColumn, ...], incoming: tuple[TableColumn, ...]
) -> tuple[TableColumn, ...]:
    """The incoming columns that the table lacks. Raises SchemaConflict if a column would change its type."""
    known = {column.name: column for column in existing}
    for column in incoming:
        if column.name in known:
            _check_same_type(table, known[column.name], column)
    new = tuple(column for column in incoming if column.name not in known)
    _check_names(table, [*known, *(column.name for column in new)])
    return new


def to_delta_schema(columns: Iterable[TableColumn]) -> DeltaSchema:
    return DeltaSchema.from_json(json.dumps(_to_struct(columns)))


def to_arrow_schema(columns: Iterable[TableColumn]) -> pa.Schema:
    return pa.schema(to_delta_schema(columns).to_arrow())


def to_spark_schema(columns: Iterable[TableColumn]) -> StructType:
    return StructType.fromJson(_to_struct(columns))


def _to_struct(columns: Iterable[TableColumn]) -> dict[str, Any]:
    fields = [
        {"name": column.name, "type": json.loads(column.type), "nullable": True, "metadata": {}} for column in columns
    ]
    return {"type": "struct", "fields": fields}


def _parse_columns(document: str) -> list[TableColumn]:
    return [
        TableColumn(name=field["name"], type=json.dumps(_make_nullable(field["type"]), sort_keys=True))
        for field in json.loads(document)["fields"]
    ]


def _make_nullable(kind: Any) -> Any:
    """The type with every nested value nullable, so that types that differ only in nullability are equal."""
    match kind:
        case {"type": "struct", "fields": fields}:
            nested = [
                {**field, "type": _make_nullable(field["type"]), "nullable": True, "metadata": {}} for field in fields
            ]
            return {"type": "struct", "fields": nested}
        case {"type": "array", "elementType": element}:
            return {"type": "array", "elementType": _make_nullable(element), "containsNull": True}
        case {"type": "map", "keyType": key, "valueType": value}:
            return {
                "type": "map",
                "keyType": _make_nullable(key),
                "valueType": _make_nullable(value),
                "valueContainsNull": True,
            }
    return kind


def _check_same_type(table: object, existing: TableColumn, incoming: TableColumn) -> None:
    if existing.type != incoming.type:
        raise SchemaConflict(
            str(table), printable(existing.name), _printable_type(existing), _printable_type(incoming)
        )


def _printable_type(column: TableColumn) -> str:
    return printable(column.type.strip('"'), limit=200)


def _check_names(table: object, names: Iterable[str]) -> None:
    """Delta compares names without regard to case, and many readers do not support some characters."""
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(name.casefold(), name)
        if not name or not _FORBIDDEN_CHARACTERS.isdisjoint(name):
            raise WarehouseError(str(table), f"column {printable(name)!r} cannot be stored; rename it")
        if first != name:
            raise WarehouseError(str(table), f"columns {printable(first)} and {printable(name)} differ only in case")
