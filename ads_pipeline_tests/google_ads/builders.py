"""Requests, accounts and failures that several tests share."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Final

from ads_pipeline.domain.days.settlement import DayLimits
from ads_pipeline.domain.fetching.quota import QuotaLimits
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.loopback.scenarios import Behaviour, GoogleError, RequestFailure, Scenario
from ads_pipeline.google_ads.operation_budget import Budget
from ads_pipeline.google_ads.requests.ranges import FetchRange
from ads_pipeline.google_ads.streaming import RangeRequest, RangeStreams
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE, GoogleApis, Query, read_query_file
from ads_pipeline_tests.builders import key
from ads_pipeline_tests.ledger.builders import FakeClock

API_VERSION: Final = "v26"
CUSTOMER, LOGIN = "2000000001", "1000000000"
FIRST = date(2026, 10, 1)
NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)


def shipped_apis() -> GoogleApis:
    apis = read_query_file(DEFAULT_QUERIES_FILE, [])
    assert apis is not None
    return apis


def shipped_query(name: str = "campaign_daily") -> Query:
    return shipped_apis().queries[name]


def partitions(days: int = 7, customer: str = CUSTOMER, first: date = FIRST) -> list[PartitionKey]:
    return [key(customer, day=first + timedelta(days=n)) for n in range(days)]


def range_request(keys: list[PartitionKey] | None = None, **changes: Any) -> RangeRequest:
    keys = keys or partitions()
    fields: dict[str, Any] = {
        "fetch_range": FetchRange(keys=tuple(keys)),
        "query": shipped_query(keys[0].query_name),
        "login_customer_id": LOGIN,
        "time_zone": "Europe/Paris",
        "currency_code": "EUR",
        "lookback_days": 30,
        "limits": DayLimits(),
    }
    return RangeRequest(**fields | changes)


def numbered_run_ids() -> Callable[[datetime], str]:
    numbers = count(1)
    return lambda _now: f"run-{next(numbers)}"


def streams(clients: Clients, root: Path, **changes: Any) -> RangeStreams:
    return RangeStreams(clients, RawRuns(root), make_run_id=numbered_run_ids(), clock=lambda: NOW, **changes)


def behaving(customer: str = CUSTOMER, **behaviour: Any) -> Scenario:
    return Scenario(customers={customer: Behaviour(**behaviour)})


def number_of(category: str, name: str) -> int:
    """The number of an error's name in the tested version."""
    errors = import_module(f"google.ads.googleads.{API_VERSION}.errors.types.errors")
    enum = errors.ErrorCode.pb().DESCRIPTOR.fields_by_name[category].enum_type
    return int(enum.values_by_name[name].number)


def google_error(category: str, name: str, **details: Any) -> GoogleError:
    return GoogleError(category=category, number=number_of(category, name), message="Text of Google.", **details)


def failing(category: str, name: str, *, code: str = "INVALID_ARGUMENT", **changes: Any) -> RequestFailure:
    return RequestFailure(code=code, errors=(google_error(category, name),), **changes)


def fast_budget(ledger: Ledger, clock: FakeClock, *, limits: QuotaLimits | None = None) -> Budget:
    """A budget whose sleeps only move the clock."""

    def sleep(seconds: float) -> None:
        clock.now += timedelta(seconds=seconds)

    return Budget(ledger=ledger.quota, limits=limits or QuotaLimits(), clock=clock, sleep=sleep)
