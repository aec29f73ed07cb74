"""Secrets of the client, and texts of rows, in everything that good and failed runs leave behind."""

import json
import logging
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.configuration import read_configuration
from ads_pipeline.google_ads.loopback.credentials import ACCESS_TOKEN, DEVELOPER_TOKEN, KEY_FILE
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import Behaviour, GoogleError, ListedAccount, RequestFailure, Scenario
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline_tests.builders import key
from ads_pipeline_tests.google_ads.builders import LOGIN
from ads_pipeline_tests.orchestration.builders import open_location

GOOD, ECHOING, CUT = "2000000001", "2000000002", "2000000003"
ROW_TEXT = "Text №"


class Collector(logging.Handler):
    """Keeps every record as text."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.getMessage()} {record.exc_info}")


@pytest.fixture
def logged() -> Iterator[Collector]:
    """Every log record at DEBUG. google-api-core keeps the logger `google` from propagating to the root."""
    collector, names = Collector(), (None, "google", "google.ads.googleads", "google.auth", "urllib3")
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).addHandler(collector)
        logging.getLogger(name).setLevel(logging.DEBUG)
    yield collector
    for name, level in before.items():
        logging.getLogger(name).removeHandler(collector)
        logging.getLogger(name).setLevel(level)


def secrets_of(server: LoopbackServer) -> list[str]:
    private_key = json.loads((server.folder / KEY_FILE).read_text())["private_key"].splitlines()[1:-1]
    return [ACCESS_TOKEN, DEVELOPER_TOKEN, *private_key]


def scenario() -> Scenario:
    """A good account, one whose refusal repeats all tokens, and one whose stream breaks; a manager above them."""
    echo = GoogleError(category="authorization_error", number=2, message=f"{ACCESS_TOKEN} and {DEVELOPER_TOKEN}")
    below = tuple(ListedAccount(customer_id=each) for each in (GOOD, ECHOING, CUT))
    return Scenario(
        clients={LOGIN: (ListedAccount(customer_id=LOGIN, level=0, manager=True), *below)},
        customers={
            ECHOING: Behaviour(failure=RequestFailure(code="PERMISSION_DENIED", errors=(echo,))),
            CUT: Behaviour(failure=RequestFailure(code="UNAVAILABLE", after_batches=1)),
        },
    )


@pytest.mark.invariant("X1")
@pytest.mark.timeout(900)
def test_no_secret_is_left_behind(
    server: LoopbackServer, tmp_path: Path, spark: SparkSession, logged: Collector, capfd: pytest.CaptureFixture[str]
) -> None:
    """No secret is in a log at DEBUG, an event, a row, a Dagster record or a file, and no row's text in a log."""
    server.answer(scenario())
    home, first = tmp_path / "home", datetime.now(UTC).date() - timedelta(days=5)
    with open_location(home, spark, start_date=first, google_ads=str(server.configuration)) as location:
        discover = location.defs.resolve_job_def("discover_accounts")
        assert discover.execute_in_process(instance=location.instance).success
        keys = [key(each, day=first) for each in (GOOD, ECHOING, CUT)]
        assert location.run(keys, [Names().raw("campaign_daily")]).success
        failures = location.deployment.ledger.retry_queue.find_failures(keys)
        assert {each.error_class for each in failures.values()} == {"permission_denied", "transient"}
    texts = "\n".join([*logged.texts, *capfd.readouterr()])
    assert "google" in texts
    assert "[secret] and [secret]" in texts
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(path.suffix == ".db" for path in files)
    for secret in secrets_of(server):
        assert secret not in texts
        assert [path for path, content in files.items() if secret.encode() in content] == []
    assert ROW_TEXT not in texts
    with_rows = {path.suffix for path, content in files.items() if ROW_TEXT.encode() in content}
    assert with_rows <= {".jsonl", ".parquet"}  # the payload, and the staged rows of the warehouse


@pytest.mark.invariant("X1")
def test_refused_token_names_no_secret(server: LoopbackServer) -> None:
    """Credentials that the token server refuses are an error of the source, without the key or the address."""
    server.answer(Scenario(refuse_token=True))
    clients = Clients(read_configuration(str(server.configuration), {}), "v26")
    with pytest.raises(Exception, match="invalid_grant") as caught:
        clients.search_stream(customer_id=GOOD, login_customer_id=LOGIN, query=f"SELECT {date(2026, 10, 1)}")
    for secret in secrets_of(server):
        assert secret not in str(caught.value)
