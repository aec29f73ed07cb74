"""The sensor `notifications`, tick by tick, against a real webhook server."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from ads_pipeline.domain.days.conditions import Condition
from ads_pipeline.domain.fetching.quota import Hold
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.reason import Reason
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.events.completed_runs import RunCompletionLog
from ads_pipeline.ledger.events.event_log import PLAN_VERSION
from ads_pipeline.ledger.events.new_events import LogPosition
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.operations.notifications.notices import KINDS, Incident
from ads_pipeline.operations.notifications.outbox import BLOCKED_INTERVAL, LONGEST_DELAY, Outbox, Pending
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.sensors.notifications import (
    INTERVAL_SECONDS,
    build_notification_sensor,
)
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    action_request,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
    run,
    sealed_runs,
)
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.orchestration.builders import Location, open_location
from ads_pipeline_tests.orchestration.sensors.ticks import tick
from ads_pipeline_tests.webhook_server import SECRET, WebhookServer, answer_with, close_without_answer, running_server

INTERVAL = timedelta(seconds=INTERVAL_SECONDS)
FIVE_MINUTES = timedelta(minutes=5)
NO_SPARK = cast("SparkSession", None)
TODAY = datetime.now(UTC).date()


@dataclass(slots=True, kw_only=True)
class Deployment:
    """A code location whose sensor `notifications` ticks every half minute."""

    location: Location
    clock: FakeClock
    cursor: str | None = None
    last: dg.SensorResult | None = None

    @property
    def ledger(self) -> Ledger:
        return self.location.deployment.ledger

    @property
    def said(self) -> str:
        assert self.last is not None
        assert self.last.skip_reason is not None
        return str(self.last.skip_reason.skip_message)

    def tick(self, times: int = 1, *, every: timedelta = INTERVAL) -> None:
        for _ in range(times):
            self.last = tick(self.location, "notifications", cursor=self.cursor)
            self.cursor = self.last.cursor or self.cursor
            self.clock.tick(every)

    def reject(self, customer: int = 1, days_ago: int = 1) -> PartitionKey:
        partition = key(customer, days_ago)
        judged = registered_runs(self.ledger, partition, f"r{customer}-{days_ago}")[0]
        record_verdict(self.ledger, rejection(judged, "clicks must be at least 0"))
        return partition


def key(customer: int = 1, days_ago: int = 1) -> PartitionKey:
    day = TODAY - timedelta(days=days_ago)
    return PartitionKey(source="google_ads", customer_id=str(customer), query_name="campaign_daily", logical_date=day)


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def clock() -> FakeClock:
    """Three hours before the deadline of yesterday. The database has its own clock."""
    clock = FakeClock()
    clock.now = datetime(TODAY.year, TODAY.month, TODAY.day, 9, tzinfo=UTC)
    return clock


@pytest.fixture
def deployment(tmp_path: Path, server: WebhookServer, clock: FakeClock) -> Iterator[Deployment]:
    with open_location(tmp_path / "home", NO_SPARK, clock=clock, webhook=server.url) as location:
        opened = Deployment(location=location, clock=clock)
        opened.tick()
        yield opened


def test_sensor_runs_by_default_only_with_a_webhook(clock: FakeClock) -> None:
    """Elsewhere it is stopped, so that it does not tick in vain."""
    statuses = [
        build_notification_sensor(Names(), has_webhook=has_webhook, now=clock).default_status
        for has_webhook in (False, True)
    ]
    assert statuses == [dg.DefaultSensorStatus.STOPPED, dg.DefaultSensorStatus.RUNNING]


def test_started_without_a_webhook_it_says_so(tmp_path: Path, clock: FakeClock) -> None:
    """A webhook that is set later gets nothing of the time before."""
    with open_location(tmp_path / "home", NO_SPARK, clock=clock) as location:
        silent = Deployment(location=location, clock=clock)
        silent.reject()
        silent.tick()
        assert "ADS_PIPELINE_WEBHOOK is not set" in silent.said
        assert Outbox.parse(silent.cursor) is None


def test_first_tick_tells_nothing_of_the_past(deployment: Deployment, server: WebhookServer) -> None:
    """A cursor that somebody has changed starts again in the same way."""
    deployment.reject()
    for cursor in (None, "", "x", "{}", "[]", '{"pending": 1}', "null"):
        deployment.cursor = cursor
        deployment.tick(2)
    assert server.bodies == []


def test_each_kind_arrives_once(deployment: Deployment, server: WebhookServer, tmp_path: Path) -> None:
    """Each with its own key, and with a command that the command line accepts."""
    ledger, origin = (
        deployment.ledger,
        EventOrigin(engine_run_id="run-1", plan_version=PLAN_VERSION, engine_run_ref={"job": "j"}),
    )
    accepted_runs(ledger, [key(1), key(2), key(3), key(4, 2), key(7), key(11)])
    ledger.loads.record_failed({run(key(7), "r1"): "its payload is gone"})
    publish_runs(ledger, *(run(key(each), "r1") for each in (1, 2, 3, 11)))
    ledger.registrations.register(sealed_runs(run(key(8), "r1"), schema_version="9"))  # blocked
    ledger.registrations.register(sealed_runs(run(key(11), "r2"), schema_version="9"))  # blocked_rerun
    ledger.accounts.record_failure("google_ads", "no account is visible")
    tomorrow = deployment.clock.now + timedelta(days=1)  # of another customer: days that wait for it are not overdue
    with Ledger.opened(deployment.location.settings.database_url, clock=deployment.clock) as timed:
        timed.quota.hold(Hold(source="google_ads", customer_id="10", until=tomorrow, why="no quota left"))
    deployment.reject(5)  # rejected
    deployment.reject(6, 300)  # terminal, because it is too old
    ledger.actions.park(
        Parking(source="google_ads", scope="customer", name="9", error_class="operator", why="closed"),
        action_request("a1"),
    )
    demoted = rejection(run(key(1), "r1"), validation_id="v2")
    record_verdict(ledger, replace(demoted, reason=Reason.of_demotion("r1", operator="ada", text="wrong")))
    ledger.actions.execute(Action.WITHDRAW, [key(2)], action_request("a2"))
    record_verdict(ledger, rejection(registered_runs(ledger, key(3), "r2")[0]))
    RunCompletionLog(ledger.engine).complete_run(origin, RunStatus.FAILED, reason="lost")
    deployment.clock.tick(timedelta(hours=3))  # the deadline of customer 4's yesterday passes
    deployment.tick(4)
    assert {fact["kind"] for fact in server.facts} == set(KINDS) - {Condition.MISSING}  # it was late before
    keys = [fact["idempotency_key"] for fact in server.facts]
    assert len(set(keys)) == len(keys)
    cli = CommandLine(home=tmp_path / "home")
    for fact in server.facts:
        _program, *arguments = shlex.split(fact["next_command"])
        done = cli.run(*arguments)
        if fact["kind"] == Incident.DISCOVERY_FAILED:  # it calls Google, for which this home has no credentials
            assert (done.code, "ADS_PIPELINE_GOOGLE_ADS" in done.err) == (78, True)
            continue
        assert (done.code, done.err) == (0, ""), fact["next_command"]


def test_facts_of_one_tick_are_one_request(deployment: Deployment, server: WebhookServer) -> None:
    """Days of several customers with one reason are one line."""
    for customer in (1, 2, 3):
        for days_ago in (1, 2):
            deployment.reject(customer, days_ago)
    deployment.tick(3)
    (message,) = server.messages
    (fact,) = message["facts"]
    assert (fact["kind"], fact["count"], fact["customer_ids"]) == ("rejected", 6, ["1", "2", "3"])
    assert (fact["first_day"], fact["last_day"]) == (str(TODAY - timedelta(days=2)), str(TODAY - timedelta(days=1)))
    assert "6 rejected" in message["text"].splitlines()[0]


@pytest.mark.invariant("O7")
@pytest.mark.parametrize("fault", ["error", "redirect", "hang", "close"])
def test_nothing_is_lost_while_the_server_fails(
    deployment: Deployment, server: WebhookServer, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an hour. The same message is repeated, with growing pauses. What happens meanwhile is in the next."""
    monkeypatch.setattr("ads_pipeline.orchestration.sensors.notifications.CALL_SECONDS", 1.0)
    server.answer = {
        "error": answer_with(500),
        "redirect": answer_with(302, Location=server.url),
        "hang": server.hang,
        "close": close_without_answer,
    }[fault]
    deployment.reject(1)
    deployment.tick(7, every=FIVE_MINUTES)
    deployment.reject(2)
    deployment.tick(7, every=FIVE_MINUTES)
    assert 5 <= len(server.bodies) <= 12
    assert len(set(server.bodies)) == len(set(server.keys)) == 1
    server.answer = answer_with(200)
    monkeypatch.undo()
    deployment.clock.tick(LONGEST_DELAY)
    deployment.tick(3)
    delivered = list(dict.fromkeys(server.bodies))
    assert len(delivered) == 2
    assert [json.loads(body)["facts"][0]["customer_ids"] for body in delivered] == [["1"], ["2"]]
    assert server.bodies.count(delivered[1]) == 1


