"""Forty days of an account whose figures Google restates every day: the warehouse follows, nothing is terminal."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.days.settlement import ReportState
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.domain.transitions import Status
from ads_pipeline.google_ads.configuration import read_configuration
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.pipeline.days.account_days import AccountDays
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days
from ads_pipeline.pipeline.extraction.due_days import DueDays
from ads_pipeline.pipeline.extraction.google_ads_extraction import Extraction
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE, GoogleApis
from ads_pipeline_tests.builders import key
from ads_pipeline_tests.google_ads.builders import CUSTOMER, behaving, shipped_apis
from ads_pipeline_tests.ledger.builders import FakeClock
from ads_pipeline_tests.pipeline.builders import LocalDeployment

QUERY = "campaign_daily"
FIRST = date(2026, 9, 1)
DAYS, LOOKBACK, REREAD = 40, 30, 7
TIME_OF_DAY = time(13, tzinfo=UTC)  # in Auckland the day before is closed and this one is not, in summer and winter
COST_PER_REVISION = 6_000_000  # three rows
POLICY = RetryPolicy(max_age=timedelta(days=3_000))


def restated_revision(age: int) -> int:
    """The server's rule: the figures of a day differ from one day to the next until the window has passed."""
    return 1 + 3 * min(age, LOOKBACK) % 7


def logical_day(number: int) -> PartitionKey:
    return key(CUSTOMER, query_name=QUERY, day=FIRST + timedelta(days=number))


class Queries(NamedTuple):
    """The settings that name the query file."""

    google_apis: GoogleApis
    queries_file: Path


@pytest.fixture
def apis() -> GoogleApis:
    shipped = shipped_apis()
    changes = {"lookback_days": LOOKBACK, "reread_after_days": (REREAD,)}
    query = shipped.queries[QUERY].model_copy(update=changes)
    return shipped.model_copy(update={"start_date": FIRST, "queries": {QUERY: query}})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def deployment(tmp_path: Path, spark: SparkSession, sqlite_url: str, clock: FakeClock) -> Iterator[LocalDeployment]:
    with Ledger.opened(sqlite_url, clock=clock) as ledger:
        yield LocalDeployment(home=tmp_path / "home", spark=spark, ledger=ledger)


def run_daily(
    server: LoopbackServer, deployment: LocalDeployment, apis: GoogleApis, clock: FakeClock
) -> set[PartitionKey]:
    """Fetch, judge and load what is due, and return it."""
    ledger = deployment.ledger
    days = AccountDays.read(ledger, apis, now=clock.now)
    found = DueDays(ledger=ledger, days=days, policy=POLICY).find()
    configuration = read_configuration(str(server.configuration), {})
    extraction = Extraction(apis=apis, configuration=configuration, ledger=ledger, clock=clock)
    raw = RawRuns(deployment.raw.root, is_in_use=ledger.runs.exist)
    landed = extraction.source(raw, SealedRuns(raw=raw, runs=ledger.runs)).land(sorted(found))
    assert (landed.failed, landed.skipped) == ((), ())
    deployment.pipeline.judge_and_load([each.run for each in landed.runs if isinstance(each, SealedRun)])
    return set(found)


def test_warehouse_follows_daily_restatements(
    server: LoopbackServer, deployment: LocalDeployment, apis: GoogleApis, clock: FakeClock
) -> None:
    """Each day is read when it closes, again after a while, and a last time when it is settled, and never in vain.

    The warehouse has the figures of the last read. Each re-read is a restatement with both figures.
    """
    ledger = deployment.ledger
    account = Account(source="google_ads", customer_id=CUSTOMER, status="ENABLED", time_zone="Pacific/Auckland")
    ledger.accounts.record("google_ads", [account])
    revisions = defaultdict[PartitionKey, list[int]](list)  # of each day, as it was read
    read_last = dict[PartitionKey, int]()  # the age of each day when it was read last
    for number in range(DAYS):
        clock.now = datetime.combine(FIRST + timedelta(days=number + 1), TIME_OF_DAY)
        ages = {logical_day(day): number + 1 - day for day in range(number + 1)}
        server.answer(
            behaving(
                day_revisions=tuple((str(day.logical_date), restated_revision(age)) for day, age in ages.items())
            )
        )
        # Both deadlines pass two hours before the tick. The reread waits for the close of the day that ended then.
        expected = {day for day, age in ages.items() if age in {1, REREAD + 1, LOOKBACK + 2}}
        assert run_daily(server, deployment, apis, clock) == expected
        for day in expected:
            revisions[day].append(restated_revision(ages[day]))
            read_last[day] = ages[day]
        assert read_costs(deployment, number) == {
            day: read[-1] * COST_PER_REVISION for day, read in revisions.items()
        }
        rules = DayRules.read(ledger, Queries(apis, DEFAULT_QUERIES_FILE), now=clock.now)
        assert {day: each.report for day, each in describe_days(ledger, list(ages), rules).items()} == {
            day: ReportState.SETTLED if age > LOOKBACK else ReportState.PROVISIONAL for day, age in read_last.items()
        }
    check_end(ledger, revisions)
    assert server.operations()[CUSTOMER] <= 2 * DAYS


def read_costs(deployment: LocalDeployment, number: int) -> dict[PartitionKey, int]:
    until = FIRST + timedelta(days=number)
    return dict(deployment.readers.sum_per_partition(QUERY, "cost_micros", since=FIRST, until=until))


def check_end(ledger: Ledger, revisions: dict[PartitionKey, list[int]]) -> None:
    """The restatements are the steps of the rule; every read counts once, and no day has stopped."""
    window = DayWindow(source="google_ads", query_name=QUERY)
    steps = defaultdict[PartitionKey, list[tuple[int | None, int | None]]](list)
    for each in ledger.restatements.find(window):
        steps[each.key].append((each.before.measures.cost_micros, each.after.measures.cost_micros))
    costs = {day: [each * COST_PER_REVISION for each in read] for day, read in revisions.items()}
    assert steps == {day: list(pairwise(read)) for day, read in costs.items() if len(read) > 1}
    changed = sum(before != after for pairs in steps.values() for before, after in pairs)
    events = [each.event.event_type for each in ledger.events.fetch(ledger.origin.engine_run_id, limit=10_000)]
    assert events.count("PartitionRestated") == changed > 0
    states = ledger.states.get_many(revisions)
    assert {day: (state.status, state.attempt_count) for day, state in states.items()} == {
        day: (Status.SUCCESS, len(read)) for day, read in revisions.items()
    }
    forecasts = ledger.retry_queue.forecast(list(states.values()), POLICY)
    assert [day for day, each in forecasts.items() if each.terminal is not None or each.marked] == []
