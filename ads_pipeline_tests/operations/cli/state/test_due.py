"""Tests `state due`, `state park` and `state release`, and the retry forecasts of `state why` and `state inspect`."""

import re
from datetime import timedelta

import pytest

from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.retry_policy import Lane, RetryPolicy
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.operations.cli.state.forecast import describe_forecast
from ads_pipeline_tests.ledger.builders import FakeClock, accepted_runs, open_lease, record_verdict, rejection, run
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.cli.state.builders import (
    DAY,
    FAILED,
    MARKED,
    REASON,
    SUCCESSFUL,
    TODAY,
    fill_ledger,
    ledger_url,
    open_ledger,
    read_all_rows,
    recent_key,
)

POLICY = RetryPolicy()


@pytest.fixture
def cli(empty_cli: CommandLine) -> CommandLine:
    fill_ledger(empty_cli)
    return empty_cli


def test_open_requests_are_due(cli: CommandLine) -> None:
    """Requests are listed with operator and reason; parked ones are not, and listing writes nothing."""
    cli.run("state", "retry", str(FAILED[0]), str(FAILED[1]), *REASON, "--operator", "ada")
    cli.run("state", "reprocess", str(SUCCESSFUL[0]), "--reason", "restated", "--operator", "bob")
    cli.run("state", "park", "--customer", FAILED[1].customer_id, "--reason", "no access")
    before = read_all_rows(cli)
    result = cli.run("state", "due", "--json")
    assert [(each["customer_id"], each["lane"], each["kind"], each["why"]) for each in result.objects] == [
        ("101", "fresh", "retry", "ada: the source was down"),
        ("120", "fresh", "reprocess", "bob: restated"),
    ]
    assert result.err.startswith("2 partitions due: 2 fresh\nparked: account 102 since 20")
    assert read_all_rows(cli) == before
    table = cli.run("state", "due")
    assert (table.code, table.err) == (0, "")
    assert table.lines[0].split() == ["customer", "query", "day", "kind", "since", "why"]
    assert max(map(len, table.lines)) <= 80
    assert cli.run("state", "due", "--customer", "103").lines[0] == "nothing that matches --customer 103 is due"
    assert len(cli.run("state", "due", "--limit", "1", "--json").objects) == 1
    assert "more are due; --limit shows more" in cli.run("state", "due", "--limit", "1").lines


def test_failure_is_due_after_its_delay(cli: CommandLine) -> None:
    """Scheduled retries become due in their lane."""
    with open_ledger(cli) as ledger:
        ledger.retry_queue.schedule_failures(POLICY, today=TODAY)
        scheduled = ledger.retry_queue.find_scheduled(FAILED)
        assert set(scheduled) == set(FAILED)
    assert cli.run("state", "due").lines == ["nothing is due"]
    clock = FakeClock()
    clock.now = max(each.due_at for each in scheduled.values() if each.due_at) + timedelta(seconds=1)
    with Ledger.opened(ledger_url(cli), clock=clock) as ledger:
        due = ledger.retry_queue.find_due(POLICY, Lane.FRESH, source="google_ads", today=TODAY)
    assert {retry.key for retry in due} == set(FAILED)


def test_park_and_release(cli: CommandLine) -> None:
    """Both are logged with their reason; repeating one changes nothing; `--list parked` lists parkings."""
    options = ("--query", "campaign_daily", "--reason", "an unknown field", "--operator", "ada")
    parked = cli.run("state", "park", *options)
    assert (parked.code, parked.lines[-2]) == (0, "park: 1 query changed")
    (listed,) = cli.run("state", "inspect", "--list", "parked", "--json").objects
    assert (listed["scope"], listed["name"], listed["why"]) == ("query", "campaign_daily", "an unknown field")
    before = read_all_rows(cli)
    again = cli.run("state", "park", *options)
    assert (again.code, again.lines[0]) == (3, "nothing to park")
    reason = "parked_by_operator: an unknown field"
    assert re.search(
        rf"skipped: query campaign_daily: already parked since 20.+Z: {reason}", " ".join(again.out.split())
    )
    assert read_all_rows(cli) == before
    assert "parked        query campaign_daily since" in cli.run("state", "why", str(FAILED[0])).out
    dry = cli.run("state", "release", *options, "--dry-run", "--json")
    assert [(each["name"], each["now"], each["result"]) for each in dry.objects] == [
        ("campaign_daily", "parked", "planned")
    ]
    assert cli.run("state", "release", *options).lines[-2] == "release: 1 query changed"
    released = cli.run("state", "release", *options)
    assert (released.code, released.lines) == (
        3,
        ["nothing to release", "skipped: query campaign_daily: neither parked nor on hold"],
    )
    assert cli.run("state", "inspect", "--list", "parked").lines == ["0 parked"]
    actions = cli.run("audit", "--json").objects
    assert [(each["action"], each["operator"], each["filters"]) for each in actions[:2]] == [
        ("release", "ada", "--query campaign_daily"),
        ("park", "ada", "--query campaign_daily"),
    ]


def test_parked_query_that_is_undefined_can_be_released(cli: CommandLine) -> None:
    """A parked query may have been removed from the query file since."""
    failed = FailedFetch(
        key=recent_key(7, "old_query"), error_class="unrecognized_field", error_message="no such field"
    )
    with open_ledger(cli) as ledger:
        ledger.failed_fetches.record([failed], POLICY)
    assert cli.run("state", "release", "--query", "old_query", *REASON).lines[-2] == "release: 1 query changed"