@pytest.mark.invariant("O7")
def test_server_that_is_down_for_an_hour_gets_everything(tmp_path: Path, clock: FakeClock) -> None:
    """It comes back at the same address."""
    with running_server() as first:
        port = int(first.address.rpartition(":")[2])
    with open_location(tmp_path / "home", NO_SPARK, clock=clock, webhook=first.url) as location:
        deployment = Deployment(location=location, clock=clock)
        deployment.tick()
        deployment.reject(1)
        deployment.tick(7, every=FIVE_MINUTES)
        assert "the webhook did not take the last message; next try at" in deployment.said
        deployment.reject(2)
        deployment.tick(7, every=FIVE_MINUTES)
        with running_server(port) as second:
            clock.tick(LONGEST_DELAY)
            deployment.tick(3)
            assert [fact["customer_ids"] for fact in second.facts] == [["1"], ["2"]]


@pytest.mark.invariant("O7")
def test_lost_tick_repeats_the_same_request(deployment: Deployment, server: WebhookServer) -> None:
    """The daemon may die after the server took the message and before Dagster stored the cursor."""
    deployment.reject()
    deployment.tick()
    stored = deployment.cursor
    deployment.tick()
    deployment.reject(2)
    deployment.cursor = stored
    deployment.tick()
    assert len(server.bodies) == 2
    assert len(set(server.bodies)) == len(set(server.keys)) == 1


