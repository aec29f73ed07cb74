"""The table `days`: it says of each day what `state inspect` says, after every change."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.days.conditions import READABLE_CONDITIONS, Condition
from ads_pipeline.domain.errors import WarehouseUnavailable
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action
from ads_pipeline.lake.completeness.keyed_rows import NextRows, commit_rows
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.pipeline.completeness import ledger_table
from ads_pipeline.pipeline.days.day_conditions import DayRules
from ads_pipeline.pipeline.days.deadlines import find_blocked
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    accepted_runs,
    action_request,
    key,
    publish_runs,
    rejection,
    run,
    sealed_runs,
)
from ads_pipeline_tests.ledger.histories import OPERATIONS, Step, apply_history
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.pipeline.completeness.builders import Home, Row, open_home

EXPECTED = [each.value for each in Condition if each is not Condition.NOT_EXPECTED]
HOUR = timedelta(hours=1)
ACTIONS = (Action.REQUEUE, Action.WITHDRAW, Action.ENQUEUE, Action.MARK_TERMINAL, Action.ACKNOWLEDGE)
steps = st.lists(
    st.builds(
        Step,
        operation=st.sampled_from(["register", "accept", "publish", *OPERATIONS]),
        partition_no=st.integers(0, 1),
        run_no=st.integers(1, 2),
        clock_change=st.sampled_from([timedelta(), timedelta(minutes=1), 5 * HOUR, 30 * HOUR]),
        action=st.sampled_from(ACTIONS),
    ),
    min_size=1,
    max_size=8,
)


@pytest.fixture
def home(sqlite_url: str, clock: FakeClock) -> Iterator[Home]:
    """A home with two loaded days and one that was rejected, and the table of these days."""
    with open_home(Path(sqlite_url.removeprefix("sqlite:///")).parent, clock=clock, now=clock) as opened:
        load(opened, key(day=1), key(day=2))
        reject(opened, key(day=3))
        opened.days.publish()
        yield opened


def load(home: Home, *keys: PartitionKey, run_id: str = "r1") -> None:
    accepted_runs(home.ledger, keys, run_id)
    publish_runs(home.ledger, *(run(each, run_id) for each in keys))


def reject(home: Home, partition: PartitionKey, run_id: str = "r1") -> None:
    home.ledger.registrations.register(sealed_runs(run(partition, run_id)))
    home.ledger.verdicts.record([rejection(run(partition, run_id))])


def withdraw(home: Home, partition: PartitionKey) -> None:
    home.ledger.actions.execute(Action.WITHDRAW, [partition], action_request(f"withdraw-{partition.logical_date}"))


def row_of(home: Home, partition: PartitionKey) -> Row:
    return home.read()[partition.customer_id, partition.query_name, partition.logical_date]


def version_of(home: Home) -> int:
    return home.table.version()


def find_waiting(home: Home) -> list[PartitionKey]:
    """The days that the sensor passes, because their run waits for too long."""
    rules = DayRules.read(
        home.ledger,
        read_settings({"ADS_PIPELINE_HOME": str(home.path)}),
        now=home.now() if home.now else datetime.now(UTC),
    )
    return list(find_blocked(home.ledger, "google_ads", ["campaign_daily"], datetime.min.replace(tzinfo=UTC), rules))


@pytest.mark.invariant("L8")
@settings(max_examples=examples(12), deadline=None)
@given(histories=st.lists(steps, min_size=1, max_size=3))
def test_days_are_what_inspect_says(sqlite_template: Path, histories: list[list[Step]]) -> None:
    """After any history, the rows are the days that `state inspect --json` lists, with the same facts."""
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        shutil.copy(sqlite_template, path / "ledger.db")
        with open_home(path, clock=clock) as home:
            for history in histories:
                apply_history(home.ledger, clock, history)
                home.days.publish()
            rows = home.read()
            published = home.ledger.publications.published_runs([key("1"), key("2")])
        conditions = (word for each in EXPECTED for word in ("--condition", each))
        done = CommandLine(home=path).run("state", "inspect", "--json", "--limit", "10000", *conditions)
        said = [json.loads(line) for line in done.lines]
    assert len(said) == len(rows)
    for each in said:
        row = rows[each["customer_id"], each["query_name"], date.fromisoformat(each["logical_date"])]
        is_readable = Condition(each["condition"]) in READABLE_CONDITIONS
        assert (row["condition"], row["is_readable"]) == (each["condition"], is_readable)
        assert row["since"] == datetime.fromisoformat(each["since"])
        assert (each["detail"] or each["because"] or "accepted") in row["reason"]
        assert row["attempts"] == each["attempt_count"]
        assert row["last_attempt_outcome"] == each["raw_last_attempt_outcome"]
        shown = published.get(key(each["customer_id"])) if is_readable else None
        assert (row["run_id"], row["rows"]) == ((shown.run.run_id, shown.record_count) if shown else (None, None))


@pytest.mark.invariant("L8")
@settings(max_examples=examples(25), deadline=None, phases=[Phase.generate])
@given(histories=st.lists(st.tuples(steps, st.booleans()), min_size=1, max_size=5))
def test_changes_one_by_one_give_the_same_table_as_all_at_once(
    sqlite_template: Path, histories: list[tuple[list[Step], bool]]
) -> None:
    """After each part of a history the changed days are written; a comparison of all days then finds none."""
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(sqlite_template, Path(folder) / "ledger.db")
        with open_home(Path(folder), clock=clock, now=clock) as home:
            for number, (history, is_parked) in enumerate(histories):
                apply_history(home.ledger, clock, history)
                if is_parked:
                    parking = Parking(
                        source="google_ads", scope="customer", name="1", error_class="parked", why="no contract"
                    )
                    home.ledger.actions.park(parking, action_request(f"park-{number}"))
                home.days.publish(find_waiting(home))
            before = home.read()
            assert home.days.publish_all() == 0, (before, home.read())


def test_days_have_the_facts_of_their_runs(home: Home) -> None:
    """A readable day names the run that readers get, and a rejected day its reason and no run."""
    row, rejected = row_of(home, key(day=1)), row_of(home, key(day=3))
    assert (row["condition"], row["is_readable"], row["run_id"], row["rows"]) == ("readable", True, "r1", 3)
    assert row["loaded_at"] == FakeClock().now
    assert (rejected["condition"], rejected["is_readable"], rejected["run_id"]) == ("rejected", False, None)
    assert "bad" in rejected["reason"]


def test_names_and_currencies_are_those_of_the_accounts(home: Home) -> None:
    """The name and the currency of a day are those that discovery has found."""
    name, currency = "Café Blume", "EUR"
    account = Account(
        source="google_ads", customer_id="1234567890", status="ENABLED", name=name, currency_code=currency
    )
    home.ledger.accounts.record("google_ads", [account])
    home.days.publish_all()
    assert {(each["customer_name"], each["currency_code"]) for each in home.read().values()} == {(name, currency)}


def test_unchanged_ledger_makes_no_version(home: Home, clock: FakeClock) -> None:
    """Without a change in the ledger there is no commit."""
    version = version_of(home)
    clock.tick(HOUR)
    assert home.days.publish() == 0
    assert version_of(home) == version
    assert home.days.publish_all() == 0


def list_described(home: Home) -> set[str]:
    """The days that the next publication describes again, as the table's key has them."""
    plan = home.days.plan_changed(home.ledger, home.days.open(), ())
    assert plan is not None
    return {key[0] for _partition, change in plan.changes for key in change.keys or ()}


