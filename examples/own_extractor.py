"""An extractor of your own: lands one day of one customer, or reports why it could not.

    python examples/own_extractor.py 1180250317 2026-03-01

`fetch` stands for your client. Everything else is what an extractor has to do.
"""

import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from ads_pipeline.api import land, report_failure

QUERY = "campaign_daily"


def fetch(customer_id: str, day: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of the day, with the columns that the query file names."""
    yield {
        "date": day,
        "customer_id": customer_id,
        "campaign_id": 1,
        "campaign_name": "Brand",
        "campaign_status": "ENABLED",
        "impressions": 1200,
        "clicks": 30,
        "cost_micros": 4_500_000,
        "conversions": 2.0,
        "conversions_value": 80.0,
        "campaign_advertising_channel_type": "SEARCH",
        "all_conversions": 2.0,
        "search_impression_share": None,
    }


def main(customer_id: str, day: str) -> int:
    partition, attempt = f"{customer_id}/{QUERY}/{day}", uuid.uuid4().hex
    extracted_at = datetime.now(UTC)
    try:
        rows = fetch(customer_id, day)
        seal = land(partition, rows, run_id=attempt, extracted_at=extracted_at, currency_code="EUR")
    except TimeoutError as error:
        report_failure(partition, error_class="timeout", message=str(error), failure_id=attempt)
        return 1
    print(f"sealed {seal.record_count} rows of {partition} as run {seal.run.run_id}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
