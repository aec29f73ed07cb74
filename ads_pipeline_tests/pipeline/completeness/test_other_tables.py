"""The tables `accounts`, `restatements` and `loads`, which are written together with `days`."""

import shutil
import tempfile
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings

from ads_pipeline.domain.errors import LogDamaged
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.ledger.sql.ledger_values import StateFilter
from ads_pipeline.pipeline.readers import Readers
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    action_request,
    key,
)
from ads_pipeline_tests.ledger.histories import Step, apply_history
from ads_pipeline_tests.pipeline.completeness.builders import Home, open_home
from ads_pipeline_tests.pipeline.completeness.test_days_table import load, steps

HOUR = timedelta(hours=1)


@pytest.fixture
def home(sqlite_url: str, clock: FakeClock) -> Iterator[Home]:
    """A home with two loaded days, one of which was restated the day after."""
    with open_home(Path(sqlite_url.removeprefix("sqlite:///")).parent, clock=clock, now=clock) as opened:
        load(opened, key(day=1), key(day=2))
        opened.tables.publish_or_log()
        clock.tick(24 * HOUR)
        load(opened, key(day=2), run_id="r2")
        opened.tables.publish_or_log()
        yield opened


def test_each_first_load_is_a_row(home: Home) -> None:
    """The rows are the load records of the ledger, in a file for each day of loading."""
    rows = home.read_table("loads")
    assert [(row["logical_date"].day, row["run_id"], str(row["loaded_on"])) for row in rows] == [
        (1, "r1", "2026-03-01"),
        (2, "r1", "2026-03-01"),
        (2, "r2", "2026-03-02"),
    ]
    assert {row["record_count"] for row in rows} == {3}
    assert len(home.ledger.publications.page_of_loads(StateFilter())) == len(rows)


def test_restatement_has_the_figures_of_both_runs(home: Home) -> None:
    """An accepted run beside the accepted run before it."""
    (row,) = home.read_table("restatements")
    assert (row["run_id"], row["previous_run_id"], row["rows"], row["previous_rows"]) == ("r2", "r1", 3, 3)
    assert row["logical_date"] == date(2026, 2, 2)


def test_account_has_its_name_its_managers_and_its_parking(home: Home) -> None:
    """Also of an account without any run. A manager has no row of its own."""
    customer = "1234567890"
    accounts = [
        Account(source="google_ads", customer_id="1", status="ENABLED", name="Agency", is_manager=True),
        Account(source="google_ads", customer_id="2", status="ENABLED", is_manager=True, manager_id="1"),
        Account(source="google_ads", customer_id=customer, status="ENABLED", name="Blume", manager_id="2"),
        Account(source="google_ads", customer_id="3", status="ENABLED", time_zone="Europe/Berlin", manager_id="1"),
    ]
    home.ledger.accounts.record("google_ads", accounts)
    parking = Parking(source="google_ads", scope="customer", name="3", error_class="parked", why="no contract")
    home.ledger.actions.park(parking, action_request("park"))
    home.tables.publish_or_log()
    other, named = sorted(home.read_table("accounts"), key=lambda row: len(row["customer_id"]))
    assert (named["name"], named["managers"], named["parked"]) == ("Blume", "1/2", False)
    assert named["first_day"] == date(2026, 2, 1)
    assert (other["first_day"], other["parked"], other["parked_reason"]) == (None, True, "no contract")
    assert other["time_zone"] == "Europe/Berlin"


def test_unchanged_tables_get_no_version(home: Home) -> None:
    """Nothing is committed while nothing has changed."""
    before = [(home.path / f"warehouse/google_ads/{table.name}/_delta_log").iterdir() for table in home.tables.all]
    counts = [len(list(each)) for each in before]
    home.tables.publish_or_log()
    after = [(home.path / f"warehouse/google_ads/{table.name}/_delta_log").iterdir() for table in home.tables.all]
    assert [len(list(each)) for each in after] == counts


def test_new_load_writes_only_the_file_of_its_day(home: Home, clock: FakeClock) -> None:
    """The files of earlier days stay, so that a load among a million records rewrites few."""
    folder = home.path / "warehouse/google_ads/loads"
    before = set(folder.glob("loaded_on=*/*.parquet"))
    clock.tick(24 * HOUR)
    load(home, key(day=3))
    home.tables.publish_or_log()
    assert len(set(folder.glob("loaded_on=*/*.parquet")) - before) == 1


@pytest.mark.invariant("L8")
@settings(max_examples=examples(10), deadline=None, phases=[Phase.generate])
@given(history=steps)
def test_changes_one_by_one_give_the_same_tables_as_all_at_once(sqlite_template: Path, history: list[Step]) -> None:
    """After each step what changed is written; a comparison of everything then finds nothing."""
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(sqlite_template, Path(folder) / "ledger.db")
        with open_home(Path(folder), clock=clock, now=clock) as home:
            for step in history:
                apply_history(home.ledger, clock, [step])
                home.tables.publish_or_log()
            written = home.tables.publish_all()
            assert (written["loads"], written["restatements"]) == (0, 0)
            customers = {row["customer_id"] for row in home.read_table("accounts")}
            assert customers == set(home.ledger.days.first_days("google_ads").customers)


def test_new_ledger_replaces_the_history(home: Home, clock: FakeClock, tmp_path: Path, sqlite_template: Path) -> None:
    """A new ledger has none of the loads, so that the table of the old one is emptied."""
    new = tmp_path / "new"
    new.mkdir()
    shutil.copy(sqlite_template, new / "ledger.db")
    shutil.copytree(home.path / "warehouse", new / "warehouse")
    with open_home(new, clock=clock, now=clock) as empty:
        empty.tables.publish_or_log()
        assert [empty.read_table(name) for name in ("loads", "restatements", "accounts")] == [[], [], []]


def test_tables_are_views_of_a_sql_session(home: Home) -> None:
    """A session has the rows of any Delta reader, under the same names, with the partition columns."""
    session = Readers.of_deployment(home.ledger, read_settings({"ADS_PIPELINE_HOME": str(home.path)})).connect([])
    with session as connection:
        names = [name for (name,) in connection.execute("SHOW TABLES").fetchall()]
        assert names == ["accounts", "days", "loads", "restatements"]
        shown = connection.execute("SELECT query_name, month, count(*) FROM days GROUP BY ALL").fetchall()
        assert [row[:2] for row in shown] == [("campaign_daily", "2026-02")]
        assert connection.execute("SELECT count(*) FROM loads WHERE loaded_on = DATE '2026-03-02'").fetchall() == [
            (1,)
        ]
        assert connection.execute("SELECT customer_id FROM accounts").fetchall() == [("1234567890",)]
        assert connection.execute("SELECT run_id FROM restatements").fetchall() == [("r2",)]
        assert connection.execute("SELECT count(*) FROM days WHERE query_name = 'other'").fetchall() == [(0,)]


def test_log_that_is_damaged_hides_only_its_own_view(home: Home) -> None:
    """The other views stay, and the damage is reported."""
    (home.path / "warehouse/google_ads/days/_delta_log/00000000000000000000.json").write_text("{")
    reported = list[LogDamaged]()
    readers = Readers.of_deployment(home.ledger, read_settings({"ADS_PIPELINE_HOME": str(home.path)}))
    with readers.connect([], on_damage=reported.append) as connection:
        assert ("days",) not in connection.execute("SHOW TABLES").fetchall()
    assert [error.table for error in reported] == ["google_ads/days"]
