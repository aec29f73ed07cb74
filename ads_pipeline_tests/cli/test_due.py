"""`state due`, `state park` and `state release`; and what `state why` and `state inspect` say of the next try."""

from datetime import timedelta

import pytest

from ads_pipeline.cli.explain.forecast import forecast_retries
from ads_pipeline.domain.retry import Lane, RetryPolicy
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.control.leases import Lease
from ads_pipeline.ledger.values import FailedFetch
from ads_pipeline_tests.cli.actions.builders import (
    BECAUSE,
    DAY,
    FAILED,
    GOOD,
    MARKED,
    TODAY,
    digest,
    fail,
    ledger_at,
    recent,
    stock,
    url_of,
)
from ads_pipeline_tests.cli.running import CommandLine
from ads_pipeline_tests.ledger.builders import FakeClock

POLICY = RetryPolicy()


@pytest.fixture
def cli(empty_cli: CommandLine) -> CommandLine:
    stock(empty_cli)
    return empty_cli


def test_what_is_asked_for_is_due(cli: CommandLine) -> None:
    """A retry and a reprocess, each with who asked and why; what is parked is not; and asking writes nothing."""
    cli.run("state", "retry", str(FAILED[0]), str(FAILED[1]), *BECAUSE, "--operator", "ada")
    cli.run("state", "reprocess", str(GOOD[0]), "--reason", "restated", "--operator", "bob")
    cli.run("state", "park", "--customer", FAILED[1].customer_id, "--reason", "no access")
    before = digest(cli)
    ended = cli.run("state", "due", "--json")
    assert [(each["customer_id"], each["lane"], each["kind"], each["why"]) for each in ended.objects] == [
        ("101", "fresh", "retry", "ada: the source was down"),
        ("120", "fresh", "reprocess", "bob: restated"),
    ]
    assert ended.err.startswith("2 partitions due: 2 fresh\nparked: account 102 since 20")
    assert digest(cli) == before
    screen = cli.run("state", "due")
    assert (screen.code, screen.err) == (0, "")
    assert screen.lines[0].split() == ["customer", "query", "day", "kind", "since", "why"]
    assert max(map(len, screen.lines)) <= 80
    assert cli.run("state", "due", "--customer", "103").lines[0] == "nothing is due"
    assert len(cli.run("state", "due", "--limit", "1", "--json").objects) == 1
    assert "more are due; --limit shows more of them" in cli.run("state", "due", "--limit", "1").lines


def test_a_failure_is_due_when_its_time_has_come(cli: CommandLine) -> None:
    """Planned failures come with their class and their number, in their lane."""
    with ledger_at(cli) as ledger:
        ledger.retry_queue.schedule_failures(POLICY, today=TODAY)
        planned = ledger.retry_queue.find_scheduled(FAILED)
        assert set(planned) == set(FAILED)
    assert cli.run("state", "due").lines == ["nothing is due"]
    clock = FakeClock()
    clock.now = max(each.due_at for each in planned.values() if each.due_at) + timedelta(seconds=1)
    with ControlActions.opened(url_of(cli), clock=clock) as desk:
        due = desk.retry_queue.find_due(POLICY, Lane.FRESH, source="google_ads", today=TODAY)
    assert set(due) == set(FAILED)


def test_what_is_parked_is_released(cli: CommandLine) -> None:
    """Each is an act with its reason; doing it twice finds nothing to do, and both are told in `audit parked`."""
    words = ("--query", "campaign_daily", "--reason", "an unknown field", "--operator", "ada")
    assert cli.run("state", "park", *words).lines[0] == "parked query campaign_daily"
    (parked,) = cli.run("audit", "parked", "--json").objects
    assert (parked["scope"], parked["name"], parked["why"]) == ("query", "campaign_daily", "an unknown field")
    before = digest(cli)
    assert cli.run("state", "park", *words).lines[0].startswith("nothing to park: query campaign_daily since")
    assert digest(cli) == before
    assert "parked        query campaign_daily since" in cli.run("state", "why", str(FAILED[0])).out
    assert cli.run("state", "release", *words).lines[0] == "released query campaign_daily"
    assert cli.run("state", "release", *words).lines == ["nothing to release: query campaign_daily is not parked"]
    assert cli.run("audit", "parked").lines == ["0 parked"]
    acts = cli.run("audit", "actions", "--json").objects
    assert [(each["action"], each["operator"], each["filters"]) for each in acts[:2]] == [
        ("release", "ada", "--query campaign_daily"),
        ("park", "ada", "--query campaign_daily"),
    ]


def test_a_query_that_was_parked_and_removed_can_be_released(cli: CommandLine) -> None:
    """The query file may have lost it since; what is parked is known by the ledger."""
    failed = FailedFetch(key=recent(7, "old_query"), error_class="unrecognized_field", error_message="no such field")
    with ledger_at(cli) as ledger:
        ledger.record_failed_fetches([failed], POLICY, today=TODAY)
    assert cli.run("state", "release", "--query", "old_query", *BECAUSE).lines[0] == "released query old_query"


