"""What a call of the source returned, for the tests of this folder. `conftest` has the fixture that makes sources."""

from collections.abc import Callable

from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.google_ads.google_ads_source import GoogleAdsSource
from ads_pipeline.lake.raw.run_source import Landed
from ads_pipeline.ledger.ledger import Ledger

MakeSource = Callable[..., GoogleAdsSource]


def landed_keys(landed: Landed) -> list[PartitionKey]:
    return [each.run.key for each in landed.runs if each.run is not None]


def failures(landed: Landed) -> dict[str, int]:
    classes = [each.error_class for each in landed.failed]
    return {name: classes.count(name) for name in classes}


def record(ledger: Ledger, landed: Landed) -> None:
    ledger.failed_fetches.record(landed.failed, RetryPolicy())
