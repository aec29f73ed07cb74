"""`queries check --online`: Google says which queries it accepts, for one operation each."""

from pathlib import Path

import pytest

from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import RequestFailure
from ads_pipeline_tests.google_ads.builders import CUSTOMER, behaving
from ads_pipeline_tests.operations.cli.running import CommandLine


@pytest.fixture
def cli(server: LoopbackServer, sqlite_url: str, tmp_path: Path) -> CommandLine:
    return CommandLine(home=tmp_path / "home", more={"ADS_PIPELINE_GOOGLE_ADS": str(server.configuration)})


def test_accepted_queries_cost_an_operation_each(server: LoopbackServer, cli: CommandLine) -> None:
    """Google accepts the shipped queries; it counts one operation for each, and so does the ledger."""
    done = cli.run("queries", "check", "--online", CUSTOMER)
    assert (done.code, done.lines[-4:]) == (
        0,
        [
            "campaign_daily: accepted by Google",
            "ad_group_daily: accepted by Google",
            "keyword_daily: accepted by Google",
            "search_term_daily: accepted by Google",
        ],
    )
    assert server.operations() == {CUSTOMER: 4}


def test_refusal_is_shown_with_the_next_move(server: LoopbackServer, cli: CommandLine) -> None:
    """A refused account fails the command, with the class, the request id and what to do. It costs one operation."""
    server.answer(behaving(needs_login="1000000009"))
    done = cli.run("queries", "check", "--online", CUSTOMER)
    assert done.code == 1
    refused, left = done.lines[-2:]
    assert refused.startswith("campaign_daily: permission_denied: authorization_error.USER_PERMISSION_DENIED")
    assert refused.endswith(f"then ask again: ads-pipeline queries check --online {CUSTOMER}")
    assert left.endswith("the answer would be the same: ad_group_daily, keyword_daily, search_term_daily")
    assert server.operations() == {CUSTOMER: 1}


def test_odd_answer_about_one_query_leaves_the_others(server: LoopbackServer, cli: CommandLine) -> None:
    """An answer that cannot be read fails its own query; the others are asked."""
    server.answer(behaving(failure=RequestFailure(code="UNKNOWN", details_code=7, times=1)))
    done = cli.run("queries", "check", "--online", CUSTOMER)
    assert (done.code, server.operations()) == (1, {CUSTOMER: 4})
    assert done.lines[-4].startswith("campaign_daily: google_ads_error: an answer that the client cannot read")
    assert done.lines[-3:] == [f"{name}_daily: accepted by Google" for name in ("ad_group", "keyword", "search_term")]


def test_asking_google_needs_the_setting(sqlite_url: str, tmp_path: Path) -> None:
    """Without ADS_PIPELINE_GOOGLE_ADS nothing is asked, and the message names the setting."""
    done = CommandLine(home=tmp_path / "home").run("queries", "check", "--online", CUSTOMER)
    assert done.code == 78
    assert "ADS_PIPELINE_GOOGLE_ADS: is off" in done.err
