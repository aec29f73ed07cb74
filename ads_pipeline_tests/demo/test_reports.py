"""The reports of the demo, their plausibility, and their result in the real pipeline."""

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.demo.made_up_reports import ACCOUNTS, Demo, land_demo
from ads_pipeline.domain.days.conditions import GapReason
from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Outcome, Status
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import PAYLOAD
from ads_pipeline.pipeline.validation import JudgingResult
from ads_pipeline.settings.environment import read_settings
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE
from ads_pipeline_tests.builders import read_tree
from ads_pipeline_tests.pipeline.builders import LocalDeployment, find_gaps, open_deployment

UNTIL = date(2026, 3, 9)
FIRST, LAST = date(2026, 3, 2), date(2026, 3, 8)
GOOGLE_APIS = read_settings({"ADS_PIPELINE_QUERIES": str(DEFAULT_QUERIES_FILE)}).google_apis
QUERIES = ("campaign_daily", "ad_group_daily", "search_term_daily")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDemo:
    """The landed demo, the results of judging and the remaining gaps."""

    deployment: LocalDeployment
    demo: Demo
    judged: JudgingResult
    missing: dict[PartitionKey, GapReason | None]


@pytest.fixture(scope="module")
def loaded(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, spark: SparkSession
) -> Iterator[LoadedDemo]:
    """The demo, found below the raw root, judged and loaded."""
    home = tmp_path_factory.mktemp("loaded")
    shutil.copy(sqlite_template, home / "ledger.db")
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}") as deployment:
        demo = land_demo(deployment.raw, GOOGLE_APIS, until=UNTIL)
        found = [each.run for each in deployment.raw.find_runs(source=GOOGLE_APIS.source, since=FIRST, until=LAST)]
        judged, _loading = deployment.pipeline.judge_and_load([run for run in found if run is not None])
        yield LoadedDemo(deployment=deployment, demo=demo, judged=judged, missing=missing_in(deployment))


def missing_in(deployment: LocalDeployment) -> dict[PartitionKey, GapReason | None]:
    gaps = [find_gaps(deployment, query, since=FIRST, until=LAST) for query in QUERIES]
    return {key: day.gap for query_gaps in gaps for key, day in query_gaps.items()}


@pytest.fixture
def raw(tmp_path: Path) -> RawRuns:
    return RawRuns(tmp_path / "raw")


def rows_of(raw: RawRuns, run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (raw.root / run.path / PAYLOAD).read_text().splitlines()]


def keys_of(demo: Demo) -> set[PartitionKey]:
    return {run.key for run in demo.landed}


def test_only_the_two_faulty_runs_are_rejected(loaded: LoadedDemo) -> None:
    """Each rejection names the fault; all other runs are accepted."""
    verdicts = {each.verdict.run: each.verdict for each in loaded.judged.judgements}
    assert verdicts.keys() == set(loaded.demo.landed)
    assert not loaded.judged.unjudged
    refused = {run for run, verdict in verdicts.items() if verdict.outcome is Outcome.REJECTED}
    assert refused == {loaded.demo.negative_cost, loaded.demo.damaged}
    assert "cost_micros" in str(verdicts[loaded.demo.negative_cost].error_message)
    assert "4 rows, the seal says 6" in str(verdicts[loaded.demo.damaged].error_message)


def test_three_partitions_are_missing(loaded: LoadedDemo) -> None:
    """Two runs are rejected and one partition has no run; all others are visible."""
    assert loaded.missing == {
        loaded.demo.negative_cost.key: GapReason.REJECTED,
        loaded.demo.damaged.key: GapReason.REJECTED,
        loaded.demo.late: GapReason.NOTHING_SEALED,
    }


def test_restated_day_has_the_newer_run(loaded: LoadedDemo) -> None:
    """The newer run has the authority, the same cost and more conversions."""
    state = loaded.deployment.ledger.states.get(loaded.demo.restated.key)
    assert (state.current_run_id, state.attempt_count) == (loaded.demo.restated.run_id, 2)
    before, now = (rows_of(loaded.deployment.raw, run) for run in (loaded.demo.original, loaded.demo.restated))
    assert [row["cost_micros"] for row in before] == [row["cost_micros"] for row in now]
    assert all(old["conversions"] < new["conversions"] for old, new in zip(before, now, strict=True))


