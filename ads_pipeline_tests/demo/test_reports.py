"""The demonstration: what is landed, that it is plausible, and what the real pipeline makes of it."""

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

from ads_pipeline.demo.reports import ACCOUNTS, Demo, land_demo
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Outcome, Status
from ads_pipeline.errors import BadName
from ads_pipeline.pipeline.gaps import GapReason
from ads_pipeline.pipeline.judging import JudgingResult
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import read_settings
from ads_pipeline_tests.builders import read_tree
from ads_pipeline_tests.pipeline.builders import LocalDeployment, open_deployment

UNTIL = date(2026, 3, 9)
FIRST, LAST = date(2026, 3, 2), date(2026, 3, 8)
GOOGLE_APIS = read_settings({}).google_apis
QUERIES = ("campaign_daily", "ad_group_daily", "search_term_daily")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The demonstration as it was landed, and what became of it."""

    house: LocalDeployment
    demo: Demo
    judged: JudgingResult
    missing: dict[PartitionKey, GapReason]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, spark: SparkSession) -> Iterator[Told]:
    """Landed, found below the raw root, and carried to the readers."""
    home = tmp_path_factory.mktemp("told")
    shutil.copy(sqlite_template, home / "ledger.db")
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}") as house:
        demo = land_demo(house.raw, GOOGLE_APIS, until=UNTIL)
        found = [each.run for each in house.raw.find_runs(source=GOOGLE_APIS.source, since=FIRST, until=LAST)]
        judged, _loading = house.pipeline.judge_and_load([run for run in found if run is not None])
        yield Told(house=house, demo=demo, judged=judged, missing=missing_in(house))


def missing_in(house: LocalDeployment) -> dict[PartitionKey, GapReason]:
    gaps = [house.readers.gaps(query, since=FIRST, until=LAST) for query in QUERIES]
    return {gap.key: gap.reason for of_query in gaps for gap in of_query}


@pytest.fixture
def raw(tmp_path: Path) -> RawRuns:
    return RawRuns(tmp_path / "raw")


def rows_of(raw: RawRuns, run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(raw.payload_path(run)).read_text().splitlines()]


def keys_of(demo: Demo) -> set[PartitionKey]:
    return {run.key for run in demo.landed}


def test_exactly_the_bad_and_the_damaged_are_refused(told: Told) -> None:
    """The contracts accept every other run, and say of the two what is wrong with them."""
    verdicts = {each.verdict.run: each.verdict for each in told.judged.judgements}
    assert verdicts.keys() == set(told.demo.landed)
    assert not told.judged.unjudged
    refused = {run for run, verdict in verdicts.items() if verdict.outcome is Outcome.REJECTED}
    assert refused == {told.demo.negative_cost, told.demo.damaged}
    assert "cost_micros" in str(verdicts[told.demo.negative_cost].error_message)
    assert "4 rows, the seal says 6" in str(verdicts[told.demo.damaged].error_message)


def test_what_readers_miss_is_what_the_story_says(told: Told) -> None:
    """Two days are missing because their runs were rejected, and one because nothing came; all others are visible."""
    assert told.missing == {
        told.demo.negative_cost.key: GapReason.REJECTED,
        told.demo.damaged.key: GapReason.REJECTED,
        told.demo.late: GapReason.NOTHING_SEALED,
    }


def test_the_restated_day_is_read_as_it_is_known_now(told: Told) -> None:
    """Its newer run has the authority, and more conversions than the first, for the same cost."""
    state = told.house.ledger.state(told.demo.restated.key)
    assert (state.current_run_id, state.attempt_count) == (told.demo.restated.run_id, 2)
    before, now = (rows_of(told.house.raw, run) for run in (told.demo.original, told.demo.restated))
    assert [row["cost_micros"] for row in before] == [row["cost_micros"] for row in now]
    assert all(old["conversions"] < new["conversions"] for old, new in zip(before, now, strict=True))


def test_a_day_without_rows_is_a_good_day(told: Told) -> None:
    """The empty partition is a success of no rows: visible, and no gap."""
    state = told.house.ledger.state(told.demo.empty.key)
    assert (state.status, state.record_count) == (Status.SUCCESS, 0)


def test_the_set_is_whole(raw: RawRuns) -> None:
    """Four customers, three queries and the seven days before, but for the late one; and one day came twice."""
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


def test_the_set_is_the_same_everywhere(tmp_path: Path) -> None:
    """Landed on two machines, or twice on one, the runs hold the same bytes under the same names."""
    roots = tmp_path / "one", tmp_path / "other"
    demos = [land_demo(RawRuns(root), GOOGLE_APIS, until=UNTIL) for root in (*roots, roots[0])]
    assert demos[0] == demos[1] == demos[2]
    assert read_tree(roots[0]) == read_tree(roots[1])


def test_the_set_of_another_day_tells_its_own_story(raw: RawRuns) -> None:
    """A set that was landed before takes no name away from the next day's, whose parts are all there."""
    land_demo(raw, GOOGLE_APIS, until=UNTIL)
    later = land_demo(raw, GOOGLE_APIS, until=date(2026, 3, 10))
    assert any(row["cost_micros"] < 0 for row in rows_of(raw, later.negative_cost))
    assert rows_of(raw, later.empty) == []


def test_the_numbers_hang_together(raw: RawRuns) -> None:
    """Ad groups add up to their search campaigns, search terms to less, and weekends are quieter than Mondays."""
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


def test_seals_tell_zone_and_currency(raw: RawRuns) -> None:
    """Each account's runs carry its own time zone and currency, and the hash of the query that made them."""
    demo = land_demo(raw, GOOGLE_APIS, until=UNTIL)
    facts = {run.key.customer_id: raw.read_seal(run).facts for run in demo.landed}
    assert [(facts[each.customer_id].time_zone, facts[each.customer_id].currency_code) for each in ACCOUNTS] == [
        (each.time_zone, each.currency_code) for each in ACCOUNTS
    ]
    assert [facts[each.customer_id].currency_code for each in ACCOUNTS] == ["EUR", "GBP", "USD", "JPY"]


def test_a_query_file_without_its_queries_is_refused(raw: RawRuns) -> None:
    """The demonstration says which query it lacks, before it lands a run of it."""
    queries = {name: query for name, query in GOOGLE_APIS.queries.items() if name != "search_term_daily"}
    with pytest.raises(BadName, match="the query file must define it"):
        land_demo(raw, GOOGLE_APIS.model_copy(update={"queries": queries}), until=UNTIL)
    assert list(raw.find_runs(source=GOOGLE_APIS.source, since=FIRST, until=LAST)) == []
