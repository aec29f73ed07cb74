"""Lands made-up reports of one week for the demo, with one example of each kind of problem.

All numbers are derived from hashes, so they are the same on every machine.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from ads_pipeline.domain.errors import BadName, RunExists
from ads_pipeline.domain.fetching.account import ENABLED, Account
from ads_pipeline.domain.partition import PartitionKey, Run, generate_run_id
from ads_pipeline.domain.sealed_run import SealedRun, SealFacts
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import METADATA, PAYLOAD, encode_seal, hash_gaql
from ads_pipeline.lake.storage.open_store import open_store
from ads_pipeline.settings.query_file import GoogleApis

Row = dict[str, Any]

DAYS: Final = 7
EXTRACTION_TIME: Final = time(4, 30, tzinfo=UTC)
WEEKDAY_FACTORS: Final = (1.06, 1.03, 1.0, 1.02, 0.95, 0.71, 0.78)  # from Monday: fewer searches at weekends
MICROS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoAccount:
    """A made-up customer. `click_price` and `order_value` are in units of its currency."""

    customer_id: str
    name: str
    time_zone: str
    currency_code: str
    click_price: float
    order_value: float
    campaigns: tuple[tuple[str, str, int], ...]  # name, channel, impressions on an average day
    ad_groups: tuple[str, ...]
    searches: tuple[str, ...]


ACCOUNTS: Final = (
    DemoAccount(
        customer_id="1180250317",
        name="Radhaus Berlin",
        time_zone="Europe/Berlin",
        currency_code="EUR",
        click_price=0.62,
        order_value=84.0,
        campaigns=(
            ("Fahrräder | Marke", "SEARCH", 2_400),
            ("Fahrräder | Generisch", "SEARCH", 9_100),
            ("Sommer PMax", "PERFORMANCE_MAX", 31_000),
        ),
        ad_groups=("Trekking", "E-Bikes"),
        searches=("trekkingrad damen", "e-bike 500 wh", "fahrrad kaufen"),
    ),
    DemoAccount(
        customer_id="2046619385",
        name="Loose Leaf Tea Co",
        time_zone="Europe/London",
        currency_code="GBP",
        click_price=0.41,
        order_value=23.5,
        campaigns=(
            ("Tea - Brand", "SEARCH", 1_700),
            ("Tea - Loose Leaf", "SEARCH", 5_200),
            ("Tea - Remarketing", "DISPLAY", 44_000),
        ),
        ad_groups=("Green", "Black & Chai"),
        searches=("loose leaf tea", "earl grey 250g", "chai tea uk"),
    ),
    DemoAccount(
        customer_id="3391704826",
        name="Hudson Books",
        time_zone="America/New_York",
        currency_code="USD",
        click_price=0.93,
        order_value=38.0,
        campaigns=(
            ("Books | Brand", "SEARCH", 3_300),
            ("Books | Authors", "SEARCH", 7_800),
            ("Books | Shopping", "SHOPPING", 26_000),
        ),
        ad_groups=("New Releases", "Used & Rare"),
        searches=("signed first edition", "used bookstore online", "new novels 2026"),
    ),
    DemoAccount(
        customer_id="4727351908",
        name="青空文具店",
        time_zone="Asia/Tokyo",
        currency_code="JPY",
        click_price=74.0,
        order_value=4_200.0,
        campaigns=(
            ("文房具 ブランド", "SEARCH", 1_100),
            ("文房具 一般", "SEARCH", 4_600),
        ),
        ad_groups=("万年筆", "ノート"),
        searches=("万年筆 初心者", "方眼ノート a5", "筆ペン おすすめ"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """All landed runs, and the runs and partitions that differ from the others."""

    landed: tuple[Run, ...]
    negative_cost: Run  # a campaign with a negative cost
    damaged: Run  # its seal states more rows than the payload has
    empty: Run  # valid, without rows
    original: Run  # the first run of the restated partition
    restated: Run  # a later run with more conversions
    late: PartitionKey  # has no run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """One query's rows for one account and day. A later report of the day has a larger `conversion_factor`."""

    account: DemoAccount
    query_name: str
    day: date
    conversion_factor: float = 1.0

    def rows(self) -> list[Row]:
        key_columns = {"date": self.day.isoformat(), "customer_id": self.account.customer_id}
        return [key_columns | row for row in QUERIES[self.query_name][1](self)]


