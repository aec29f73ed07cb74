"""The source: few operations, waits without attempts, parked accounts that cost nothing, nothing lost."""

from datetime import UTC, date, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from ads_pipeline.domain.errors import RawUnavailable
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.quota import Granted, Operation, QuotaLimits
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import Status
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import Behaviour, GoogleError, RequestFailure, Scenario
from ads_pipeline.google_ads.requests.narrowing import MAX_TIMEOUTS_IN_A_ROW
from ads_pipeline.google_ads.requests.ranges import MAX_RANGE_DAYS, cut_ranges
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.extraction.range_widths import read_known_widths
from ads_pipeline_tests.builders import key, seal_facts
from ads_pipeline_tests.google_ads.builders import (
    CUSTOMER,
    FIRST,
    LOGIN,
    behaving,
    failing,
    fast_budget,
    google_error,
    partitions,
)
from ads_pipeline_tests.google_ads.sources import MakeSource, failures, landed_keys, record
from ads_pipeline_tests.google_ads.test_faults import EXPECTED
from ads_pipeline_tests.ledger.builders import FakeClock

OTHER, THIRD = "2000000002", "2000000003"
SINGLE_DAY = ("click_view_error", "EXPECTED_FILTER_ON_A_SINGLE_DAY")


@pytest.mark.parametrize(("days", "operations"), [(1, 1), (31, 1), (62, 2)])
def test_days_are_fetched_in_ranges(
    server: LoopbackServer, make_source: MakeSource, days: int, operations: int
) -> None:
    """N days of two customers and a query cost 2 x ceil(N / 31) operations, counted by the server."""
    first = date(2026, 9, 1)
    wanted = partitions(days, first=first) + partitions(days, OTHER, first=first)
    landed = make_source().land(wanted)
    assert (landed.failed, landed.skipped) == ((), ())
    assert landed_keys(landed) == wanted
    assert server.operations() == {CUSTOMER: operations, OTHER: operations}


@pytest.mark.invariant("O2")
def test_runs_of_others_are_taken_first(server: LoopbackServer, make_source: MakeSource, tmp_path: Path) -> None:
    """A run that another extractor sealed and nobody judged is taken; only the other days are fetched."""
    foreign = Run(key=partitions()[0], run_id="foreign")
    RawRuns(tmp_path / "raw").land(foreign, [], seal_facts())
    landed = make_source().land(partitions(3))
    assert landed_keys(landed) == partitions(3)
    assert landed.runs[0].run == foreign
    assert server.describe()["queries"][0].endswith("BETWEEN '2026-10-02' AND '2026-10-03'")


def test_each_account_is_reached_by_its_own_login(server: LoopbackServer, make_source: MakeSource) -> None:
    """The login id that discovery found is sent; an account that discovery never saw is tried under the default."""
    needs = {CUSTOMER: Behaviour(needs_login="1000000002"), OTHER: Behaviour(needs_login=LOGIN)}
    server.answer(Scenario(customers=needs))
    known = Account(source="google_ads", customer_id=CUSTOMER, status="ENABLED", login_customer_id="1000000002")
    landed = make_source(accounts=[known]).land(partitions(1) + partitions(1, OTHER))
    assert landed_keys(landed) == partitions(1) + partitions(1, OTHER)


def test_unknown_account_that_is_denied_gets_a_hint(server: LoopbackServer, make_source: MakeSource) -> None:
    """A refusal of an account names the login id that was sent and the next command."""
    server.answer(behaving(needs_login="1000000009"))
    (failed,) = make_source().land(partitions(1)).failed
    assert failed.error_class == "permission_denied"
    assert f"sent login-customer-id {LOGIN}" in failed.error_message
    assert "run ads-pipeline accounts discover" in failed.error_message
    assert failed.request_id is not None