def test_days_that_a_version_has_seen_are_not_described_again(home: Home, clock: FakeClock) -> None:
    """However short ago they changed. So a load among many costs what it costs alone."""
    home.days.publish()
    clock.tick(timedelta(seconds=1))
    withdraw(home, key(day=2))
    home.days.publish()
    withdraw(home, key(day=1))
    assert list_described(home) == {"2026-02-01"}
    home.days.publish()
    assert list_described(home) == set()


def test_version_that_does_not_say_what_it_has_seen_is_followed_by_recent_changes(home: Home) -> None:
    """Something else may have committed it. Then the days of the last minutes are described again."""
    withdraw(home, key(day=2))
    home.days.publish()
    withdraw(home, key(day=1))
    assert commit_rows(home.days.open(), NextRows(), {}, "[]")
    assert list_described(home) >= {"2026-02-01", "2026-02-02"}
    home.days.publish()
    assert row_of(home, key(day=1))["is_readable"] is False


def test_many_changes_that_change_no_row_are_read_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The position is stored although no row differs, when the next publication would read many events again."""
    monkeypatch.setattr(ledger_table, "MOST_READ_AGAIN", 0)
    home.tables.publish_or_log()
    withdraw(home, key(day=2))
    version = DeltaTable(home.tables.all[-1].table.uri).version()
    home.tables.publish_or_log()
    assert DeltaTable(home.tables.all[-1].table.uri).version() == version + 1
    home.tables.publish_or_log()
    assert DeltaTable(home.tables.all[-1].table.uri).version() == version + 1


def test_everything_is_compared_once_a_day(home: Home, clock: FakeClock) -> None:
    """The hourly job compares all days again after a day, and notes when it did."""
    home.days.publish_due()
    compared = version_of(home)
    clock.tick(2 * HOUR)
    home.days.publish_due()
    assert version_of(home) == compared
    clock.tick(30 * HOUR)
    home.days.publish_due()
    assert version_of(home) > compared


def test_unchanged_rows_keep_the_time_when_they_were_described(home: Home, clock: FakeClock) -> None:
    """`as_of` moves only where something else in the row changes."""
    clock.tick(HOUR)
    withdraw(home, key(day=2))
    assert home.days.publish() == 1
    assert row_of(home, key(day=1))["as_of"] == FakeClock().now
    assert row_of(home, key(day=2))["as_of"] == clock.now


def test_day_that_becomes_late_gets_a_row(home: Home, clock: FakeClock) -> None:
    """A day without any event gets its row when its deadline passes."""
    expected = key(day=28)
    clock.tick(timedelta(hours=11))
    home.days.publish()
    assert (expected.customer_id, expected.query_name, expected.logical_date) not in home.read()
    clock.tick(2 * HOUR)
    home.days.publish()
    assert row_of(home, expected)["condition"] == "late"


def test_first_run_of_an_earlier_day_makes_the_days_after_it_expected(home: Home) -> None:
    """The days between a new first day and the ones before get rows, though no event names them."""
    load(home, replace(key(), logical_date=date(2026, 1, 20)))
    home.days.publish()
    missing = {day for (_c, _q, day), row in home.read().items() if row["condition"] == "missing"}
    assert date(2026, 1, 21) in missing
    assert home.days.publish_all() == 0


@pytest.mark.invariant("W3")
def test_withdrawn_day_is_not_readable_whatever_the_clock_says(home: Home, clock: FakeClock) -> None:
    """Before rows are removed, their days are described even if their event has an old time."""
    clock.tick(-50 * HOUR)  # its event carries a time long before the mark of the table
    withdraw(home, key(day=1))
    clock.tick(100 * HOUR)
    home.days.publish_before_removal([key(day=1)])
    assert row_of(home, key(day=1))["is_readable"] is False


def test_full_comparison_repairs_what_a_wrong_clock_hid(home: Home, clock: FakeClock) -> None:
    """An event with a time long ago is missed, and the comparison of all days finds it."""
    clock.tick(-50 * HOUR)
    withdraw(home, key(day=1))
    clock.tick(100 * HOUR)
    home.days.publish()
    home.days.publish_all()
    assert row_of(home, key(day=1))["is_readable"] is False


def test_older_ledger_is_compared_as_a_whole(home: Home, sqlite_url: str, clock: FakeClock, tmp_path: Path) -> None:
    """A ledger that was restored from a backup has no events of the table's newest rows."""
    backup = tmp_path / "backup.db"
    home.ledger.engine.dispose()
    shutil.copy(home.path / "ledger.db", backup)
    clock.tick(HOUR)
    load(home, key(day=4))
    home.days.publish()
    restored = tmp_path / "restored"
    restored.mkdir()
    shutil.copy(backup, restored / "ledger.db")
    shutil.copytree(home.path / "warehouse", restored / "warehouse")
    with open_home(restored, clock=clock, now=clock) as older:
        older.days.publish()
        assert row_of(older, key(day=4))["is_readable"] is False


