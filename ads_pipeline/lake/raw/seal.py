"""Writes and strictly parses the seal of a run, `metadata.json`. `domain.sealed_run` has its fields.

Other extractors write seals too. They may leave out the optional fields and add fields of their own, which are
ignored. `reading` checks the payload against the seal.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC
from typing import Any, Final

from ads_pipeline.domain.errors import BadJson, RunDamaged
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.quoting import quoted
from ads_pipeline.domain.sealed_run import SEAL_FIELDS, SealedRun, SealFacts
from ads_pipeline.lake.raw.strict_json import parse_object

PAYLOAD: Final = "payload.jsonl"
METADATA: Final = "metadata.json"  # the seal
MAX_SEAL_BYTES: Final = 1 << 16


def hash_gaql(gaql: str) -> str:
    """The digest of a query's exact text."""
    return hashlib.sha256(gaql.encode("utf-8")).hexdigest()


def encode_seal(seal: SealedRun, extraction: Mapping[str, Any] | None = None) -> bytes:
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


def parse_seal(content: bytes, run: Run) -> SealedRun:
    """The seal in the metadata.json of this run's directory; RunDamaged when it is invalid."""
    if len(content) > MAX_SEAL_BYTES:
        raise RunDamaged(run.path, f"the seal is larger than {MAX_SEAL_BYTES} bytes")
    try:
        document = parse_object(content)
    except BadJson as error:
        raise RunDamaged(run.path, f"the seal is unreadable: {error}") from None
    _check_run(document, run)
    fields = {name: _parse_field(document, name, run) for name in SEAL_FIELDS}
    payload = {name: fields.pop(name) for name in ("record_count", "payload_bytes", "payload_sha256")}
    return SealedRun(run=run, facts=SealFacts(**fields), **payload)


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
    rule, parse, required = SEAL_FIELDS[name]
    value = document.get(name)
    if value is None and not required:
        return None
    try:
        return parse(value)
    except (ValueError, OverflowError):
        problem = f"is {quoted(value)}" if name in document else "is missing"
        raise RunDamaged(run.path, f"the seal's {name} {problem}; it must be {rule}") from None
