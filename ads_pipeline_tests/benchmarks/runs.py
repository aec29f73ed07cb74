"""Sealed runs to measure with: many small partitions, or a few large ones."""

import random
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from ads_pipeline.partition import PartitionKey, Run
from ads_pipeline.raw import PAYLOAD, RawRuns
from ads_pipeline.seal import SealFacts
from ads_pipeline.validator.judging import Sealed

FACTS = SealFacts(
    extracted_at=datetime(2026, 2, 1, tzinfo=UTC), schema_version="1", api_version="v26", query_hash="0" * 64
)
FIRST_DAY = date(2026, 1, 1)


def land(root: Path, *, customers: int, days: int, rows: int) -> list[Sealed]:
    """A run of so many rows for each customer and day."""
    chance, raw = random.Random(7), RawRuns(root)
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
            seal = raw.land(run, (_row(key, number, chance) for number in range(1, rows + 1)), FACTS)
            sealed.append(Sealed(seal=seal, payload=str(root / run.path / PAYLOAD)))
    return sealed


def _row(key: PartitionKey, number: int, chance: random.Random) -> dict[str, Any]:
    return {
        "date": key.logical_date.isoformat(),
        "customer_id": key.customer_id,
        "campaign_id": number,
        "campaign_name": f"campaign {number}",
        "campaign_status": "ENABLED",
        "campaign_advertising_channel_type": "SEARCH",
        "impressions": chance.randrange(10_000),
        "clicks": chance.randrange(100),
        "cost_micros": chance.randrange(100_000_000),
        "conversions": chance.random() * 10,
        "conversions_value": chance.random() * 100,
    }
