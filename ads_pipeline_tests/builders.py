"""Test data of partitions and raw runs, and checks that several tests share."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from ads_pipeline.domain.errors import RawError, RunExists
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.reason import Problem, Reason
from ads_pipeline.domain.sealed_run import SealedRun, SealFacts
from ads_pipeline.domain.transitions import Outcome, Verdict
from ads_pipeline.lake.raw.discovery import DamagedRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import METADATA, PAYLOAD

DAY = date(2026, 2, 3)
EXTRACTED_AT = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)  # the same in all processes
ROWS = [
    {"campaign": {"id": "1", "name": "Spring"}, "clicks": 3},
    {"campaign": {"id": "2", "name": "Été"}, "clicks": 0},
]
PAYLOAD_OF_ROWS = (
    '{"campaign":{"id":"1","name":"Spring"},"clicks":3}\n{"campaign":{"id":"2","name":"Été"},"clicks":0}\n'
).encode()


def key(customer_id: str = "1234567890", *, query_name: str = "campaign_daily", day: date = DAY) -> PartitionKey:
    return PartitionKey(source="google_ads", customer_id=customer_id, query_name=query_name, logical_date=day)


def run(run_id: str = "r1", partition: PartitionKey | None = None) -> Run:
    return Run(key=partition or key(), run_id=run_id)


def acceptance(judged: Run, rows: int, validation_id: str = "") -> Verdict:
    return Verdict(
        run=judged,
        outcome=Outcome.ACCEPTED,
        validation_id=validation_id,
        rows_read=rows,
        payload_bytes=rows * 100,
        payload_sha256="0" * 64,
    )


def rejection(
    judged: Run,
    rule: str = "bad",
    *,
    error_class: str = "row_contract",
    rows_read: int | None = None,
    validation_id: str = "",
) -> Verdict:
    problem = Problem(error_class=error_class, rule=rule, rows=0 if rows_read is None else 1)
    reason = Reason(run_id=judged.run_id, problems=(problem,))
    return Verdict(
        run=judged, outcome=Outcome.REJECTED, validation_id=validation_id, reason=reason, rows_read=rows_read
    )


def seal_facts() -> SealFacts:
    return SealFacts(
        extracted_at=datetime(2026, 2, 4, 5, 6, 7, 89, tzinfo=UTC),
        schema_version="1",
        api_version="v20",
        query_hash="0" * 64,
        time_zone="Europe/Paris",
        currency_code="EUR",
    )


def sealed_run(
    sealed: Run, rows: int, *, schema_version: str = "1", extracted_at: datetime = EXTRACTED_AT
) -> SealedRun:
    """A sealed run without a digest, as an outside extractor may seal it. Nothing is written."""
    facts = replace(seal_facts(), schema_version=schema_version, extracted_at=extracted_at)
    return SealedRun(run=sealed, facts=facts, record_count=rows, payload_bytes=None, payload_sha256=None)


def seal_document(sealed: Run, payload: bytes, **changes: Any) -> dict[str, Any]:
    """The content of metadata.json for these bytes, with every field, some of them changed."""
    return {
        "source": sealed.key.source,
        "customer_id": sealed.key.customer_id,
        "query_name": sealed.key.query_name,
        "logical_date": sealed.key.logical_date.isoformat(),
        "run_id": sealed.run_id,
        "extracted_at": "2026-02-04T05:06:07+00:00",
        "schema_version": "1",
        "api_version": "v20",
        "query_hash": "0" * 64,
        "record_count": payload.count(b"\n"),
        "payload_bytes": len(payload),
        "payload_sha256": hashlib.sha256(payload).hexdigest(),
        **changes,
    }


def write_sealed_run(root: Path, sealed: Run, payload: bytes, **changes: Any) -> Path:
    """Write a sealed run without `land`, and return its directory."""
    directory = root / sealed.path
    directory.mkdir(parents=True)
    (directory / PAYLOAD).write_bytes(payload)
    (directory / METADATA).write_text(json.dumps(seal_document(sealed, payload, **changes)))
    return directory


def read_tree(top: Path) -> dict[str, tuple[int, bytes]]:
    """Every path below a directory with its mode and, for files, its content."""
    return {
        str(path.relative_to(top)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in top.rglob("*")
    }


def raw_before_first_use(root: Path) -> RawRuns:
    """The runs below a root that may be missing or empty."""
    return RawRuns(root, is_in_use=lambda: False)


def find_runs(raw: RawRuns, since: date = DAY, until: date = DAY) -> list[SealedRun | DamagedRun]:
    return list(raw.find_runs(source="google_ads", since=since, until=until))


def assert_unreadable(raw: RawRuns, error: type[RawError]) -> None:
    with pytest.raises(error):
        raw.verify(run())
    with pytest.raises(error), raw.open(run()):
        pass


def assert_listed_as_damaged(raw: RawRuns) -> None:
    (damage,) = raw.list_runs(key())
    assert isinstance(damage, DamagedRun)
    assert (damage.path, damage.run) == (run().path, run())
    assert find_runs(raw) == [damage]


def land_in_races(
    root: Path, rounds: int, racer: int, start: Barrier, results: "SimpleQueue[tuple[int, list[int]]]"
) -> None:
    """In each round, land the run that every other racer lands too; put the rounds won into `results`."""
    won = []
    for number in range(rounds):

        def rows() -> Iterator[dict[str, int]]:
            yield {"racer": racer}
            start.wait(300)  # every racer has checked by now that the name is free

        try:
            RawRuns(root).land(run(f"round-{number}"), rows(), seal_facts())
            won.append(number)
        except RunExists:
            pass
    results.put((racer, won))