class TestSkipped:
    def test_day_that_is_not_closed(self, server: LoopbackServer, make_source: MakeSource, clock: FakeClock) -> None:
        """A day is skipped until it is closed in the account's zone, with that moment; no operation is spent."""
        known = Account(source="google_ads", customer_id=CUSTOMER, status="ENABLED", time_zone="America/Los_Angeles")
        day = key(CUSTOMER, day=date(2026, 11, 18))
        closing = datetime(2026, 11, 19, 11, tzinfo=UTC)
        clock.now = closing - timedelta(seconds=1)
        (skipped,) = make_source(accounts=[known]).land([day]).skipped
        assert (skipped.key, skipped.until) == (day, closing)
        assert "not closed before 2026-11-19 11:00 UTC (America/Los_Angeles)" in skipped.reason
        assert server.operations() == {}
        clock.now = closing
        assert landed_keys(make_source(accounts=[known]).land([day])) == [day]

    def test_zone_that_is_unknown_closes_last(self, make_source: MakeSource, clock: FakeClock) -> None:
        """Without a known zone the day closes as in UTC-12, and the reason says so."""
        clock.now = datetime(2026, 11, 19, 14, 59, 59, tzinfo=UTC)
        (skipped,) = make_source().land([key(CUSTOMER, day=date(2026, 11, 18))]).skipped
        assert skipped.until == datetime(2026, 11, 19, 15, tzinfo=UTC)
        assert "the zone is unknown, so UTC-12" in skipped.reason

    def test_day_out_of_reach_is_never_sealed(self, server: LoopbackServer, make_source: MakeSource) -> None:
        """A day that Google no longer serves is not requested, even when the server would answer without rows."""
        server.answer(behaving(is_empty=True))
        old = [key(CUSTOMER, day=date(2023, 11, 4)), key(CUSTOMER, day=date(2023, 11, 5))]
        landed = make_source().land(old)
        assert [(each.key, each.reason.split(":")[0]) for each in landed.skipped] == [(old[0], "unrecoverable")]
        assert landed_keys(landed) == [old[1]]
        assert server.describe()["queries"][0].endswith("BETWEEN '2023-11-05' AND '2023-11-05'")

    def test_manager_account(self, server: LoopbackServer, make_source: MakeSource) -> None:
        """A manager that discovery knows is skipped without an operation."""
        manager = Account(source="google_ads", customer_id=CUSTOMER, status="ENABLED", is_manager=True)
        landed = make_source(accounts=[manager]).land(partitions(2))
        assert (len(landed.skipped), server.operations()) == (2, {})


# error class -> failures that count for the retry policy, and what is parked
EFFECTS: dict[str, tuple[int, list[str]]] = {
    "quota_exhausted": (0, []),
    "transient": (1, []),
    "google_ads_error": (1, []),
    "out_of_reach": (1, []),
    "customer_not_enabled": (1, ["customer"]),
    "permission_denied": (1, ["customer"]),
    "manager_account": (1, ["customer"]),
    "unrecognized_field": (1, ["query"]),
    "query_refused": (1, ["query"]),
    "credentials_refused": (1, ["source"]),
    "version_ended": (1, ["source"]),
}