def test_empty_day_is_a_success(loaded: LoadedDemo) -> None:
    """A partition without rows is a success and no gap."""
    state = loaded.deployment.ledger.states.get(loaded.demo.empty.key)
    assert (state.status, state.record_count) == (Status.SUCCESS, 0)


def test_demo_covers_all_partitions(raw: RawRuns) -> None:
    """Four customers, three queries and seven days have a run, except one; one day has two."""
    demo = land_demo(raw, GOOGLE_APIS, until=UNTIL)
    assert {(key.customer_id, key.query_name) for key in keys_of(demo)} == {
        (account.customer_id, query) for account in ACCOUNTS for query in QUERIES
    }
    assert {key.logical_date for key in keys_of(demo)} == {date(2026, 3, day) for day in range(2, 9)}
    assert len(ACCOUNTS) * len(QUERIES) * 7 == 84 == len(keys_of(demo) | {demo.late})
    assert demo.late not in keys_of(demo)
    assert len(demo.landed) == len(set(demo.landed)) == 84
    special = [demo.negative_cost.key, demo.damaged.key, demo.empty.key, demo.restated.key, demo.late]
    assert len(set(special)) == len(special)


def test_demo_is_deterministic(tmp_path: Path) -> None:
    """Repeated calls and other directories give the same bytes under the same names."""
    roots = tmp_path / "one", tmp_path / "other"
    demos = [land_demo(RawRuns(root), GOOGLE_APIS, until=UNTIL) for root in (*roots, roots[0])]
    assert demos[0] == demos[1] == demos[2]
    assert read_tree(roots[0]) == read_tree(roots[1])


def test_demos_of_different_days_are_independent(raw: RawRuns) -> None:
    """The demo of the next day has all its special cases beside those of an earlier demo."""
    land_demo(raw, GOOGLE_APIS, until=UNTIL)
    later = land_demo(raw, GOOGLE_APIS, until=date(2026, 3, 10))
    assert any(row["cost_micros"] < 0 for row in rows_of(raw, later.negative_cost))
    assert rows_of(raw, later.empty) == []


def test_numbers_are_consistent(raw: RawRuns) -> None:
    """Ad groups add up to their search campaigns, search terms to less, and weekends have less traffic."""
    demo = land_demo(raw, GOOGLE_APIS, until=UNTIL)
    totals: defaultdict[tuple[str, str, date], int] = defaultdict(int)
    for run in set(demo.landed) - {demo.restated}:
        key = run.key
        for row in rows_of(raw, run):
            if row.get("campaign_advertising_channel_type", "SEARCH") == "SEARCH":
                totals[key.customer_id, key.query_name, key.logical_date] += row["clicks"]
    for account in ACCOUNTS:
        campaigns, ad_groups, terms = (
            [totals[account.customer_id, query, date(2026, 3, day)] for day in range(2, 8)] for query in QUERIES
        )
        assert ad_groups == campaigns
        assert all(few < many for few, many in zip(terms, ad_groups, strict=True))
        assert campaigns[0] > campaigns[5]  # 2 March 2026 was a Monday


def test_seals_have_time_zone_and_currency(raw: RawRuns) -> None:
    """The seals of each customer's runs have its time zone and currency."""
    demo = land_demo(raw, GOOGLE_APIS, until=UNTIL)
    facts = {run.key.customer_id: raw.read_seal(run).facts for run in demo.landed}
    assert [(facts[each.customer_id].time_zone, facts[each.customer_id].currency_code) for each in ACCOUNTS] == [
        (each.time_zone, each.currency_code) for each in ACCOUNTS
    ]
    assert [facts[each.customer_id].currency_code for each in ACCOUNTS] == ["EUR", "GBP", "USD", "JPY"]


def test_missing_query_is_refused(raw: RawRuns) -> None:
    """The error names the missing query, and nothing is landed."""
    queries = {name: query for name, query in GOOGLE_APIS.queries.items() if name != "search_term_daily"}
    with pytest.raises(BadName, match="the query file must define it"):
        land_demo(raw, GOOGLE_APIS.model_copy(update={"queries": queries}), until=UNTIL)
    assert not raw.root.exists()
