"""`SealedRun`: a sealed run and the facts of its seal. It travels from the seal to the warehouse pointer."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from typing import Any, Final

from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.partition import Run, validate_name

MAX_COUNT: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SealFacts:
    """The facts of a run that its extractor provides. BadName when a value breaks its rule."""

    extracted_at: datetime
    schema_version: str
    api_version: str
    query_hash: str
    time_zone: str | None = None
    currency_code: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            rule, parse, required = SEAL_FIELDS[field.name]
            value = getattr(self, field.name)
            try:
                if value is not None or required:
                    parse(value.isoformat() if isinstance(value, datetime) else value)
            except (ValueError, OverflowError):
                raise BadName(field.name, value, f"it must be {rule}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedRun:
    """A sealed run: its origin and the expected content of its payload, as its seal has them.

    A seal by another extractor may lack the payload's size and digest. Then only its record_count is checked.
    """

    run: Run
    facts: SealFacts
    record_count: int
    payload_bytes: int | None
    payload_sha256: str | None

    @property
    def partition(self) -> tuple[str, date]:
        """The partition within the table of its query: customer and day."""
        return self.run.key.customer_id, self.run.key.logical_date

    @property
    def contract(self) -> tuple[str, str]:
        """The query name and the schema version, which select the contract."""
        return self.run.key.query_name, self.facts.schema_version


def _parse_instant(value: object) -> datetime:
    instant = datetime.fromisoformat(_parse_instant_text(value))
    if instant.tzinfo is None:
        raise ValueError
    return instant.astimezone(UTC)


def _parse_count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:  # a bool is an int too
        raise ValueError
    return value


def _text_parser(pattern: str) -> Callable[[object], str]:
    compiled = re.compile(pattern, re.ASCII)

    def parse(value: object) -> str:
        if not isinstance(value, str) or compiled.fullmatch(value) is None:
            raise ValueError
        return value

    return parse


_parse_instant_text = _text_parser(r"[0-9TZ:.+-]{1,40}")

# field -> (the rule in words, its parser, whether every extractor must provide it)
SEAL_FIELDS: Mapping[str, tuple[str, Callable[[object], Any], bool]] = {
    "extracted_at": ("an ISO 8601 instant with its UTC offset", _parse_instant, True),
    "schema_version": (
        "1 to 32 of letters, digits, '.', '_', '-'",
        lambda value: validate_name("schema_version", value),
        True,
    ),
    "api_version": ("1 to 32 of letters, digits, '.', '_', '-'", _text_parser(r"[0-9A-Za-z._-]{1,32}"), True),
    "query_hash": ("1 to 128 of letters, digits, ':', '-', '_'", _text_parser(r"[0-9A-Za-z:_-]{1,128}"), True),
    "record_count": ("a whole number, 0 or more", _parse_count, True),
    "time_zone": ("an IANA zone name", _text_parser(r"[A-Za-z][0-9A-Za-z_+/-]{0,63}"), False),
    "currency_code": ("three capital letters", _text_parser(r"[A-Z]{3}"), False),
    "payload_bytes": ("a whole number, 0 or more", _parse_count, False),
    "payload_sha256": ("64 hexadecimal digits", _text_parser(r"[0-9a-f]{64}"), False),
}
