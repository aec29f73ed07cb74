"""The commands in the messages of faults: each succeeds where it is printed, and together they lift the parking."""

import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ads_pipeline.domain.fetching.retry_policy import ERROR_POLICIES, PARKING_SCOPES, RetryPolicy
from ads_pipeline.google_ads.configuration import read_configuration
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import Behaviour, ListedAccount, RequestFailure, Scenario
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.pipeline.extraction.google_ads_extraction import Extraction
from ads_pipeline_tests.google_ads.builders import CUSTOMER, LOGIN, failing, partitions, shipped_apis
from ads_pipeline_tests.operations.cli.running import CommandLine

COMMAND = re.compile(r"ads-pipeline [a-z]+ [a-z]+(?: --[a-z-]+(?: [\w.-]+)?)*")
ACCOUNTS = {LOGIN: (ListedAccount(customer_id=LOGIN, level=0, manager=True), ListedAccount(customer_id=CUSTOMER))}
DAY = partitions(1, first=datetime(2026, 10, 1, tzinfo=UTC).date())[0]
FAILURES = {
    "credentials_refused": failing("authorization_error", "PROJECT_DISABLED"),
    "the API is not enabled": RequestFailure(code="PERMISSION_DENIED", message="The API has not been used before."),
    "version_ended": RequestFailure(code="UNIMPLEMENTED", message="GRPC target method can't be resolved"),
    "customer_not_enabled": failing("authorization_error", "CUSTOMER_NOT_ENABLED"),
    "permission_denied": failing("authorization_error", "USER_PERMISSION_DENIED"),
    "unrecognized_field": failing("query_error", "UNRECOGNIZED_FIELD"),
    "query_refused": failing("query_error", "BAD_VALUE"),
    "too wide for a single day": failing("query_error", "DATE_RANGE_TOO_WIDE"),
}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    (tmp_path / "home").mkdir()
    with Ledger.opened(f"sqlite:///{tmp_path / 'home' / 'ledger.db'}") as opened:
        yield opened


@pytest.mark.invariant("L7")
@pytest.mark.parametrize("name", FAILURES)
def test_commands_of_a_refusal_succeed_and_lift_it(
    server: LoopbackServer, ledger: Ledger, tmp_path: Path, name: str
) -> None:
    """Once the cause is gone, each printed command succeeds, nothing stays parked, and the day is fetched."""
    configuration = read_configuration(str(server.configuration), {})
    raw = RawRuns(tmp_path / "home" / "raw", is_in_use=lambda: False)

    def fetch() -> tuple[int, list[str]]:
        source = Extraction(apis=shipped_apis(), configuration=configuration, ledger=ledger).source(
            raw, SealedRuns(raw=raw, runs=ledger.runs)
        )
        landed = source.land([DAY])
        ledger.failed_fetches.record(landed.failed, RetryPolicy())
        assert {PARKING_SCOPES[ERROR_POLICIES[each.error_class]] for each in landed.failed} <= {
            each.scope for each in ledger.retry_queue.list_parkings("google_ads")
        }
        return len(landed.runs), [each.error_message for each in landed.failed]

    server.answer(Scenario(clients=ACCOUNTS, customers={CUSTOMER: Behaviour(failure=FAILURES[name])}))
    landed, (message,) = fetch()
    commands = COMMAND.findall(message)
    assert (landed, commands[-1].startswith("ads-pipeline state release --")) == (0, True)
    server.answer(Scenario(clients=ACCOUNTS))
    cli = CommandLine(home=tmp_path / "home", more={"ADS_PIPELINE_GOOGLE_ADS": str(server.configuration)})
    for command in commands:
        words = shlex.split(command)[1:]
        done = cli.run(*words, *(["--yes"] if "release" in words else []))
        assert done.code == 0, (command, done.out, done.err)
    assert ledger.retry_queue.list_parkings("google_ads") == []
    assert fetch() == (1, [])
