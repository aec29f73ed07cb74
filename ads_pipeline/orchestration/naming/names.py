"""Builds the names of a deployment in Dagster, which all stand below its prefix.

Two deployments in one code location, or in one instance of Dagster, need different prefixes.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeVar

import dagster as dg

from ads_pipeline.domain.errors import BadName

SEPARATOR: Final = "__"  # Dagster joins the parts of an asset key by it; no part has it
PART: Final = re.compile(r"[A-Za-z](?:_?[A-Za-z0-9])*", re.ASCII)
MAX_LENGTH: Final = 40  # Dagster refuses longer names of tags
PREFIX_RULE: Final = (
    "its parts are letters, digits and single underscores between them, begin with a letter, "
    f"and have at most {MAX_LENGTH} characters together"
)

_T = TypeVar("_T")


@dataclass(frozen=True)
class ResourceName(Generic[_T]):
    """The name of a resource without its prefix, and its type."""

    text: str


@dataclass(frozen=True, slots=True)
class Names:
    """The names below one prefix. Without a prefix they are short. Raises BadName for a prefix of another form."""

    prefix: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        is_valid = isinstance(self.prefix, tuple) and all(
            isinstance(part, str) and PART.fullmatch(part) for part in self.prefix
        )
        if not is_valid or len(SEPARATOR.join(self.prefix)) > MAX_LENGTH:
            raise BadName("key_prefix", self.prefix, PREFIX_RULE)

    @classmethod
    def below(cls, prefix: str | Sequence[str]) -> Self:
        """The names below a prefix of one part, which may be a text, or of several."""
        return cls((prefix,) if isinstance(prefix, str) else tuple(prefix))

    def key(self, *parts: str) -> dg.AssetKey:
        return dg.AssetKey([*self.prefix, *parts])

    def name(self, text: str) -> str:
        """The name of a resource, sensor, schedule, job, op, group, pool or set of partitions."""
        return SEPARATOR.join([*self.prefix, text])

    def tag(self, key: str) -> str:
        """The key of a tag of runs, assets or materializations."""
        space, _, text = key.rpartition("/")
        return f"{space}/{self.name(text)}"

    def raw(self, query_name: str) -> dg.AssetKey:
        return self.key("raw", query_name)

    def warehouse(self, query_name: str) -> dg.AssetKey:
        return self.key("warehouse", query_name)

    def assets(self, query_names: Iterable[str]) -> list[dg.AssetKey]:
        """List the keys of both assets of each query."""
        return [key for name in query_names for key in (self.raw(name), self.warehouse(name))]

    def require(self, *resources: ResourceName[Any]) -> set[str]:
        """The keys of the resources that a definition requires."""
        return {self.name(each.text) for each in resources}

    def find(self, context: Any, resource: ResourceName[_T]) -> _T:
        """The resource of this deployment that the context of a definition has."""
        found: _T = getattr(context.resources, self.name(resource.text))
        return found


UNPREFIXED: Final = Names()