def test_recovered_day_is_not_told(deployment: Deployment, server: WebhookServer) -> None:
    """A day that was rejected and accepted between two ticks needs nobody."""
    partition = deployment.reject()
    record_verdict(deployment.ledger, acceptance(registered_runs(deployment.ledger, partition, "later")[0]))
    deployment.tick(3)
    assert server.bodies == []


@pytest.mark.invariant("X1")
def test_webhook_is_never_shown(
    deployment: Deployment, server: WebhookServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither the settings nor the tick, its log, its cursor or the message contain the URL."""
    server.answer = answer_with(500)
    deployment.reject()
    deployment.tick(2)
    assert deployment.said == "the webhook answered 500"
    shown = [repr(deployment.location.settings), repr(deployment.last), str(deployment.cursor), *server.bodies]
    captured = capfd.readouterr()
    assert "the webhook answered 500" in captured.err
    assert [text for text in (*shown, captured.out, captured.err) if SECRET in text] == []


instants = st.datetimes(timezones=st.just(UTC))
outboxes = st.builds(
    Outbox,
    position=st.builds(
        LogPosition, newest_at=st.none() | instants, last_seqs=st.dictionaries(st.text(), st.integers(1, 2**62))
    ),
    deadlines_at=instants,
    parkings=st.lists(st.text()),
    blocked=st.lists(st.text()),
    blocked_at=st.none() | instants,
    pending=st.none()
    | st.builds(Pending, body=st.text(), failures=st.integers(0, 99), not_before=st.none() | instants),
)


@given(outboxes)
def test_cursor_holds_the_whole_state(outbox: Outbox) -> None:
    """The next tick continues where this one ended."""
    assert Outbox.parse(outbox.cursor) == outbox


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda each: (
            st.lists(each)
            | st.dictionaries(
                st.sampled_from(["pending", "newest_at", "last_seqs", "deadlines_at", "parkings"]), each
            )
        ),
    )
)
def test_any_other_cursor_starts_again(document: Any) -> None:
    """A cursor that somebody has changed is never an error."""
    parsed = Outbox.parse(json.dumps(document))
    assert parsed is None or isinstance(parsed, Outbox)


@given(st.integers(0, 200))
def test_delay_grows_to_its_limit(failures: int) -> None:
    """It never shrinks from one failure to the next."""
    now = datetime(2026, 3, 1, tzinfo=UTC)
    first = Pending(body="", failures=failures).postpone(now)
    second = first.postpone(now)
    assert first.not_before is not None
    assert second.not_before is not None
    assert first.not_before <= second.not_before <= now + LONGEST_DELAY
    assert second.failures == failures + 2


@pytest.mark.invariant("L9")
def test_blocked_day_is_sent_once(deployment: Deployment, server: WebhookServer) -> None:
    """Within the interval of the search. A further day of the same cause is silent, another cause is not."""
    for number, version in enumerate(("9", "9", "10"), 1):
        stuck = sealed_runs(run(key(number), "r1"), schema_version=version)
        deployment.ledger.registrations.register(stuck)
        deployment.tick(2 + BLOCKED_INTERVAL // INTERVAL)
    sent = [fact for fact in server.facts if fact["kind"] == Condition.BLOCKED]
    reason = "no contract judges its run: schema_version "
    assert [(fact["customer_ids"], fact["reason"]) for fact in sent] == [
        (["1"], f"{reason}9"),
        (["3"], f"{reason}10"),
    ]
    assert sent[0]["next_command"] == f"ads-pipeline state why {key(1).short_name}"
