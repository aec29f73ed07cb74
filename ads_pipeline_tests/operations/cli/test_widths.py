"""Tables at each width, with the longest names that the product accepts, and with wide characters."""

import csv
import io
import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from ads_pipeline.domain.fetching.account import CANCELED, ENABLED, Account
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.operations.cli.command_line.output import Column, OutputConsole, table_of
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    action_request,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
)
from ads_pipeline_tests.operations.cli.running import CommandLine

QUERY = "conversions_of_campaigns_by_device_and_network_and_hour_v2"
CUSTOMER = "1180250317"
NAME = "株式会社東京広告運用サービス国際事業部 Größte Werbeagentur am Platz"
RUN_ID = "20261119T020304567Z-0a1b2c3d-with-a-long-suffix-of-the-extractor-r12"
REASON = "cost_micros muss mindestens 0 sein: 広告費は零以上でなければなりません in campaign_daily_of_the_account"
DAY = datetime.now(UTC).date() - timedelta(days=3)
NO_CONTRACT = ("queries", "check")  # it lists the query, and then says that no contract is declared for it
TABLES = (
    ("warehouse", "loads"),
    ("warehouse", "gaps"),
    ("state", "inspect"),
    ("state", "inspect", "--status", "success"),
    ("state", "inspect", "--status", "failed"),
    ("state", "due"),
    ("state", "why", f"{CUSTOMER}/{QUERY}/{DAY}"),
    ("state", "withdraw", "--customer", CUSTOMER, "--reason", "x", "--dry-run"),
    ("accounts", "list"),
    ("audit",),
    ("state", "why", "--attempts"),
    ("state", "inspect", "--list", "terminal"),
    ("state", "inspect", "--list", "parked"),
    ("events", "runs"),
    ("warehouse", "restatements"),
    NO_CONTRACT,
    ("ledger", "copy", "--verify"),
)


def key(days: int = 0) -> PartitionKey:
    return PartitionKey(
        source="google_ads", customer_id=CUSTOMER, query_name=QUERY, logical_date=DAY - timedelta(days=days)
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one partition in each state, of a query and an account with long names."""
    home = tmp_path_factory.mktemp("widths") / "home"
    home.mkdir()
    shipped = read_settings({"ADS_PIPELINE_HOME": str(home)}).queries_file
    document = yaml.safe_load(shipped.read_text())
    (query, *_others) = document["queries"].values()
    document["queries"] = {QUERY: query}
    (home / "google_apis.yaml").write_text(yaml.safe_dump(document))
    settings = read_settings({"ADS_PIPELINE_HOME": str(home)})
    with Ledger.opened(settings.database_url, origin=EventOrigin(engine_run_id=RUN_ID, plan_version="1")) as ledger:
        _fill(ledger)
    return home


def _fill(ledger: Ledger) -> None:
    for days in range(3):
        (first,) = registered_runs(ledger, key(days), RUN_ID)
        record_verdict(ledger, acceptance(first))
        publish_runs(ledger, first)
    (rerun,) = registered_runs(ledger, key(0), f"{RUN_ID}-2")
    record_verdict(ledger, acceptance(rerun))
    publish_runs(ledger, rerun)
    for days in range(3, 5):
        (bad,) = registered_runs(ledger, key(days), RUN_ID)
        record_verdict(ledger, rejection(bad, REASON))
    ledger.actions.execute(Action.MARK_TERMINAL, [key(4)], action_request("mark"))
    ledger.actions.execute(Action.REPROCESS, [key(1)], action_request("reprocess"))
    ledger.actions.execute(Action.WITHDRAW, [key(2)], action_request("withdraw"))
    accounts = [
        Account(
            source="google_ads",
            customer_id=CUSTOMER,
            status=ENABLED,
            name=NAME,
            currency_code="JPY",
            time_zone="America/Argentina/ComodRivadavia",
            login_customer_id="9999999999",
        ),
        Account(source="google_ads", customer_id="2046619385", status=CANCELED, name=NAME[:40]),
    ]
    ledger.accounts.record("google_ads", accounts)
    other = f"{QUERY[:58]}_other"
    parking = Parking(source="google_ads", scope="query", name=other, error_class="unknown_field", why=REASON)
    ledger.actions.park(parking, action_request("park"))


@pytest.mark.parametrize("command", TABLES, ids=" ".join)
def test_tables_fit_into_the_width(home: Path, command: tuple[str, ...]) -> None:
    """Only a word that is wider than the terminal goes beyond it. Customers and days are not broken."""
    counts = set()
    for width in (40, 80, 120, 200):
        done = CommandLine(home=home, more={"COLUMNS": str(width)}).run(*command)
        assert done.code == 78 if command == NO_CONTRACT else done.code <= 1, done.err
        for line in done.lines:
            longest = max((cell_len(word) for word in line.split()), default=0)
            assert cell_len(line.rstrip()) <= max(width, longest) or line.startswith("  ads-pipeline "), line
        counts.add((done.out.count(CUSTOMER), done.out.count(str(DAY))))
    assert len(counts) == 1


@pytest.mark.parametrize("command", [each for each in TABLES if each[0] != "ledger"], ids=" ".join)
def test_json_is_whole_at_each_width(home: Path, command: tuple[str, ...]) -> None:
    """The width of the terminal changes no value."""
    done = CommandLine(home=home, more={"COLUMNS": "40"}).run(*command, "--json")
    assert done.objects
    assert "…" not in done.out
    assert QUERY[:58] in done.out or NAME in done.out or RUN_ID in done.out or command == ("audit",)


def test_csv_is_whole_at_each_width(home: Path) -> None:
    """Each load is one line with all its values."""
    done = CommandLine(home=home, more={"COLUMNS": "40"}).run("warehouse", "loads", "--csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert len(rows) == 4
    assert {(row["query_name"], row["customer_id"]) for row in rows} == {(QUERY, CUSTOMER)}
    assert {row["run_id"] for row in rows} == {RUN_ID, f"{RUN_ID}-2"}


# Letters that no heading has.
CELLS = st.text(alphabet=st.sampled_from("ab_-/. 広告운é"), max_size=40)


@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4),
    wraps=st.tuples(st.booleans(), st.booleans()),
    below=st.booleans(),
    width=st.integers(20, 160),
)
def test_no_character_is_lost(
    rows: list[tuple[str, ...]], wraps: tuple[bool, bool], *, below: bool, width: int
) -> None:
    """Whatever the cells hold, a table shows each of their characters once."""
    columns = (
        Column("one", "0", wrap=wraps[0]),
        Column("two", "1", wrap=wraps[1]),
        Column("six", "2", wrap=True, below=below),
    )
    with patch.dict(os.environ, {"COLUMNS": str(width)}):
        console = OutputConsole()
        with console.capture() as capture:
            console.print(*table_of([dict(zip("012", row, strict=True)) for row in rows], columns), sep="\n")
    shown = Counter(each for each in capture.get() if each not in "onetwosix \n")
    assert shown == Counter(each for row in rows for text in row for each in text if each != " ")
