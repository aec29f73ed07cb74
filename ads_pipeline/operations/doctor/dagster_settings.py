"""Compares the settings of a user's own dagster.yaml with those that this release ships."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from ads_pipeline.settings.environment import DAGSTER_SETTINGS

_MISSING: Final = object()


def list_differences(path: Path) -> list[str]:
    """Return each shipped setting that the file does not have or sets to another value, with the shipped value.

    Values of the file are left out, because they may be secrets. Raises ValueError when it is no mapping in YAML.
    """
    own, shipped = _read(path), _read(DAGSTER_SETTINGS)
    return [
        f"{name} is {'not set' if own_value is _MISSING else 'different'} (shipped: {json.dumps(value)})"
        for name, value, own_value in _compare(shipped, own)
        if own_value != value
    ]


def _read(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text()) or {}
    except (yaml.YAMLError, UnicodeDecodeError):
        document = None
    if isinstance(document, dict):
        return document
    raise ValueError("it is no mapping in YAML")


def _compare(shipped: dict[str, Any], own: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each setting with its dotted name, its shipped value and its own value."""
    for name, value in shipped.items():
        own_value = own.get(name, _MISSING) if isinstance(own, dict) else _MISSING
        if isinstance(value, dict) and isinstance(own_value, dict):
            yield from _compare(value, own_value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value, own_value
