"""The fields of one version of the API, read from the descriptors of the installed client. Needs no network.

Importing a version takes about two seconds and 45 MB, so only steps that fetch and the command that checks do it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Final

# protobuf's FieldDescriptor.cpp_type -> kind
_KINDS: Final[Mapping[int, str]] = {
    1: "integer",
    2: "integer",
    3: "integer",
    4: "integer",
    5: "number",
    6: "number",
    7: "boolean",
    8: "enum",
    9: "text",
    10: "message",
}
NOT_ONE_VALUE: Final = frozenset({"list", "message", "bytes"})  # kinds that no column can hold
_BYTES: Final = 12  # protobuf's FieldDescriptor.type; its cpp_type is that of a text
_MAX_DEPTH: Final = 6  # of the messages below a row, some of which contain themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A GAQL field: the attributes that lead to it in a row, and what its value is.

    The client appends an underscore to names that Python reserves: GAQL's `ad_group.type` is `type_` there.
    `enum_names` is None unless the kind is enum. Without presence, an unset value looks like a zero.
    """

    path: str
    parents: tuple[str, ...]
    name: str
    kind: str
    has_presence: bool
    enum_names: Mapping[int, str] | None = None


@dataclass(frozen=True)
class VersionFields:
    """The fields of one version."""

    version: str

    @cached_property
    def _row(self) -> Any:
        types = import_module(f"google.ads.googleads.{self.version}.services.types.google_ads_service")
        return types.GoogleAdsRow.pb().DESCRIPTOR

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """The names after FROM that a row has a message for."""
        return tuple(
            field.name.rstrip("_") for field in self._row.fields if field.name not in ("metrics", "segments")
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every field that is one value, as GAQL writes it."""
        return tuple(sorted(_walk(self._row, (), _MAX_DEPTH)))

    def has_resource(self, name: str) -> bool:
        return name in self.resources

    def find(self, path: str) -> Field | None:
        """The field that GAQL writes like this; None when this version has none."""
        message, found, names = self._row, None, []
        for part in path.split("."):
            known = message.fields_by_name if message is not None else {}
            found = known.get(part) or known.get(f"{part}_")
            if found is None:
                return None
            names.append(found.name)
            message = found.message_type
        return _make_field(path, tuple(names), found)


def _make_field(path: str, names: tuple[str, ...], descriptor: Any) -> Field:
    enum = descriptor.enum_type
    return Field(
        path=path,
        parents=names[:-1],
        name=names[-1],
        kind=_find_kind(descriptor),
        has_presence=descriptor.has_presence,
        enum_names=None if enum is None else {value.number: value.name for value in enum.values},
    )


def _find_kind(descriptor: Any) -> str:
    if descriptor.is_repeated:
        return "list"
    return "bytes" if descriptor.type == _BYTES else _KINDS[descriptor.cpp_type]


def _walk(message: Any, above: tuple[str, ...], depth: int) -> Iterator[str]:
    for field in message.fields:
        path = (*above, field.name.rstrip("_"))
        if field.is_repeated:
            continue
        if field.message_type is None:
            yield ".".join(path)
        elif depth:
            yield from _walk(field.message_type, path, depth - 1)
