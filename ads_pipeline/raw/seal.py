"""Says what a run's seal holds, writes it and reads it back strictly.

The seal is a promise about bytes that lie elsewhere; holding those bytes against it is `raw`'s work. Outside
extractors seal runs too: they may leave out what is marked as ours, and add fields of their own, which are ignored.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

from ads_pipeline.domain.partition import Run, validate_name
from ads_pipeline.errors import BadJson, BadName, RunDamaged
from ads_pipeline.quoting import quoted
from ads_pipeline.raw.strict_json import parse_object

PAYLOAD: Final = "payload.jsonl"
METADATA: Final = "metadata.json"  # the seal
MAX_SEAL_BYTES: Final = 1 << 16
MAX_COUNT: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SealFacts:
    """What an extractor knows of a run beyond its rows. BadName when a seal could not say it."""

    extracted_at: datetime
    schema_version: str
    api_version: str
    query_hash: str
    time_zone: str | None = None
    currency_code: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            rule, parse, required = _FIELDS[field.name]
            value = getattr(self, field.name)
            try:
                if value is not None or required:
                    parse(value.isoformat() if isinstance(value, datetime) else value)
            except (ValueError, OverflowError):
                raise BadName(field.name, value, f"it must be {rule}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """A sealed run: what it was made from and what its payload must be.

    An outside seal may not say the payload's size and digest; then its record_count alone is held against it.
    """

    run: Run
    facts: SealFacts
    record_count: int
    payload_bytes: int | None
    payload_sha256: str | None


def hash_gaql(gaql: str) -> str:
    """The digest by which a run names the exact query it was made with."""
    return hashlib.sha256(gaql.encode("utf-8")).hexdigest()


def encode_seal(seal: Seal) -> bytes:
    """The content of metadata.json."""
    document = {
        "source": seal.run.key.source,
        "customer_id": seal.run.key.customer_id,
        "query_name": seal.run.key.query_name,
        "logical_date": seal.run.key.logical_date.isoformat(),
        "run_id": seal.run.run_id,
        **asdict(seal.facts),
        "extracted_at": seal.facts.extracted_at.astimezone(UTC).isoformat(timespec="microseconds"),
        "record_count": seal.record_count,
        "payload_bytes": seal.payload_bytes,
        "payload_sha256": seal.payload_sha256,
    }
    return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8") + b"\n"


def parse_seal(content: bytes, run: Run) -> Seal:
    """The seal that this metadata.json gives the run in whose directory it lies, or RunDamaged."""
    if len(content) > MAX_SEAL_BYTES:
        raise RunDamaged(run.path, f"the seal is larger than {MAX_SEAL_BYTES} bytes")
    try:
        document = parse_object(content)
    except BadJson as error:
        raise RunDamaged(run.path, f"the seal is unreadable: {error}") from None
    _check_name(document, run)
    fields = {name: _field(document, name, run) for name in _FIELDS}
    counted = {name: fields.pop(name) for name in ("record_count", "payload_bytes", "payload_sha256")}
    return Seal(run=run, facts=SealFacts(**fields), **counted)


def _check_name(document: Mapping[str, Any], run: Run) -> None:
    """A directory that was copied or renamed to another partition is not that partition's data."""
    expected = {
        "source": run.key.source,
        "customer_id": run.key.customer_id,
        "query_name": run.key.query_name,
        "logical_date": run.key.logical_date.isoformat(),
        "run_id": run.run_id,
    }
    for name, value in expected.items():
        if document.get(name) != value:
            problem = f"the seal says {name} is {quoted(document.get(name))}, the path says {value!r}"
            raise RunDamaged(run.path, problem)


def _field(document: Mapping[str, Any], name: str, run: Run) -> Any:
    rule, parse, required = _FIELDS[name]
    value = document.get(name)
    if value is None and not required:
        return None
    try:
        return parse(value)
    except (ValueError, OverflowError):
        said = f"is {quoted(value)}" if name in document else "is missing"
        raise RunDamaged(run.path, f"the seal's {name} {said}; it must be {rule}") from None


def _instant(value: object) -> datetime:
    instant = datetime.fromisoformat(_INSTANT(value))
    if instant.tzinfo is None:
        raise ValueError
    return instant.astimezone(UTC)


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:  # a bool is an int too
        raise ValueError
    return value


def _matching(pattern: str) -> Callable[[object], str]:
    compiled = re.compile(pattern, re.ASCII)

    def parse(value: object) -> str:
        if not isinstance(value, str) or compiled.fullmatch(value) is None:
            raise ValueError
        return value

    return parse


_INSTANT = _matching(r"[0-9TZ:.+-]{1,40}")

# field -> (the rule in words, how it is read, whether an outside extractor must give it)
_FIELDS: Mapping[str, tuple[str, Callable[[object], Any], bool]] = {
    "extracted_at": ("an ISO 8601 instant with its UTC offset", _instant, True),
    "schema_version": (
        "1 to 32 of letters, digits, '.', '_', '-'",
        lambda v: validate_name("schema_version", v),
        True,
    ),
    "api_version": ("1 to 32 of letters, digits, '.', '_', '-'", _matching(r"[0-9A-Za-z._-]{1,32}"), True),
    "query_hash": ("1 to 128 of letters, digits, ':', '-', '_'", _matching(r"[0-9A-Za-z:_-]{1,128}"), True),
    "record_count": ("a whole number, 0 or more", _count, True),
    "time_zone": ("an IANA zone name", _matching(r"[A-Za-z][0-9A-Za-z_+/-]{0,63}"), False),
    "currency_code": ("three capital letters", _matching(r"[A-Z]{3}"), False),
    "payload_bytes": ("a whole number, 0 or more", _count, False),
    "payload_sha256": ("64 hexadecimal digits", _matching(r"[0-9a-f]{64}"), False),
}
