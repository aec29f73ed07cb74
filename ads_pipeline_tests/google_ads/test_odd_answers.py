"""Odd answers about one account: whatever it is, the account behind it is fetched, and the odd one is named."""

from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from itertools import count
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.fetching.retry_policy import ERROR_POLICIES, WAITING_CLASSES, ErrorPolicy, RetryPolicy
from ads_pipeline.google_ads.account_discovery import AccountDiscovery
from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import (
    Behaviour,
    GoogleError,
    ListedAccount,
    RequestFailure,
    Scenario,
)
from ads_pipeline.lake.raw.run_source import Landed
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.google_ads.builders import API_VERSION, fast_budget, google_error, partitions
from ads_pipeline_tests.google_ads.sources import MakeSource, landed_keys
from ads_pipeline_tests.ledger.builders import FakeClock, action_request

QUOTA = ("quota_error", "RESOURCE_EXHAUSTED")
_NUMBERS = count(1)  # of the customers, so that no example finds the runs of another


@dataclass(frozen=True)
class Case:
    name: str
    behaviour: Behaviour
    error_class: str | None = None  # None: the days are sealed


def failing_with(code: str, *errors: GoogleError, **changes: Any) -> Behaviour:
    return Behaviour(failure=RequestFailure(code=code, errors=errors, **changes))


def quota(seconds: int, **changes: Any) -> Behaviour:
    error = google_error(*QUOTA, retry_seconds=seconds, rate_scope=2, **changes)
    return failing_with("RESOURCE_EXHAUSTED", error)


CASES = [
    Case("a retry delay of 2^62 s", quota(2**62), "quota_exhausted"),
    Case("a retry delay of 10,000 years", quota(10_000 * 31_556_952), "quota_exhausted"),
    Case("a negative retry delay", quota(-(2**63)), "quota_exhausted"),
    Case("nanoseconds out of range", quota(5, retry_nanos=-(2**31)), "quota_exhausted"),
    Case("a status that differs from its details", failing_with("UNKNOWN", details_code=7), "google_ads_error"),
    Case("a refusal that differs from its details", failing_with("PERMISSION_DENIED", details_code=3),
         "google_ads_error"),
    Case("no status of gRPC in the details", failing_with("NOT_FOUND", details_code=9_999), "google_ads_error"),
    Case("a request id of 200,000 characters", Behaviour(request_id="r" * 200_000)),
    Case("a request id with nulls", Behaviour(request_id="r\x00\n\x1b[2J")),
    Case("a long request id of a failure", Behaviour(request_id="r" * 200_000, odd_row="nan"), "rows_refused"),
    Case("a batch that does not parse", Behaviour(batch_hex="ffffffff"), "transient"),
    Case("a text that is not UTF-8", Behaviour(batch_hex="0a06b21c03fffefd1202fffe"), "transient"),
    Case("an empty message in place of the first batch", Behaviour(batch_hex="")),
    Case("a failure that does not parse", failing_with("PERMISSION_DENIED", undecodable=True), "google_ads_error"),
    Case("a quota that does not parse", failing_with("RESOURCE_EXHAUSTED", undecodable=True), "quota_exhausted"),
    Case("a failure without errors", failing_with("UNAUTHENTICATED", failure_hex=""), "google_ads_error"),
    Case("an error without a code", failing_with("UNKNOWN", failure_hex="0a051203616263"), "google_ads_error"),
    Case("a thousand errors", failing_with("INVALID_ARGUMENT", *([google_error("field_error", "REQUIRED")] * 1_000)),
         "google_ads_error"),
    Case("a text with nulls", failing_with("NOT_FOUND", message="odd \x00 \U0010ffff" * 50), "google_ads_error"),
]  # fmt: skip


def land_with_neighbour(
    server: LoopbackServer, make: MakeSource, ledger: Ledger, behaviour: Behaviour
) -> tuple[Landed, list[Any], list[Any]]:
    """Fetch two days of an odd account and of the account behind it, and record the failures."""
    number = next(_NUMBERS)
    odd, neighbour = f"3{number:08}1", f"3{number:08}2"
    server.answer(Scenario(customers={odd: behaviour}))
    mine, others = partitions(2, odd), partitions(2, neighbour)
    landed = make().land(mine + others)
    ledger.failed_fetches.record(landed.failed, RetryPolicy())
    return landed, mine, others


def assert_each_is_told(landed: Landed, wanted: list[Any]) -> None:
    told = [*landed_keys(landed), *(each.key for each in landed.failed), *(each.key for each in landed.skipped)]
    assert sorted(told) == sorted(wanted)
    for failed in landed.failed:
        assert failed.error_message.isprintable()
        assert len(failed.error_message) <= 2_000
        assert failed.request_id is None or len(failed.request_id) <= 96


@pytest.mark.invariant("L4")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_odd_answer_costs_only_its_account(
    server: LoopbackServer, make_source: MakeSource, timed_ledger: Ledger, clock: FakeClock, case: Case
) -> None:
    """The days of the odd account fail with a message or are sealed. Those of the account behind it are sealed."""
    landed, mine, others = land_with_neighbour(server, make_source, timed_ledger, case.behaviour)
    assert {each.error_class for each in landed.failed} == ({case.error_class} if case.error_class else set())
    assert landed_keys(landed) == (others if case.error_class else mine + others)
    assert_each_is_told(landed, mine + others)
    assert timed_ledger.retry_queue.list_parkings("google_ads") == []