@pytest.mark.parametrize("words", [(), ("--customer", "101", "--query", "campaign_daily")])
@pytest.mark.parametrize("verb", ["park", "release"])
def test_exactly_one_thing_is_parked(cli: CommandLine, verb: str, words: tuple[str, ...]) -> None:
    """An account or a query, never neither and never both."""
    ended = cli.run("state", verb, *words, *BECAUSE)
    assert (ended.code, ended.out) == (64, "")
    assert "name either an account by --customer or a query by --query" in ended.err


def test_why_tells_when_it_is_tried_next(cli: CommandLine) -> None:
    """The moment and the reason, for people and for programs, and what to do about it."""
    failed, marked = (cli.run("state", "why", str(each)) for each in (FAILED[0], MARKED))
    assert "(contract: failure 1 of 6)" in failed.out
    assert f"ads-pipeline state retry 101/campaign_daily/{DAY}" in " ".join(failed.out.split())
    assert "none, it is terminal: marked as terminal" in " ".join(marked.out.split())
    assert f"state retry 110/campaign_daily/{DAY} --reason TEXT --clear-terminal" in " ".join(marked.out.split())
    (known,) = cli.run("state", "why", str(FAILED[0]), "--json").objects
    assert (known["next_try_why"], known["terminal"], known["parked"]) == ("contract: failure 1 of 6", None, [])
    assert known["next_try_at"] > known["updated_at"]
    (known,) = cli.run("state", "why", str(MARKED), "--json").objects
    assert (known["terminal"], known["marked_terminal"], known["next_try_at"]) == ("marked", True, None)
    cli.run("state", "retry", str(FAILED[0]), *BECAUSE)
    (known,) = cli.run("state", "why", str(FAILED[0]), "--json").objects
    assert (known["requested"], known["next_try_at"]) == ("retry", known["requested_at"])
    assert known["requested_by_act"] == known["acts"][-1]["action_id"]
    assert "it was asked for (retry), see ads-pipeline state due" in known["next"][-1]


def test_who_is_at_work_is_told(cli: CommandLine) -> None:
    """A partition that a live run holds is not due, and the run is named with how long it has it at least."""
    cli.run("state", "retry", str(FAILED[0]), *BECAUSE)
    with Lease.opened(url_of(cli), "engine-1", duration=timedelta(minutes=5)) as lease:
        lease.claim([FAILED[0]])
        told = " ".join(cli.run("state", "why", str(FAILED[0])).out.split())
        assert "at work run engine-1 holds it, at least until 20" in told
        (known,) = cli.run("state", "why", str(FAILED[0]), "--json").objects
        assert known["held_by_run"] == "engine-1"
        assert cli.run("state", "due").lines == ["nothing is due"]
    assert len(cli.run("state", "due", "--json").objects) == 1


def test_inspect_tells_it_too(cli: CommandLine) -> None:
    """Below the table, beside what the validator said, and in each object."""
    cli.run("state", "park", "--customer", "102", *BECAUSE)
    told = " ".join(cli.run("state", "inspect").out.split())
    assert f"google_ads/102/campaign_daily/{DAY}/r1: its rows are bad parked: account 102 since 20" in told
    assert f"google_ads/110/campaign_daily/{DAY}/r1: its rows are bad next try: none, it is terminal" in told
    found = {each["customer_id"]: each for each in cli.run("state", "inspect", "--json").objects}
    assert (found["102"]["parked"], found["102"]["next_try_at"]) == (["customer 102"], None)
    assert found["110"]["terminal"] == "marked"
    assert found["120"]["next_try_at"] is None


def test_a_taken_back_partition_is_not_tried_again_by_itself(cli: CommandLine) -> None:
    """Fetched again the data would be the same, so an earlier run or an order is what helps."""
    with ledger_at(cli) as ledger:
        fail(ledger, [recent(130)], "r1", "demoted")
    told = " ".join(cli.run("state", "why", str(recent(130))).out.split())
    assert "next try none: demoted: no attempt cures it" in told
    assert f"give an earlier run back: ads-pipeline state restore 130/campaign_daily/{DAY}" in told


def test_a_failed_fetch_holds_a_request_back(cli: CommandLine) -> None:
    """What was asked for and could not be fetched waits as any failure does, and says from when on it is tried."""
    cli.run("state", "retry", str(FAILED[0]), *BECAUSE)
    failed = FailedFetch(key=FAILED[0], error_class="fetch_failed", error_message="no answer")
    with ledger_at(cli) as ledger:
        (planned,) = ledger.record_failed_fetches([failed], POLICY, today=TODAY)
        state = ledger.state(FAILED[0])
        found = forecast_retries(ledger, [state], POLICY, now=planned.failed_at)[FAILED[0]]
    assert found.request is not None
    assert found.next_at == planned.due_at
    assert found.describe(planned.failed_at)["next try"].endswith("(fetch_failed: failure 2 of 6)")
    assert cli.run("state", "due").lines == ["nothing is due"]
