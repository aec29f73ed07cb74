"""The seal of a run, `metadata.json`: its fields, writing it, and strict parsing.

Other extractors write seals too. They may leave out the optional fields and add fields of their own, which are
ignored. `reading` checks the payload against the seal.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

from ads_pipeline.domain.errors import BadJson, BadName, RunDamaged
from ads_pipeline.domain.partition import Run, validate_name
from ads_pipeline.domain.quoting import quoted
from ads_pipeline.lake.raw.strict_json import parse_object

PAYLOAD: Final = "payload.jsonl"
METADATA: Final = "metadata.json"  # the seal
MAX_SEAL_BYTES: Final = 1 << 16
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
            rule, parse, required = _FIELDS[field.name]
            value = getattr(self, field.name)
            try:
                if value is not None or required:
                    parse(value.isoformat() if isinstance(value, datetime) else value)
            except (ValueError, OverflowError):
                raise BadName(field.name, value, f"it must be {rule}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The seal of a run: its origin and the expected content of its payload.

    A seal by another extractor may lack the payload's size and digest. Then only its record_count is checked.
    """

    run: Run
    facts: SealFacts
    record_count: int
    payload_bytes: int | None
    payload_sha256: str | None


def hash_gaql(gaql: str) -> str:
    """The digest of a query's exact text."""
    return hashlib.sha256(gaql.encode("utf-8")).hexdigest()


def encode_seal(seal: Seal, extraction: Mapping[str, Any] | None = None) -> bytes:
    """The content of metadata.json, with the notes of the extractor about itself, if any."""
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
        **({} if extraction is None else {"extraction": extraction}),
    }
    return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8") + b"\n"


def parse_seal(content: bytes, run: Run) -> Seal:
    """The seal in the metadata.json of this run's directory; RunDamaged when it is invalid."""
    if len(content) > MAX_SEAL_BYTES:
        raise RunDamaged(run.path, f"the seal is larger than {MAX_SEAL_BYTES} bytes")
    try:
        document = parse_object(content)
    except BadJson as error:
        raise RunDamaged(run.path, f"the seal is unreadable: {error}") from None
    _check_run(document, run)
    fields = {name: _parse_field(document, name, run) for name in _FIELDS}
    payload = {name: fields.pop(name) for name in ("record_count", "payload_bytes", "payload_sha256")}
    return Seal(run=run, facts=SealFacts(**fields), **payload)


def _check_run(document: Mapping[str, Any], run: Run) -> None:
    """RunDamaged when the directory was copied or renamed from another run."""
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


def _parse_field(document: Mapping[str, Any], name: str, run: Run) -> Any:
    rule, parse, required = _FIELDS[name]
    value = document.get(name)
    if value is None and not required:
        return None
    try:
        return parse(value)
    except (ValueError, OverflowError):
        problem = f"is {quoted(value)}" if name in document else "is missing"
        raise RunDamaged(run.path, f"the seal's {name} {problem}; it must be {rule}") from None


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
_FIELDS: Mapping[str, tuple[str, Callable[[object], Any], bool]] = {
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
