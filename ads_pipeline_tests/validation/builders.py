"""Builds valid and invalid rows of campaign_daily, and sealed runs of them."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun, SealFacts
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import PAYLOAD
from ads_pipeline.validation.contract_registry import SHIPPED
from ads_pipeline.validation.contract_rules import Rules
from ads_pipeline.validation.judgement import Judgement
from ads_pipeline.validation.payload_task import NoSink
from ads_pipeline.validation.spark_job import judge_and_write
from ads_pipeline_tests.builders import write_sealed_run

DAY = date(2026, 2, 3)
CUSTOMER = "1234567890"
RULES = SHIPPED.rules("campaign_daily", "1")
FACTS = SealFacts(
    extracted_at=datetime(2026, 2, 4, tzinfo=UTC), schema_version="1", api_version="v26", query_hash="0" * 64
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedPayload:
    """A sealed run and the raw root that it is below."""

    seal: SealedRun
    location: str

    @property
    def payload_path(self) -> str:
        return f"{self.location}/{self.seal.run.path}/{PAYLOAD}"


def judge_runs(
    spark: SparkSession, payloads: Sequence[SealedPayload], rules: Rules, *, validation_id: str = ""
) -> list[Judgement]:
    """One judgement per run, in the given order. All runs are below the raw root of the first one."""
    location, runs = payloads[0].location if payloads else "", [payload.seal for payload in payloads]
    return judge_and_write(spark, location, runs, rules, open_sink=NoSink, validation_id=validation_id)[0]


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


def make_run_of_size(day: int, customer: int, size: int) -> SealedRun:
    """A description of a run; nothing is written."""
    key = PartitionKey(
        source="google_ads",
        customer_id=str(customer),
        query_name="campaign_daily",
        logical_date=DAY + timedelta(days=day),
    )
    run = Run(key=key, run_id="r1")
    return SealedRun(run=run, facts=FACTS, record_count=1, payload_bytes=size, payload_sha256=None)


class KillOnUnpickle(str):
    """A string that ends the process that unpickles it."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return os._exit, (9,)


def _describe_payload(root: Path, seal: SealedRun) -> SealedPayload:
    return SealedPayload(seal=seal, location=str(root))
