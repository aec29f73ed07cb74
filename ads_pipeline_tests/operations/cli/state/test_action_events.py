"""Tests the run events of action commands: each command is a run that ends, and its snapshot shows the end."""

from datetime import timedelta
from pathlib import Path

import pytest

from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline_tests.ledger.builders import open_part
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.cli.state.builders import FAILED, REASON, SUCCESSFUL, fill_ledger, ledger_url


@pytest.fixture(params=["sqlite", "postgres"])
def cli(request: pytest.FixtureRequest, tmp_path: Path) -> CommandLine:
    """The command line of a filled ledger, once for each database."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    more = {"ADS_PIPELINE_DATABASE_URL": url} if request.param == "postgres" else {}
    cli = CommandLine(home=tmp_path / "home", more=more)
    fill_ledger(cli)
    return cli


@pytest.mark.invariant("E10", "E14")
@pytest.mark.parametrize(
    "words",
    [
        ("state", "retry", str(FAILED[0])),
        ("state", "withdraw", str(SUCCESSFUL[0])),
        ("state", "enqueue", "101/campaign_daily/2026-03-01"),
    ],
    ids=lambda words: str(words[1]),
)
def test_action_folds_its_own_events(cli: CommandLine, words: tuple[str, ...]) -> None:
    """After an action, without any sensor, no snapshot lags and `events tail --snapshot` shows the run as ended."""
    assert cli.run(*words, *REASON).code == 0
    (newest, *_) = cli.run("events", "runs", "--json").objects
    assert newest["status"] == "COMPLETED"
    (snapshot,) = cli.run("events", "tail", "--snapshot", newest["engine_run_id"], "--json").objects
    assert (snapshot["status"], snapshot["projected_seq"]) == ("COMPLETED", snapshot["events"])
    with open_part(EventReader, ledger_url(cli)) as reader:
        assert reader.get_lag() == timedelta(0)
