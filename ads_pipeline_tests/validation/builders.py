"""Builds valid and invalid rows of campaign_daily, and sealed runs of them."""

import json
import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import Seal, SealFacts
from ads_pipeline.validation.contract_registry import SHIPPED
from ads_pipeline.validation.spark_job import SealedPayload
from ads_pipeline_tests.builders import write_sealed_run

DAY = date(2026, 2, 3)
CUSTOMER = "1234567890"
RULES = SHIPPED.rules("campaign_daily", "1")
FACTS = SealFacts(
    extracted_at=datetime(2026, 2, 4, tzinfo=UTC), schema_version="1", api_version="v26", query_hash="0" * 64
)


def row(campaign_id: Any = 1, **changes: Any) -> dict[str, Any]:
    """A valid row, with some columns changed."""
    return {
        "date": DAY.isoformat(),
        "customer_id": CUSTOMER,
        "campaign_id": campaign_id,
        "campaign_name": "Spring",
        "campaign_status": "ENABLED",
        "campaign_advertising_channel_type": "SEARCH",
        "impressions": 100,
        "clicks": 7,
        "cost_micros": 12_000_000,
        "conversions": 1.5,
        "conversions_value": 30.0,
        **changes,
    }


def row_without(column: str) -> dict[str, Any]:
    return {name: value for name, value in row().items() if name != column}


def make_payload(*rows: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in rows)


def make_run(run_id: str, customer_id: str = CUSTOMER) -> Run:
    key = PartitionKey(source="google_ads", customer_id=customer_id, query_name="campaign_daily", logical_date=DAY)
    return Run(key=key, run_id=run_id)


def create_run(root: Path, run_id: str, *rows: dict[str, Any], customer_id: str = CUSTOMER) -> SealedPayload:
    """A run of these rows, sealed by RawRuns."""
    return _describe_payload(root, RawRuns(root).land(make_run(run_id, customer_id), rows, FACTS))


def create_outside_run(root: Path, run_id: str, payload: bytes, **seal: Any) -> SealedPayload:
    """A run of these bytes, sealed by an outside extractor, with changed fields in its seal."""
    write_sealed_run(root, make_run(run_id), payload, **seal)
    return _describe_payload(root, RawRuns(root).read_seal(make_run(run_id)))


def make_payload_of_size(day: int, customer: int, size: int) -> SealedPayload:
    """A description of a run; nothing is written."""
    key = PartitionKey(
        source="google_ads",
        customer_id=str(customer),
        query_name="campaign_daily",
        logical_date=DAY + timedelta(days=day),
    )
    run = Run(key=key, run_id="r1")
    seal = Seal(run=run, facts=FACTS, record_count=1, payload_bytes=size, payload_sha256=None)
    return SealedPayload(seal=seal, location="raw")


class KillOnUnpickle(str):
    """A string that ends the process that unpickles it."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return os._exit, (9,)


def _describe_payload(root: Path, seal: Seal) -> SealedPayload:
    return SealedPayload(seal=seal, location=str(root))