class TestFaults:
    @pytest.mark.parametrize(
        ("category", "name", "error_class"),
        [
            ("authorization_error", "CUSTOMER_NOT_ENABLED", "customer_not_enabled"),
            ("authorization_error", "USER_PERMISSION_DENIED", "permission_denied"),
            ("query_error", "REQUESTED_METRICS_FOR_MANAGER", "manager_account"),
        ],
    )
    def test_refused_account_does_not_stop_the_others(
        self,
        server: LoopbackServer,
        make_source: MakeSource,
        timed_ledger: Ledger,
        category: str,
        name: str,
        error_class: str,
    ) -> None:
        """A refused account is parked after one operation, the others are fetched, and it never costs another."""
        server.answer(behaving(failure=failing(category, name)))
        wanted = partitions(40) + partitions(2, OTHER)
        landed = make_source().land(wanted)
        assert failures(landed) == {error_class: 31}
        assert len(landed.skipped) == 9
        assert landed_keys(landed) == partitions(2, OTHER)
        record(timed_ledger, landed)
        (parking,) = timed_ledger.retry_queue.list_parkings("google_ads")
        assert (parking.scope, parking.name, parking.error_class) == ("customer", CUSTOMER, error_class)
        again = make_source().land(partitions(40))
        assert (again.runs, again.failed, len(again.skipped)) == ((), (), 40)
        assert error_class in again.skipped[0].reason
        assert server.operations() == {CUSTOMER: 1, OTHER: 1}

    @pytest.mark.parametrize(
        ("category", "name", "error_class", "scope"),
        [
            ("query_error", "UNRECOGNIZED_FIELD", "unrecognized_field", "query"),
            ("query_error", "BAD_VALUE", "query_refused", "query"),
            ("authorization_error", "PROJECT_DISABLED", "credentials_refused", "source"),
            ("request_error", "UNSUPPORTED_VERSION", "version_ended", "source"),
        ],
    )
    def test_refused_query_or_source_costs_one_operation(
        self,
        server: LoopbackServer,
        make_source: MakeSource,
        timed_ledger: Ledger,
        category: str,
        name: str,
        error_class: str,
        scope: str,
    ) -> None:
        """What concerns the query or the source is asked once, and the rest is skipped; there is one parking."""
        failure = failing(category, name)
        server.answer(Scenario(customers={each: Behaviour(failure=failure) for each in (CUSTOMER, OTHER)}))
        landed = make_source().land(partitions(2) + partitions(2, OTHER))
        assert failures(landed) == {error_class: 2}
        assert [each.key.customer_id for each in landed.skipped] == [OTHER, OTHER]
        record(timed_ledger, landed)
        (parking,) = timed_ledger.retry_queue.list_parkings("google_ads")
        assert (parking.scope, parking.error_class) == (scope, error_class)
        assert len(make_source().land(partitions(1, OTHER)).skipped) == 1
        assert sum(server.operations().values()) == 1

    @pytest.mark.parametrize(
        ("failure", "error_class"),
        [
            (RequestFailure(code="UNIMPLEMENTED", message="GRPC target method can't be resolved"), "version_ended"),
            (RequestFailure(code="PERMISSION_DENIED", message="The API is disabled"), "credentials_refused"),
            (RequestFailure(code="PERMISSION_DENIED", message="insufficient scopes"), "credentials_refused"),
        ],
    )
    def test_refusal_of_the_front_end_parks_the_source(
        self,
        server: LoopbackServer,
        make_source: MakeSource,
        timed_ledger: Ledger,
        failure: RequestFailure,
        error_class: str,
    ) -> None:
        """An ended version, a disabled API and a missing scope come without a failure. They cost one operation."""
        server.answer(Scenario(customers={each: Behaviour(failure=failure) for each in (CUSTOMER, OTHER)}))
        landed = make_source().land(partitions(2) + partitions(2, OTHER))
        assert (failures(landed), len(landed.skipped)) == ({error_class: 2}, 2)
        record(timed_ledger, landed)
        (parking,) = timed_ledger.retry_queue.list_parkings("google_ads")
        assert (parking.scope, parking.error_class) == ("source", error_class)
        assert server.operations() == {CUSTOMER: 1}

    @pytest.mark.parametrize(("category", "name", "error_class"), EXPECTED)
    def test_each_error_has_its_effect(
        self,
        server: LoopbackServer,
        make_source: MakeSource,
        timed_ledger: Ledger,
        category: str,
        name: str,
        error_class: str,
    ) -> None:
        """No error is a verdict. Waits count no failure; a refused account, query or source is parked."""
        server.answer(behaving(failure=failing(category, name)))
        too_wide = error_class in ("range_too_wide", "single_days_only")  # a day cannot be halved
        recorded = "query_refused" if too_wide else error_class
        landed = make_source().land(partitions(1))
        assert failures(landed) == {recorded: 1}
        record(timed_ledger, landed)
        (state,) = timed_ledger.states.get_many(partitions(1)).values()
        assert (state.status, state.attempt_count) == (Status.PENDING, 0)
        (found,) = timed_ledger.retry_queue.find_failures(partitions(1)).values()
        parkings = [each.scope for each in timed_ledger.retry_queue.list_parkings("google_ads")]
        assert (found.failures, parkings) == EFFECTS[recorded]

    def test_transient_failure_is_tried_once_more(self, server: LoopbackServer, make_source: MakeSource) -> None:
        """A stream that breaks is requested again in the same run; each request is an operation."""
        server.answer(behaving(failure=RequestFailure(code="UNAVAILABLE", after_batches=2, times=1)))
        landed = make_source().land(partitions())
        assert (landed_keys(landed), landed.failed) == (partitions(), ())
        assert server.operations() == {CUSTOMER: 2}

    def test_failure_that_stays_is_recorded(
        self, server: LoopbackServer, make_source: MakeSource, timed_ledger: Ledger
    ) -> None:
        """A failure that repeats is an attempt of each day, and is retried by the policy."""
        server.answer(behaving(failure=RequestFailure(code="UNAVAILABLE", after_batches=2)))
        landed = make_source().land(partitions(3))
        assert failures(landed) == {"transient": 3}
        assert server.operations() == {CUSTOMER: 2}
        record(timed_ledger, landed)
        found = timed_ledger.retry_queue.find_failures(partitions(3))
        assert {each.failures for each in found.values()} == {1}
        assert timed_ledger.retry_queue.list_parkings("google_ads") == []

    def test_second_try_needs_an_operation(self, server: LoopbackServer, make_source: MakeSource) -> None:
        """Without an operation for a second try, the first failure is recorded, not an exhausted quota."""
        server.answer(behaving(failure=RequestFailure(code="INTERNAL")))
        landed = make_source(limits=QuotaLimits(daily_operations=1, reserved_for_fresh=0.0)).land(partitions(1))
        assert failures(landed) == {"transient": 1}
        assert server.operations() == {CUSTOMER: 1}

    def test_odd_rows_are_retried_by_policy(self, server: LoopbackServer, make_source: MakeSource) -> None:
        """An answer with rows that were not requested fails all its days after one operation."""
        server.answer(behaving(odd_row="foreign_customer"))
        assert failures(make_source().land(partitions(3))) == {"rows_refused": 3}
        assert server.operations() == {CUSTOMER: 1}

    @pytest.mark.parametrize(("days", "operations"), [(31, 6), (8, 3), (4, 1)])
    def test_range_that_is_too_wide_is_halved(
        self, server: LoopbackServer, make_source: MakeSource, days: int, operations: int
    ) -> None:
        """A range that Google finds too wide is halved until it fits; each try is an operation."""
        server.answer(behaving(max_days=8 if days == 31 else 4))
        landed = make_source().land(partitions(days))
        assert (landed_keys(landed), landed.failed) == (partitions(days), ())
        assert server.operations() == {CUSTOMER: operations}

    def test_single_day_that_is_too_wide_is_refused(self, server: LoopbackServer, make_source: MakeSource) -> None:
        """A single day cannot be narrower, so its query is refused, with the command that goes on afterwards."""
        server.answer(behaving(max_days=0))
        landed = make_source().land(partitions(1))
        assert failures(landed) == {"query_refused": 1}
        release = "ads-pipeline state release --query campaign_daily --reason TEXT"
        assert landed.failed[0].error_message.endswith(f"correct the query file, then run {release}")


