"""Creates sealed runs for benchmarks: many small partitions, or a few large ones."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun, SealFacts
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import METADATA, PAYLOAD, encode_seal
from ads_pipeline_tests.validation.builders import SealedPayload

FACTS = SealFacts(
    extracted_at=datetime(2026, 2, 1, tzinfo=UTC), schema_version="1", api_version="v26", query_hash="0" * 64
)
FIRST_DAY = date(2026, 1, 1)

Rows = Iterator[dict[str, Any]]


def land_runs(root: Path, *, customers: int, days: int, rows: int) -> list[SealedPayload]:
    """Land one run with this many rows for each customer and day."""
    raw = RawRuns(root)
    return _create_runs(
        root, lambda run, values: raw.land(run, values, FACTS), customers=customers, days=days, rows=rows
    )


def write_runs(root: Path, *, customers: int, days: int, rows: int) -> list[SealedPayload]:
    """The same without syncing to disk, for sets of runs that would take too long to land."""
    return _create_runs(
        root, lambda run, values: _write_run(root, run, values), customers=customers, days=days, rows=rows
    )


def with_new_run_ids(runs: list[SealedPayload], prefix: str) -> list[SealedPayload]:
    """Later runs of the same partitions, with the same payloads."""
    return [
        replace(payload, seal=replace(payload.seal, run=replace(payload.seal.run, run_id=f"{prefix}-{number:08x}")))
        for number, payload in enumerate(runs)
    ]


def write_later_run(root: Path, run: SealedPayload, number: int) -> SealedPayload:
    """A later run of a partition with as many rows and other numbers. Its name is later too."""
    key, generator = run.seal.run.key, random.Random(number)
    later = Run(key=key, run_id=f"later-{number:08x}")
    rows = (_create_row(key, number, generator) for number in range(1, run.seal.record_count + 1))
    return SealedPayload(seal=_write_run(root, later, rows), location=str(root))


def _create_runs(
    root: Path, seal: Callable[[Run, Rows], SealedRun], *, customers: int, days: int, rows: int
) -> list[SealedPayload]:
    generator = random.Random(7)
    sealed = []
    for customer in range(customers):
        for day in range(days):
            key = PartitionKey(
                source="google_ads",
                customer_id=str(1_000_000_000 + customer),
                query_name="campaign_daily",
                logical_date=FIRST_DAY + timedelta(days=day),
            )
            run = Run(key=key, run_id=f"20260201T000000000Z-{customer:08x}")
            values = (_create_row(key, number, generator) for number in range(1, rows + 1))
            sealed.append(SealedPayload(seal=seal(run, values), location=str(root)))
    return sealed


def _write_run(root: Path, run: Run, rows: Rows) -> SealedRun:
    lines = [json.dumps(row, separators=(",", ":")) for row in rows]
    payload = "".join(f"{line}\n" for line in lines).encode()
    seal = SealedRun(
        run=run,
        facts=FACTS,
        record_count=len(lines),
        payload_bytes=len(payload),
        payload_sha256=hashlib.sha256(payload).hexdigest(),
    )
    directory = root / run.path
    directory.mkdir(parents=True)
    (directory / PAYLOAD).write_bytes(payload)
    (directory / METADATA).write_bytes(encode_seal(seal))
    return seal


def _create_row(key: PartitionKey, number: int, generator: random.Random) -> dict[str, Any]:
    return {
        "date": key.logical_date.isoformat(),
        "customer_id": key.customer_id,
        "campaign_id": number,
        "campaign_name": f"campaign {number}",
        "campaign_status": "ENABLED",
        "campaign_advertising_channel_type": "SEARCH",
        "impressions": generator.randrange(10_000),
        "clicks": generator.randrange(100),
        "cost_micros": generator.randrange(100_000_000),
        "conversions": generator.random() * 10,
        "conversions_value": generator.random() * 100,
    }