def test_new_ledger_empties_the_table(home: Home, sqlite_template: Path, clock: FakeClock, tmp_path: Path) -> None:
    """A new ledger expects no day, so the table of the old one is emptied."""
    new = tmp_path / "new"
    new.mkdir()
    shutil.copy(sqlite_template, new / "ledger.db")
    shutil.copytree(home.path / "warehouse", new / "warehouse")
    with open_home(new, clock=clock, now=clock) as empty:
        empty.days.publish()
        assert empty.read() == {}


@pytest.mark.invariant("L12")
def test_missing_data_file_is_written_again(home: Home) -> None:
    """A change in a month whose file is missing writes the whole month."""
    before = home.read()
    (path,) = find_files(home)
    path.unlink()
    withdraw(home, key(day=1))
    home.days.publish()
    assert home.read().keys() == before.keys()
    assert row_of(home, key(day=1))["is_readable"] is False


@pytest.mark.invariant("L12")
def test_damaged_log_is_written_again_by_a_full_comparison(home: Home) -> None:
    """A table that nobody can open stops no removal, and a comparison of all days replaces it."""
    before = home.read()
    (home.path / "warehouse/google_ads/days/_delta_log/00000000000000000000.json").write_text("{")
    home.days.publish_before_removal([key(day=1)])  # no reader can open it either
    home.days.publish_all()
    assert home.read().keys() == before.keys()