class TestWidths:
    @pytest.mark.parametrize(
        ("behaviour", "first", "later"),
        [
            (Behaviour(max_days=8), 6, 4),
            (Behaviour(max_days=1, too_wide=google_error(*SINGLE_DAY)), 32, 31),
        ],
    )
    def test_width_that_worked_is_remembered(
        self,
        server: LoopbackServer,
        make_source: MakeSource,
        timed_ledger: Ledger,
        clock: FakeClock,
        behaviour: Behaviour,
        first: int,
        later: int,
    ) -> None:
        """A refused width is paid once: neither other customers of the run nor later runs and plans ask for it."""
        server.answer(Scenario(customers=dict.fromkeys((CUSTOMER, OTHER, THIRD), behaviour)))
        wanted = partitions(31) + partitions(31, OTHER)
        landed = make_source().land(wanted)
        assert (landed_keys(landed), landed.failed) == (wanted, ())
        assert server.operations() == {CUSTOMER: first, OTHER: later}
        make_source().land(partitions(31, THIRD))
        assert server.operations()[THIRD] == later
        widths = read_known_widths(timed_ledger, "google_ads", clock.now)
        assert len(cut_ranges(partitions(31, THIRD), widths.find)) == later
        forgotten = read_known_widths(timed_ledger, "google_ads", clock.now + timedelta(days=31))
        assert len(cut_ranges(partitions(31, THIRD), forgotten.find)) == 1

    @pytest.mark.parametrize(("first_day", "kept"), [("2026-10-11", 21), ("2026-10-31", 1), ("2026-12-01", 0)])
    def test_days_out_of_reach_cost_none_of_the_others(
        self, server: LoopbackServer, make_source: MakeSource, first_day: str, kept: int
    ) -> None:
        """Of a range that begins too early, the days in reach are sealed. Only the others are out of reach."""
        server.answer(behaving(first_day=first_day))
        landed = make_source().land(partitions(31))
        assert sorted(landed_keys(landed)) == partitions(31)[31 - kept :]
        assert failures(landed) == {"out_of_reach": 31 - kept}
        assert server.operations()[CUSTOMER] <= 11

    @pytest.mark.invariant("L5")
    @pytest.mark.parametrize("stalls_empty", [False, True])
    def test_range_that_takes_too_long_is_halved(
        self,
        server: LoopbackServer,
        make_source: MakeSource,
        timed_ledger: Ledger,
        clock: FakeClock,
        *,
        stalls_empty: bool,
    ) -> None:
        """A range whose stream stalls is requested in halves, and the width that worked is remembered."""
        server.answer(behaving(slow_days=3, stalls_empty=stalls_empty))
        landed = make_source(stall_limit=timedelta(seconds=1)).land(partitions(6))
        assert (landed_keys(landed), landed.failed) == (partitions(6), ())
        assert server.operations() == {CUSTOMER: 3}
        widths = read_known_widths(timed_ledger, "google_ads", clock.now)
        assert widths.find(CUSTOMER, "campaign_daily") == 3
        assert widths.find(OTHER, "campaign_daily") == MAX_RANGE_DAYS

    def test_single_day_that_takes_too_long_fails_alone(
        self, server: LoopbackServer, make_source: MakeSource
    ) -> None:
        """A day that is never answered is a failure of that day only, and is not asked for again at once."""
        server.answer(behaving(slow_day=partitions(4)[1].logical_date.isoformat()))
        landed = make_source(stall_limit=timedelta(seconds=1)).land(partitions(4))
        assert sorted(landed_keys(landed)) == [each for each in partitions(4) if each.logical_date.day != 2]
        assert [(each.key, each.error_class) for each in landed.failed] == [(partitions(4)[1], "timed_out")]
        assert server.operations() == {CUSTOMER: 5}

    @pytest.mark.invariant("L5")
    def test_account_that_never_answers_is_left_after_a_few_requests(
        self, server: LoopbackServer, make_source: MakeSource
    ) -> None:
        """After seven timeouts in a row the other days of the report fail without a request; others go on."""
        server.answer(behaving(slow_days=0))
        landed = make_source(stall_limit=timedelta(seconds=0.5)).land(partitions(31) + partitions(1, OTHER))
        assert failures(landed) == {"timed_out": 31}
        assert landed_keys(landed) == partitions(1, OTHER)
        assert server.operations() == {CUSTOMER: MAX_TIMEOUTS_IN_A_ROW, OTHER: 1}