@pytest.mark.invariant("L4")
def test_path_that_is_no_directory_costs_only_its_account(
    server: LoopbackServer, make_source: MakeSource, timed_ledger: Ledger, tmp_path: Any
) -> None:
    """An account whose directory below raw is a link is refused alone, and the message names the path."""
    odd = partitions(2, "2000000001")
    folder = tmp_path / "raw" / odd[0].source
    folder.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (folder / "customer_id=2000000001").symlink_to(tmp_path / "elsewhere")
    others = partitions(2, "2000000002")
    landed = make_source().land(odd + others)
    assert landed_keys(landed) == others
    assert {each.error_class for each in landed.failed} == {"google_ads_error"}
    assert "customer_id=2000000001" in landed.failed[0].error_message


def error_categories() -> list[str]:
    errors = import_module(f"google.ads.googleads.{API_VERSION}.errors.types.errors")
    return sorted(errors.ErrorCode.pb().DESCRIPTOR.fields_by_name)


int32, int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=300)
numbers = st.one_of(st.integers(0, 60), int32)
errors = st.builds(
    GoogleError,
    category=st.sampled_from(error_categories()),
    number=numbers,
    message=texts,
    retry_seconds=st.none() | int64,
    retry_nanos=int32,
    rate_scope=st.integers(0, 4),
)
failures = st.builds(
    RequestFailure,
    code=st.sampled_from([each.name for each in grpc.StatusCode if each is not grpc.StatusCode.OK]),
    errors=st.lists(errors, max_size=3).map(tuple),
    after_batches=st.integers(0, 3),
    failure_hex=st.none() | st.binary(max_size=60).map(bytes.hex),
    details_code=st.none() | st.integers(0, 20) | int32,
    message=st.none() | texts,
)
behaviours = st.builds(
    Behaviour,
    rows=st.integers(0, 2),
    failure=st.none() | failures,
    odd_row=st.sampled_from([None, "foreign_day", "day_with_line_break", "foreign_customer", "missing_day", "nan"]),
    batch_hex=st.none() | st.binary(max_size=40).map(bytes.hex),
    request_id=st.none() | texts | st.integers(0, 200_000).map(lambda length: "é" * length),
    enum_number=int32,
)
_STOPS_ALL = {ErrorPolicy.PARK_SOURCE, ErrorPolicy.PARK_QUERY, ErrorPolicy.WAIT}


@pytest.mark.invariant("L4")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(behaviour=behaviours)
def test_any_answer_gives_each_day_a_result(
    server: LoopbackServer, make_source: MakeSource, timed_ledger: Ledger, clock: FakeClock, behaviour: Behaviour
) -> None:
    """Whatever the answer about one account, each day is sealed, failed or skipped. Only a readable refusal or wait
    that concerns the query or the source stops the account behind it."""
    landed, mine, others = land_with_neighbour(server, make_source, timed_ledger, behaviour)
    assert_each_is_told(landed, mine + others)
    policies = {ERROR_POLICIES[each.error_class] for each in landed.failed}
    if not policies & _STOPS_ALL:
        assert set(others) <= set(landed_keys(landed))
    for parking in timed_ledger.retry_queue.list_parkings("google_ads"):
        assert parking.why
        timed_ledger.actions.release(parking, action_request(f"release-{next(_NUMBERS)}"))
    clock.now = max([clock.now, *(each.wait_until for each in landed.failed if each.wait_until)])


listed_accounts = st.builds(
    ListedAccount,
    customer_id=int64.map(str),
    name=texts,
    level=int64,
    status=int32,
    manager=st.booleans(),
    test_account=st.booleans(),
    hidden=st.booleans(),
    time_zone=texts,
    currency_code=texts,
)


@pytest.mark.invariant("L4")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    odd=st.lists(listed_accounts, max_size=4),
    failure=st.none() | failures.map(lambda each: replace(each, after_batches=0)),
    window=int32,
    names=st.lists(texts, max_size=3),
)
def test_any_list_of_accounts_leaves_the_others(
    server: LoopbackServer,
    clients: Clients,
    timed_ledger: Ledger,
    clock: FakeClock,
    odd: list[ListedAccount],
    failure: RequestFailure | None,
    window: int,
    names: list[str],
) -> None:
    """Whatever one login answers, discovery ends, the accounts of the login behind it are stored, and every problem
    has a printable message."""
    number = next(_NUMBERS)
    first, second, account = f"4{number:08}1", f"4{number:08}2", f"4{number:08}3"
    server.answer(
        Scenario(
            accessible=(*names, first, second),
            clients={first: tuple(odd), second: (ListedAccount(customer_id=account),)},
            customers={first: Behaviour(failure=failure)},
            conversion_windows={account: {"ENABLED": window}},
        )
    )
    discovery = AccountDiscovery(clients, fast_budget(timed_ledger, clock), source="google_ads")
    found = discovery.discover([])
    timed_ledger.accounts.record("google_ads", found.found, failed_logins=found.unread_logins)
    for fault in (*found.failed.values(), *found.refused.values()):
        assert fault.message.isprintable()
    if not any(fault.error_class in WAITING_CLASSES for fault in found.failed.values()):
        assert account in timed_ledger.accounts.by_id("google_ads")
        known = timed_ledger.accounts.by_id("google_ads")[account]
        days, failed = discovery.read_lookbacks([known])
        timed_ledger.accounts.record_lookbacks("google_ads", days)
        assert failed == {}
        assert days[account] in range(1, 91)
    clock.tick(timedelta(hours=25))