def land_demo(raw: RawRuns, google_apis: GoogleApis, *, until: date) -> Demo:
    """Land the reports of four customers for the seven days before `until`. A second call changes nothing.

    Raises BadName before landing anything when the query file lacks one of the queries.
    """
    for name in QUERIES.keys() - google_apis.queries.keys():
        raise BadName("query_name", name, "the demo needs it, so the query file must define it")
    negative_cost = _key(google_apis, 1, "campaign_daily", until, back=2)
    damaged = _key(google_apis, 2, "ad_group_daily", until, back=3)
    empty = _key(google_apis, 3, "search_term_daily", until, back=4)
    restated = _key(google_apis, 0, "campaign_daily", until, back=6)
    late = _key(google_apis, 3, "campaign_daily", until, back=1)
    landed: dict[PartitionKey, Run] = {}
    for key in _keys(google_apis, until):
        rows = [] if key == empty else _report(key).rows()
        if key == negative_cost:
            rows[0]["cost_micros"] = -rows[0]["cost_micros"]
        if key != late:
            land = _land_with_wrong_count if key == damaged else _land
            landed[key] = land(raw, google_apis, _run(key, until), rows)
    second = _run(restated, until, extracted=datetime.combine(until, EXTRACTION_TIME))
    _land(raw, google_apis, second, _report(restated, conversion_factor=1.35).rows())
    return Demo(
        landed=(*landed.values(), second),
        negative_cost=landed[negative_cost],
        damaged=landed[damaged],
        empty=landed[empty],
        original=landed[restated],
        restated=second,
        late=late,
    )


def describe_accounts(source: str) -> list[Account]:
    """The customers as discovery would find them, but in UTC: so the same days are late at any time of the day."""
    return [
        Account(
            source=source,
            customer_id=account.customer_id,
            status=ENABLED,
            name=account.name,
            time_zone="UTC",
            currency_code=account.currency_code,
        )
        for account in ACCOUNTS
    ]


def _keys(google_apis: GoogleApis, until: date) -> Iterator[PartitionKey]:
    for number in range(len(ACCOUNTS)):
        for query_name in QUERIES:
            for back in range(DAYS, 0, -1):
                yield _key(google_apis, number, query_name, until, back=back)


def _key(google_apis: GoogleApis, account: int, query_name: str, until: date, *, back: int) -> PartitionKey:
    return PartitionKey(
        source=google_apis.source,
        customer_id=ACCOUNTS[account].customer_id,
        query_name=query_name,
        logical_date=until - timedelta(days=back),
    )


def _account(key: PartitionKey) -> DemoAccount:
    return next(account for account in ACCOUNTS if account.customer_id == key.customer_id)


def _report(key: PartitionKey, *, conversion_factor: float = 1.0) -> _Report:
    return _Report(
        account=_account(key),
        query_name=key.query_name,
        day=key.logical_date,
        conversion_factor=conversion_factor,
    )


def _run(key: PartitionKey, until: date, *, extracted: datetime | None = None) -> Run:
    """The run of the next morning by default. Demos of different days share no run ids."""
    extracted = extracted or datetime.combine(key.logical_date + timedelta(days=1), EXTRACTION_TIME)
    digits = hashlib.sha256(f"{key}/{until}/{extracted}".encode()).hexdigest()[:8]
    return Run(key=key, run_id=generate_run_id(extracted, digits))