@pytest.mark.invariant("L5")
def test_run_that_reaches_its_time_limit_leaves_the_rest(
    server: LoopbackServer, make_source: MakeSource, timed_ledger: Ledger, clock: FakeClock
) -> None:
    """After four hours no call begins. The days that are left wait for another run, and it is no failed attempt."""
    customers = [f"20000002{number:02}" for number in range(12)]
    wanted = [partitions(1, each)[0] for each in customers]
    minutes = count(step=20)
    landed = make_source(own_clock=lambda: clock.now + timedelta(minutes=next(minutes))).land(wanted)
    done = landed_keys(landed)
    assert 0 < len(done) < len(wanted)
    assert failures(landed) == {"run_too_long": len(wanted) - len(done)}
    assert len(server.operations()) == len(done)
    assert "this run has fetched for 4 hours and leaves the rest to another one" in landed.failed[0].error_message
    record(timed_ledger, landed)
    left = [each.key for each in landed.failed]
    found = timed_ledger.retry_queue.find_failures(left).values()
    assert {(each.failures, each.wait_until is None) for each in found} == {(0, False)}
    assert landed_keys(make_source().land(left)) == left


def test_day_that_google_no_longer_serves_is_held(
    server: LoopbackServer, make_source: MakeSource, timed_ledger: Ledger
) -> None:
    """A day that Google says is out of reach is held, and never retried by itself."""
    server.answer(behaving(failure=failing("date_range_error", "REQUESTED_DATE_GRANULARITY_NOT_SUPPORTED")))
    landed = make_source().land(partitions(2))
    assert failures(landed) == {"out_of_reach": 2}
    scheduled = timed_ledger.failed_fetches.record(landed.failed, RetryPolicy())
    assert {each.due_at if each else None for each in scheduled.values()} == {None}


