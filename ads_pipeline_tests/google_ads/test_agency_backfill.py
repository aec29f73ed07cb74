"""A backfill of a whole agency from the UI's GraphQL, with the real daemon, client and server."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.days.conditions import Condition
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.operations.report.content import LETTERS
from ads_pipeline.settings.query_file import narrow_query_file
from ads_pipeline_tests.builders import key
from ads_pipeline_tests.example_counts import TIMES
from ads_pipeline_tests.google_ads.agency import (
    CANCELED,
    DENIED,
    DISABLED,
    GOOD,
    LEAVING,
    OTHER_LOGIN,
    REFUSED,
    TEST,
    TWO_WAYS,
    agency,
)
from ads_pipeline_tests.google_ads.builders import LOGIN
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.report.test_document import unpack
from ads_pipeline_tests.orchestration.dagster_server import SELECTOR, DagsterServer, dagster_server
from ads_pipeline_tests.pipeline.builders import LocalDeployment, visible_runs

# Two days of all accounts; in `make soak` thirty. Dagster starts a run for each day or for each customer, whichever
# are fewer, and a run takes half a minute. So here two runs share the requests.
DAYS = 30 if TIMES > 1 else 2
FIRST = datetime.now(UTC).date() - timedelta(days=DAYS + 3)
QUERIES = ("campaign_daily", "ad_group_daily")
CUSTOMERS = """
query {
  assetNodeOrError(assetKey: {path: ["raw", "campaign_daily"]}) { ... on AssetNode {
    partitionKeysByDimension { name partitionKeys }
  } }
}"""
LAUNCH_RUN = """
mutation($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  }
}"""
NO_SPARK = cast("SparkSession", None)  # only Dagster's processes judge and load


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / "google_apis.yaml").write_text(narrow_query_file(FIRST, QUERIES))
    return home


@pytest.fixture
def dagster(home: Path, server: LoopbackServer) -> Iterator[DagsterServer]:
    environment = {"ADS_PIPELINE_GOOGLE_ADS": str(server.configuration)}
    with dagster_server(home, environment, engine=True) as started:
        yield started


def run_job(dagster: DagsterServer, job: str) -> None:
    selector = {**SELECTOR, "pipelineName": job}
    params = {"selector": selector, "runConfigData": {}, "mode": "default"}
    launched = dagster.query(LAUNCH_RUN, params=params)["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run_id = launched["run"]["runId"]
    final = dagster.wait_for(lambda: _final(dagster.run_status(run_id)))
    assert final == "SUCCESS"


def _final(status: str) -> str | None:
    return status if status in {"SUCCESS", "FAILURE", "CANCELED"} else None


def days_of(customers: tuple[str, ...], query: str) -> list[PartitionKey]:
    return [
        key(customer, query_name=query, day=FIRST + timedelta(days=n)) for customer in customers for n in range(DAYS)
    ]


def find_customers(dagster: DagsterServer) -> set[str]:
    node: Any = dagster.query(CUSTOMERS)["assetNodeOrError"]
    return next(set(each["partitionKeys"]) for each in node["partitionKeysByDimension"] if each["name"] == "customer")


@pytest.mark.timeout(2400)
def test_backfill_of_an_agency(server: LoopbackServer, dagster: DagsterServer, home: Path) -> None:
    """From an empty home, discovery and one backfill make every fetchable day readable; the rest is explained.

    The manager has 20 accounts: one cancelled, one disabled, one denied, a nested manager, and those to fetch. Of
    these one is a closed test account, one is below two managers, and one leaves and returns. The server counts at
    most one operation for each account and query beside discovery.
    """
    server.answer(agency(GOOD))
    run_job(dagster, "discover_accounts")
    customers = find_customers(dagster)
    assert customers == {*GOOD, *REFUSED}
    discovered = Counter(server.operations())
    assert (discovered[LOGIN], discovered[OTHER_LOGIN], max(discovered.values())) == (1, 1, 1)

    assets = [(layer, query) for query in QUERIES for layer in ("raw", "warehouse")]
    backfill = dagster.launch_backfill(assets, days_of(tuple(sorted(customers)), "campaign_daily"))
    status = dagster.wait_for(lambda: dagster._final_status(backfill), 2000)
    assert status in {"COMPLETED_SUCCESS", "COMPLETED_FAILED"}  # checks of days without a run fail

    spent = Counter(server.operations()) - discovered
    assert sum(spent.values()) <= (len(GOOD) + len(REFUSED) + 1) * len(QUERIES)
    assert {spent[customer] for customer in GOOD} == {len(QUERIES)}
    assert (spent[CANCELED], spent[DISABLED], spent[DENIED]) == (0, 1, 1)

    with Ledger.opened(f"sqlite:///{home / 'ledger.db'}") as ledger:
        wanted = [each for query in QUERIES for each in days_of(GOOD, query)]
        assert {each.status for each in ledger.states.get_many(wanted).values()} == {Status.SUCCESS}
        deployment = LocalDeployment(home=home, spark=NO_SPARK, ledger=ledger)
        assert visible_runs(deployment).keys() == set(days_of(GOOD, "campaign_daily"))
        parked = find_parked(ledger)
        assert ledger.accounts.by_id("google_ads")[TWO_WAYS].login_customer_id == OTHER_LOGIN
    assert parked == {
        CANCELED: "account_canceled",
        DISABLED: "customer_not_enabled",
        DENIED: "permission_denied",
    }
    cli = CommandLine(home=home, more={"ADS_PIPELINE_GOOGLE_ADS": str(server.configuration)})
    for customer, error_class in parked.items():
        why = cli.run("state", "why", f"{customer}/campaign_daily/{FIRST}")
        assert error_class in why.out, why.out
    gaps = [
        json.loads(line)
        for line in cli.run("warehouse", "gaps", "--query", "campaign_daily", "--json").out.splitlines()
    ]
    for customer, error in ((DISABLED, "CUSTOMER_NOT_ENABLED"), (DENIED, "USER_PERMISSION_DENIED")):
        refused = key(customer, day=FIRST)
        result = dagster.check_result(("warehouse", "campaign_daily"), refused, "readable")
        assert result is not None
        assert not result["success"]
        assert f"is parked: authorization_error.{error}" in result["description"]
        found = [gap for gap in gaps if (gap["customer_id"], gap["logical_date"]) == (customer, str(FIRST))]
        assert [(gap["condition"], error in gap["detail"]) for gap in found] == [("parked", True)]
    check_report(cli, home)
    leave_and_return(server, cli, home)


def check_report(cli: CommandLine, home: Path) -> None:
    """Fetched days are readable, and provisional but for the oldest; refused ones are parked with the reason."""
    assert cli.run("report").code == 0
    page = unpack((home / "report.html").read_text())
    query = next(each for each in page["queries"] if each["name"] == "campaign_daily")
    rows = {each["id"]: number for number, each in enumerate(page["customers"])}
    readable, parked = LETTERS[Condition.READABLE], LETTERS[Condition.PARKED]
    for customer in GOOD:
        assert query["cells"][rows[customer]][:DAYS] == readable * DAYS
        reports = query["reports"][rows[customer]]
        assert (len(reports), reports.lstrip("s").strip("p")) == (DAYS, "")
        assert reports.endswith("p")
    for customer in (DISABLED, DENIED):
        assert query["cells"][rows[customer]][0] == parked
        assert "authorization_error" in page["texts"][query["notes"][f"{rows[customer]},0"][1]]


def leave_and_return(server: LoopbackServer, cli: CommandLine, home: Path) -> None:
    """An account that is no longer listed is parked with its data, and released when it is listed again."""
    day = f"{LEAVING}/campaign_daily/{FIRST}"
    server.answer(agency(GOOD, gone=[LEAVING]))
    assert cli.run("accounts", "discover").code == 0
    with Ledger.opened(f"sqlite:///{home / 'ledger.db'}") as ledger:
        assert find_parked(ledger)[LEAVING] == "account_gone"
    (why,) = cli.run("state", "why", day, "--json").objects
    assert (why["condition"], why["parked"]) == ("readable", [f"customer {LEAVING}"])
    server.answer(agency(GOOD))
    assert cli.run("accounts", "discover").code == 0
    with Ledger.opened(f"sqlite:///{home / 'ledger.db'}") as ledger:
        assert find_parked(ledger).keys() == set(REFUSED)
        assert ledger.accounts.by_id("google_ads")[TEST].is_test


def find_parked(ledger: Ledger) -> dict[str, str]:
    return {each.name: each.error_class for each in ledger.retry_queue.list_parkings("google_ads")}
