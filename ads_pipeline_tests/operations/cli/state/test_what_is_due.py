"""Tests that `state inspect`, `state due` and `state why` give one answer to what is due, where no sensor runs."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.builders import FakeClock
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.cli.state.builders import ledger_url, recent_key, record_failures

LATE, RECENT, DEMOTED = recent_key(101), recent_key(102), recent_key(103)


@pytest.fixture(params=["sqlite", "postgres"])
def cli(request: pytest.FixtureRequest, tmp_path: Path) -> CommandLine:
    """A ledger with a failure of an hour ago, a new one and a demotion; nothing has scheduled a retry."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    more = {"ADS_PIPELINE_DATABASE_URL": url} if request.param == "postgres" else {}
    cli = CommandLine(home=tmp_path / "home", more=more)
    clock = FakeClock()
    clock.now = datetime.now(UTC) - timedelta(hours=1)
    with Ledger.opened(ledger_url(cli), clock=clock) as ledger:
        record_failures(ledger, [LATE])
        record_failures(ledger, [DEMOTED], error_class="demoted")
        clock.now = datetime.now(UTC)
        record_failures(ledger, [RECENT])
    return cli


def test_inspect_due_and_why_agree(cli: CommandLine) -> None:
    """A failure whose delay has passed is due in all three; a new failure and a demotion are due in none."""
    (due,) = cli.run("state", "due", "--json").objects
    assert (due["customer_id"], due["kind"], due["why"]) == (
        "101",
        "failed",
        "rows violate the contract; attempt 2 of 6",
    )
    inspected = {each["customer_id"]: each for each in cli.run("state", "inspect", "--json").objects}
    assert inspected["101"]["next_retry_at"] == due["since"]
    assert inspected["103"]["next_retry_at"] is None
    text = " ".join(cli.run("state", "inspect", "--status", "failed").out.split())
    assert text.count("due since") == 1
    why = " ".join(cli.run("state", "why", str(LATE)).out.split())
    assert "next retry due since " in why
    assert "due since" not in " ".join(cli.run("state", "why", str(RECENT)).out.split())


def test_why_does_not_promise_a_retry_that_is_overdue(cli: CommandLine) -> None:
    """For a due partition the next step is to fetch it; before that, `state why` names the time and the list."""
    (late,) = cli.run("state", "why", str(LATE), "--json").objects
    assert late["next"][0].startswith("its retry is due since ")
    assert late["next"][0].endswith("seal a run under a new run_id; ads-pipeline state due lists it")
    assert "wait" not in " ".join(late["next"])
    (recent,) = cli.run("state", "why", str(RECENT), "--json").objects
    assert recent["next"][0].startswith("from ")
    assert "ads-pipeline state due lists it for extractors; to retry now: " in recent["next"][0]