def test_table_that_cannot_be_written_fails_no_load_and_stops_a_removal(home: Home) -> None:
    """A load that has happened succeeds, and rows stay while the table cannot say that they go."""
    withdraw(home, key(day=1))
    log = home.path / "warehouse/google_ads/days/_delta_log"
    shutil.move(log, log.with_name("moved"))
    log.write_text("not a folder")
    home.days.publish_or_log()
    with pytest.raises(WarehouseUnavailable):
        home.days.publish_before_removal([key(day=1)])


def test_lost_race_describes_the_days_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer commits between the ledger's read and the commit: the withdrawal that it knew is kept."""
    calls = list[int]()

    def commit_second(*args: Any) -> bool:
        calls.append(1)
        if len(calls) == 1:
            withdraw(home, key(day=1))
            home.days.publish()
        return commit_rows(*args)

    load(home, key(day=4))
    monkeypatch.setattr("ads_pipeline.pipeline.completeness.ledger_table.commit_rows", commit_second)
    home.days.publish()
    assert row_of(home, key(day=1))["is_readable"] is False
    assert row_of(home, key(day=4))["is_readable"] is True


def test_old_files_are_vacuumed(home: Home) -> None:
    """Vacuum removes the replaced file of a month after the retention of a day, and keeps the present one."""
    (before,) = find_files(home)
    withdraw(home, key(day=1))
    home.days.publish()
    vacuum = partial(Warehouse(str(home.path / "warehouse")).vacuum, source="google_ads", query_name="days")
    assert vacuum(retention=timedelta(days=1)) == ()
    (after,) = set(find_files(home)) - {before}
    long_ago = time.time() - timedelta(days=2).total_seconds()
    for path in (before, after, *(home.path / "warehouse/google_ads/days/_delta_log").iterdir()):
        os.utime(path, (long_ago, long_ago))
    assert [path.rpartition("/")[2] for path in vacuum(retention=timedelta(days=1))] == [before.name]
    assert find_files(home) == [after]


def find_files(home: Home) -> list[Path]:
    return sorted((home.path / "warehouse/google_ads/days").glob("query_name=*/month=*/*.parquet"))
