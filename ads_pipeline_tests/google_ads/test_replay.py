"""Forty days of an account whose figures Google restates: the warehouse follows, and nothing is terminal."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.google_ads.configuration import read_configuration
from ads_pipeline.google_ads.loopback.process import LoopbackServer
from ads_pipeline.google_ads.windows import find_zone, is_provisional
from ads_pipeline.ledger.state.restatements import Restatements
from ads_pipeline.ledger.values import DayWindow
from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.pipeline.extraction.extraction import Extraction
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import Seal
from ads_pipeline_tests.builders import key
from ads_pipeline_tests.google_ads.builders import CUSTOMER, behaving, shipped_apis
from ads_pipeline_tests.pipeline.builders import LocalDeployment, open_deployment

FIRST = date(2026, 9, 1)
REREADS = (0, 7, 30, 40)  # days after the first fetch
LOOKBACK = 30


@pytest.fixture
def deployment(tmp_path: Path, spark: SparkSession, sqlite_url: str) -> Iterator[LocalDeployment]:
    with open_deployment(tmp_path / "home", spark, sqlite_url) as opened:
        yield opened


@pytest.mark.timeout(900)
def test_warehouse_follows_forty_days_of_restatements(server: LoopbackServer, deployment: LocalDeployment) -> None:
    """Each re-read becomes the readable run, also one that lowers the cost; provisional days settle on time."""
    zone = find_zone("Pacific/Auckland")
    days = [key(CUSTOMER, day=FIRST + timedelta(days=n)) for n in range(3)]
    costs = []
    for number, revision in zip(REREADS, (1, 3, 2, 2), strict=True):
        now = datetime(2026, 9, 5, 12, tzinfo=UTC) + timedelta(days=number)
        server.answer(behaving(revision=revision))
        extraction = Extraction(
            apis=shipped_apis(),
            configuration=read_configuration(str(server.configuration), {}),
            ledger=deployment.ledger,
            clock=now.replace,
        )
        raw = RawRuns(deployment.raw.root, is_in_use=deployment.ledger.runs.exist)
        landed = extraction.source(raw, SealedRuns(raw=raw, runs=deployment.ledger.runs)).land(days)
        assert (landed.failed, landed.skipped) == ((), ())
        seals = [each for each in landed.runs if isinstance(each, Seal)]
        deployment.pipeline.judge_and_load([each.run for each in seals])
        costs.append(sum_of_cost(deployment, days))
        provisional = {is_provisional(each.run.key.logical_date, zone, LOOKBACK, now) for each in seals}
        assert provisional == {number < LOOKBACK}
    assert costs == [3 * 6_000_000 * revision for revision in (1, 3, 2, 2)]
    states = deployment.ledger.states.get_many(days).values()
    assert {(state.status, state.attempt_count) for state in states} == {(Status.SUCCESS, len(REREADS))}
    assert deployment.ledger.retry_queue.find_marked(days) == set()
    assert server.operations() == {CUSTOMER: len(REREADS)}
    window = DayWindow(source="google_ads", query_name="campaign_daily")
    steps = [
        (each.before.measures.cost_micros, each.after.measures.cost_micros)
        for each in Restatements(deployment.ledger.engine).find(window)
        if each.key == days[0]
    ]
    assert steps == [(6_000_000, 18_000_000), (18_000_000, 12_000_000), (12_000_000, 12_000_000)]


def sum_of_cost(deployment: LocalDeployment, days: list[PartitionKey]) -> int:
    sums = deployment.readers.sum_per_partition("campaign_daily", "cost_micros", since=FIRST, until=date(2026, 9, 30))
    assert set(sums) == set(days)
    return sum(sums.values())