def _facts(google_apis: GoogleApis, run: Run) -> SealFacts:
    name, account = run.key.query_name, _account(run.key)
    return SealFacts(
        extracted_at=datetime.strptime(run.run_id[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC),
        schema_version=QUERIES[name][0],
        api_version=google_apis.api_version,
        query_hash=hash_gaql(google_apis.queries[name].gaql),
        time_zone=account.time_zone,
        currency_code=account.currency_code,
    )


def _land(raw: RawRuns, google_apis: GoogleApis, run: Run, rows: Sequence[Row]) -> Run:
    facts = _facts(google_apis, run)
    with suppress(RunExists):
        raw.land(run, rows, facts)
    return run


def _land_with_wrong_count(raw: RawRuns, google_apis: GoogleApis, run: Run, rows: Sequence[Row]) -> Run:
    """Seal the payload with two rows more than it has, like an extractor that miscounts."""
    facts = _facts(google_apis, run)
    store = open_store(raw.location)
    store.create(f"{run.path}/{PAYLOAD}", "".join(json.dumps(row) + "\n" for row in rows).encode())
    seal = SealedRun(run=run, facts=facts, record_count=len(rows) + 2, payload_bytes=None, payload_sha256=None)
    store.create(f"{run.path}/{METADATA}", encode_seal(seal))
    return run


def _campaigns(report: _Report) -> Iterator[Row]:
    for number, (name, channel, _impressions) in enumerate(report.account.campaigns):
        traffic = _traffic(report, number)
        share = {"search_impression_share": round(0.35 + 0.5 * _chance(report, name, "share"), 4)}
        yield {
            "campaign_id": _id(report.account, number),
            "campaign_name": name,
            "campaign_status": "ENABLED",
            "campaign_advertising_channel_type": channel,
            **traffic,
            "conversions_value": _value(report, traffic),
            "all_conversions": round(traffic["conversions"] * 1.2, 2),
            **(share if channel == "SEARCH" else {}),  # Google estimates it for search campaigns only
        }


def _ad_groups(report: _Report) -> Iterator[Row]:
    """Divide the traffic of each search campaign among its ad groups, without a remainder."""
    for number, (_name, channel, _impressions) in enumerate(report.account.campaigns):
        if channel != "SEARCH":
            continue
        for index, (name, traffic) in enumerate(_divide_traffic(report, number)):
            yield {
                "campaign_id": _id(report.account, number),
                "ad_group_id": _id(report.account, number, index),
                "ad_group_name": name,
                "ad_group_status": "ENABLED",
                "ad_group_type": "SEARCH_STANDARD",
                **traffic,
                "conversions_value": _value(report, traffic),
            }


def _search_terms(report: _Report) -> Iterator[Row]:
    """Give each search term a part of the traffic of its ad group. Google does not report rare terms."""
    for ad_group in _ad_groups(report):
        for index, (term, share) in enumerate(zip(report.account.searches, (0.4, 0.25, 0.1), strict=True)):
            traffic = {name: ad_group[name] * share for name in _COUNTED}
            yield {
                "campaign_id": ad_group["campaign_id"],
                "ad_group_id": ad_group["ad_group_id"],
                "search_term_view_search_term": term,
                "search_term_view_status": "ADDED" if index == 0 else "NONE",
                "search_term_match_type": ("EXACT", "PHRASE", "BROAD")[index],
                **{name: int(amount) for name, amount in traffic.items()},
                "conversions": round(ad_group["conversions"] * share, 2),
            }


_COUNTED: Final = ("impressions", "clicks", "cost_micros")

# query -> (schema version of the rows, function that creates them)
QUERIES: Final[Mapping[str, tuple[str, Callable[[_Report], Iterator[Row]]]]] = {
    "campaign_daily": ("2", _campaigns),
    "ad_group_daily": ("1", _ad_groups),
    "search_term_daily": ("1", _search_terms),
}


def _traffic(report: _Report, campaign: int) -> Row:
    """The traffic of one campaign on one day, the same for every query."""
    account = report.account
    name, channel, average = account.campaigns[campaign]
    impressions = round(
        average * WEEKDAY_FACTORS[report.day.weekday()] * (0.88 + 0.24 * _chance(report, name, "impressions"))
    )
    rate = 0.055 if channel == "SEARCH" else 0.009
    clicks = round(impressions * rate * (0.85 + 0.3 * _chance(report, name, "clicks")))
    price = account.click_price * (0.9 + 0.2 * _chance(report, name, "price"))
    conversions = clicks * (0.02 + 0.02 * _chance(report, name, "conversions")) * report.conversion_factor
    return {
        "impressions": impressions,
        "clicks": clicks,
        "cost_micros": round(clicks * price * 100) * MICROS // 100,
        "conversions": round(conversions, 2),
    }


def _divide_traffic(report: _Report, campaign: int) -> Iterator[tuple[str, Row]]:
    total = _traffic(report, campaign)
    first, second = report.account.ad_groups
    part: Row = {name: total[name] * 3 // 5 for name in _COUNTED} | {
        "conversions": round(total["conversions"] * 0.6, 2)
    }
    yield first, part
    yield second, {name: round(total[name] - part[name], 2) for name in total}


def _value(report: _Report, traffic: Row) -> float:
    return round(float(traffic["conversions"]) * report.account.order_value, 2)


def _id(account: DemoAccount, *indexes: int) -> int:
    """An id of the length that Google uses, unique per account."""
    return int(account.customer_id[:6] + "".join(f"{index + 1:03d}" for index in indexes))


def _chance(report: _Report, *names: str) -> float:
    """A number from 0 to 1, derived from the account, the day and the names."""
    text = "/".join((report.account.customer_id, report.day.isoformat(), *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 0xFFFFFFFF