@pytest.mark.parametrize("options", [(), ("--customer", "101", "--query", "campaign_daily")])
@pytest.mark.parametrize("verb", ["park", "release"])
def test_park_needs_exactly_one_account_or_query(cli: CommandLine, verb: str, options: tuple[str, ...]) -> None:
    """Neither and both are refused with exit code 64."""
    result = cli.run("state", verb, *options, *REASON)
    assert (result.code, result.out) == (64, "")
    assert "give one of them: an account by --customer, a query by --query" in result.err


def test_why_shows_the_next_retry(cli: CommandLine) -> None:
    """Time and reason of the next retry appear as text and JSON, with the next step."""
    failed, marked = (cli.run("state", "why", str(each)) for each in (FAILED[0], MARKED))
    assert "(rows violate the contract; attempt 2 of 6)" in " ".join(failed.out.split())
    assert f"ads-pipeline state retry 101/campaign_daily/{DAY}" in " ".join(failed.out.split())
    assert "none, terminal: marked as terminal" in " ".join(marked.out.split())
    assert f"state retry 110/campaign_daily/{DAY} --reason TEXT --clear-terminal" in " ".join(marked.out.split())
    (fields,) = cli.run("state", "why", str(FAILED[0]), "--json").objects
    assert (fields["next_retry_reason"], fields["terminal"], fields["parked"]) == (
        "rows violate the contract; attempt 2 of 6",
        None,
        [],
    )
    assert fields["next_retry_at"] > fields["updated_at"]
    (fields,) = cli.run("state", "why", str(MARKED), "--json").objects
    assert (fields["terminal"], fields["marked_terminal"], fields["next_retry_at"]) == ("marked", True, None)
    cli.run("state", "retry", str(FAILED[0]), *REASON)
    (fields,) = cli.run("state", "why", str(FAILED[0]), "--json").objects
    assert (fields["requested"], fields["next_retry_at"]) == ("retry", fields["requested_at"])
    assert fields["requested_by_action"] == fields["actions"][-1]["action_id"]
    assert "it is requested (retry), ads-pipeline state due lists it" in fields["next"][-1]


def test_claimed_partition_is_not_due(cli: CommandLine) -> None:
    """A partition that a live run claims is not due; `state why` names the run and the end of its lease."""
    cli.run("state", "retry", str(FAILED[0]), *REASON)
    with open_lease(ledger_url(cli), "engine-1", duration=timedelta(minutes=5)) as lease:
        lease.claim([FAILED[0]])
        text = " ".join(cli.run("state", "why", str(FAILED[0])).out.split())
        assert "claim run engine-1 holds it, at least until 20" in text
        (fields,) = cli.run("state", "why", str(FAILED[0]), "--json").objects
        assert fields["held_by_run"] == "engine-1"
        assert cli.run("state", "due").lines == ["nothing is due"]
    assert len(cli.run("state", "due", "--json").objects) == 1


def test_inspect_shows_forecasts(cli: CommandLine) -> None:
    """`state inspect` shows forecasts below the table and in each JSON object."""
    cli.run("state", "park", "--customer", "102", *REASON)
    text = " ".join(cli.run("state", "inspect", "--status", "failed").out.split())
    assert f"google_ads/102/campaign_daily/{DAY}/r1: its rows are bad parked: account 102 since 20" in text
    assert f"google_ads/110/campaign_daily/{DAY}/r1: its rows are bad next retry: none, terminal" in text
    found = {each["customer_id"]: each for each in cli.run("state", "inspect", "--json").objects}
    assert (found["102"]["parked"], found["102"]["next_retry_at"]) == (["customer 102"], None)
    assert found["110"]["terminal"] == "marked"
    assert found["120"]["next_retry_at"] is None


def test_demoted_partition_is_not_retried(cli: CommandLine) -> None:
    """There is no automatic retry. The advice is to publish the run again, or to fetch the day again."""
    with open_ledger(cli) as ledger:
        accepted_runs(ledger, [recent_key(130)])
        demotion = rejection(run(recent_key(130), "r1"), "wrong", validation_id="d", error_class="demoted")
        record_verdict(ledger, demotion)
    text = " ".join(cli.run("state", "why", str(recent_key(130))).out.split())
    assert "next retry none: an operator demoted the run; to fetch the day again: ads-pipeline state retry" in text
    assert f"To publish it again: ads-pipeline state restore 130/campaign_daily/{DAY} --reason TEXT --run r1" in text


def test_failed_fetch_delays_a_request(cli: CommandLine) -> None:
    """A request whose fetch failed waits for the retry of that failure."""
    cli.run("state", "retry", str(FAILED[0]), *REASON)
    failed = FailedFetch(key=FAILED[0], error_class="fetch_failed", error_message="no answer")
    with open_ledger(cli) as ledger:
        (retry,) = ledger.failed_fetches.record([failed], POLICY).values()
        assert retry is not None
        state = ledger.states.get(FAILED[0])
        forecast = ledger.retry_queue.forecast([state], POLICY)[FAILED[0]]
    assert forecast.request is not None
    assert forecast.next_at == retry.due_at
    assert describe_forecast(forecast)["next retry"].endswith("(fetch_failed; attempt 3 of 6)")
    assert cli.run("state", "due").lines == ["nothing is due"]