class TestQuota:
    def test_delay_of_google_is_the_wait(
        self, server: LoopbackServer, make_source: MakeSource, timed_ledger: Ledger, clock: FakeClock
    ) -> None:
        """A long delay fails the range until then, holds all other calls, and is no failed attempt."""
        error = GoogleError(category="quota_error", number=2, retry_seconds=40_591, rate_scope=3)
        server.answer(behaving(failure=RequestFailure(code="RESOURCE_EXHAUSTED", errors=(error,))))
        landed = make_source().land(partitions(2) + partitions(2, OTHER))
        assert failures(landed) == {"quota_exhausted": 4}
        until = clock.now + timedelta(seconds=40_591)
        assert {each.wait_until for each in landed.failed} == {until}
        assert server.operations() == {CUSTOMER: 1}
        record(timed_ledger, landed)
        assert {each.failures for each in timed_ledger.retry_queue.find_failures(partitions(2)).values()} == {0}
        assert failures(make_source().land(partitions(1, "2000000007"))) == {"quota_exhausted": 1}
        assert server.operations() == {CUSTOMER: 1}
        server.answer(Scenario())
        clock.now = until + timedelta(seconds=1)
        assert landed_keys(make_source().land(partitions(1, OTHER))) == partitions(1, OTHER)

    def test_quota_of_an_account_leaves_the_others(self, server: LoopbackServer, make_source: MakeSource) -> None:
        """An account's own rate limit holds only that account."""
        error = GoogleError(category="quota_error", number=2, retry_seconds=900, rate_scope=2)
        server.answer(behaving(failure=RequestFailure(code="RESOURCE_EXHAUSTED", errors=(error,))))
        landed = make_source().land(partitions(40) + partitions(2, OTHER))
        assert failures(landed) == {"quota_exhausted": 40}
        assert landed_keys(landed) == partitions(2, OTHER)
        assert server.operations() == {CUSTOMER: 1, OTHER: 1}

    def test_short_delay_is_slept(self, server: LoopbackServer, make_source: MakeSource, clock: FakeClock) -> None:
        """A delay of up to a minute is slept in the run, and the range is requested once more."""
        error = GoogleError(category="quota_error", number=2, retry_seconds=40, rate_scope=3)
        server.answer(behaving(failure=RequestFailure(code="RESOURCE_EXHAUSTED", errors=(error,), times=1)))
        before = clock.now
        landed = make_source().land(partitions(2))
        assert (landed_keys(landed), landed.failed) == (partitions(2), ())
        assert timedelta(seconds=40) <= clock.now - before < timedelta(seconds=60)

    def test_limit_stops_the_backfill_and_spares_fresh_days(
        self, server: LoopbackServer, make_source: MakeSource, clock: FakeClock
    ) -> None:
        """Backfills stop at their share of the limit, with the moment to go on; fresh days still have theirs."""
        limits = QuotaLimits(daily_operations=4, reserved_for_fresh=0.25)
        many = [each for n in range(5) for each in partitions(1, f"20000001{n:02}")]
        landed = make_source(limits=limits).land(many)
        assert len(landed.runs) == 3
        assert failures(landed) == {"quota_exhausted": 2}
        (until,) = {each.wait_until for each in landed.failed}
        assert until == clock.now + timedelta(hours=24)
        fresh = key(CUSTOMER, day=clock.now.date() - timedelta(days=2))
        assert landed_keys(make_source(limits=limits).land([fresh])) == [fresh]
        assert failures(make_source(limits=limits).land(partitions(1, OTHER))) == {"quota_exhausted": 1}
        assert sum(server.operations().values()) == 4
        clock.now += timedelta(hours=24)
        assert landed_keys(make_source(limits=limits).land(partitions(1, OTHER))) == partitions(1, OTHER)

    def test_fifty_waits_use_no_retry(
        self, server: LoopbackServer, make_source: MakeSource, timed_ledger: Ledger, clock: FakeClock
    ) -> None:
        """A partition that waited fifty times has no failure, no attempt and is not terminal."""
        server.answer(behaving(failure=failing("quota_error", "RESOURCE_EXHAUSTED", code="RESOURCE_EXHAUSTED")))
        for _ in range(50):
            record(timed_ledger, make_source().land(partitions(1)))
            clock.now += timedelta(hours=1, seconds=1)
        (found,) = timed_ledger.retry_queue.find_failures(partitions(1)).values()
        state = timed_ledger.states.get(partitions(1)[0])
        assert (found.failures, state.attempt_count) == (0, 0)
        server.answer(Scenario())
        assert landed_keys(make_source().land(partitions(1))) == partitions(1)

    def test_each_operation_is_logged_with_its_outcome(
        self, server: LoopbackServer, make_source: MakeSource, timed_ledger: Ledger
    ) -> None:
        """Each request emits OperationSpent with range, rows, consumption and request id, and never a row."""
        server.answer(behaving(OTHER, failure=failing("authorization_error", "USER_PERMISSION_DENIED")))
        make_source().land(partitions(2) + partitions(1, OTHER))
        spent = [
            each.event.event_data
            for each in timed_ledger.events.fetch(timed_ledger.origin.engine_run_id)
            if each.event.event_type == "OperationSpent"
        ]
        assert [(each["customer_id"], each["outcome"], each["rows_received"]) for each in spent] == [
            (CUSTOMER, "ok", 6),
            (OTHER, "permission_denied", 0),
        ]
        assert (spent[0]["since"], spent[0]["until"], spent[0]["consumption"]) == ("2026-10-01", "2026-10-02", 102)
        assert all(each["request_id"] for each in spent)


def test_operation_of_an_interrupted_call_is_not_logged_as_ok(timed_ledger: Ledger, clock: FakeClock) -> None:
    """When the disk fails during a call, the operation stays spent and is logged as interrupted."""
    budget = fast_budget(timed_ledger, clock)
    granted = budget.reserve(Operation(source="google_ads", customer_id=CUSTOMER))
    assert isinstance(granted, Granted)
    with pytest.raises(RawUnavailable), budget.spend(granted):
        raise RawUnavailable("google_ads", "the file system failed")
    (spent,) = (each.event for each in timed_ledger.events.fetch(timed_ledger.origin.engine_run_id))
    assert (spent.event_type, spent.event_data["outcome"]) == ("OperationSpent", "interrupted")


def test_retry_of_days_far_apart_costs_an_operation_each(server: LoopbackServer, make_source: MakeSource) -> None:
    """Days with a gap of more than a week between them are separate requests."""
    wanted = [key(CUSTOMER, day=FIRST), key(CUSTOMER, day=FIRST + timedelta(days=20))]
    assert landed_keys(make_source().land(wanted)) == wanted
    assert server.operations() == {CUSTOMER: 2}
