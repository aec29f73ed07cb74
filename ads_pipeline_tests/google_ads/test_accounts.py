"""Discovery: every account below the logins, with its status; one failing login does not stop the others."""

from typing import Any

import pytest

from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.quota import QuotaLimits
from ads_pipeline.google_ads.account_discovery import AccountDiscovery
from ads_pipeline.google_ads.client import CALL_SECONDS, Clients
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import Behaviour, ListedAccount, RequestFailure, Scenario
from ads_pipeline.google_ads.operation_budget import Budget
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.google_ads.builders import LOGIN, failing, fast_budget, google_error
from ads_pipeline_tests.ledger.builders import FakeClock

OTHER_LOGIN, NESTED = "1000000002", "1000000003"
QUOTA = ("quota_error", "RESOURCE_EXHAUSTED")
ENABLED, CANCELED, SUSPENDED, CLOSED = 2, 3, 4, 5


@pytest.fixture
def discovery(clients: Clients, timed_ledger: Ledger, clock: FakeClock) -> AccountDiscovery:
    return AccountDiscovery(clients, fast_budget(timed_ledger, clock), source="google_ads")


def below_manager(*accounts: ListedAccount) -> tuple[ListedAccount, ...]:
    return (ListedAccount(customer_id=LOGIN, level=0, manager=True), *accounts)


def listed(number: int, **fields: Any) -> ListedAccount:
    return ListedAccount(customer_id=f"{2_000_000_000 + number}", **fields)


def test_accounts_of_each_manager_cost_one_operation(server: LoopbackServer, discovery: AccountDiscovery) -> None:
    """Discovery lists every account below a login with one operation, whatever its status."""
    server.answer(
        Scenario(
            clients={
                LOGIN: below_manager(
                    listed(1, name="Shop", time_zone="Pacific/Kiritimati", currency_code="AUD"),
                    listed(2, status=CANCELED),
                    listed(3, status=CLOSED, test_account=True, hidden=True),
                    ListedAccount(customer_id=NESTED, level=1, manager=True),
                    listed(4, level=2),
                )
            }
        )
    )
    found = discovery.discover([LOGIN])
    assert found.failed == {}
    assert [(each.customer_id, each.level, each.status, each.is_manager) for each in found.found] == [
        (LOGIN, 0, "ENABLED", True),
        ("2000000001", 1, "ENABLED", False),
        ("2000000002", 1, "CANCELED", False),
        ("2000000003", 1, "CLOSED", False),
        (NESTED, 1, "ENABLED", True),
        ("2000000004", 2, "ENABLED", False),
    ]
    shop, test = found.found[1], found.found[3]
    assert (shop.name, shop.time_zone, shop.currency_code, shop.login_customer_id) == (
        "Shop",
        "Pacific/Kiritimati",
        "AUD",
        LOGIN,
    )
    assert (test.is_test, test.is_hidden, test.parking_class) == (True, True, None)
    assert server.operations() == {LOGIN: 1}


def test_without_logins_the_reachable_accounts_are_asked(server: LoopbackServer, discovery: AccountDiscovery) -> None:
    """Without configured logins, each account that the credentials reach directly is asked under its own id."""
    direct = ListedAccount(customer_id="2000000009", level=0)
    server.answer(
        Scenario(accessible=(LOGIN, "2000000009"), clients={LOGIN: below_manager(), "2000000009": (direct,)})
    )
    found = discovery.discover([])
    assert {each.customer_id: each.login_customer_id for each in found.found} == {
        LOGIN: LOGIN,
        "2000000009": "2000000009",
    }
    assert server.operations() == {"list_accessible_customers": 1, LOGIN: 1, "2000000009": 1}


def test_failing_login_does_not_stop_the_others(
    server: LoopbackServer, discovery: AccountDiscovery, timed_ledger: Ledger
) -> None:
    """The accounts of a login that fails are not gone; the other logins are asked all the same."""
    clients = {LOGIN: below_manager(listed(1)), OTHER_LOGIN: below_manager(listed(2))}
    server.answer(Scenario(clients=clients))
    first = discovery.discover([LOGIN, OTHER_LOGIN])
    timed_ledger.accounts.record("google_ads", first.found, failed_logins=first.failed)
    denied = Behaviour(failure=failing("authorization_error", "USER_PERMISSION_DENIED"))
    server.answer(Scenario(clients=clients, customers={LOGIN: denied}))
    second = discovery.discover([LOGIN, OTHER_LOGIN])
    assert {login: fault.error_class for login, fault in second.failed.items()} == {LOGIN: "permission_denied"}
    result = timed_ledger.accounts.record("google_ads", second.found, failed_logins=second.failed)
    assert result.gone == ()
    assert [each.customer_id for each in second.found] == [LOGIN, "2000000002"]


def test_accounts_leave_and_return(server: LoopbackServer, discovery: AccountDiscovery, timed_ledger: Ledger) -> None:
    """A cancelled account and one that is gone are parked, and released when they are enabled again."""

    def discover(*accounts: ListedAccount) -> Any:
        server.answer(Scenario(clients={LOGIN: below_manager(*accounts)}))
        found = discovery.discover([LOGIN])
        return timed_ledger.accounts.record("google_ads", found.found, failed_logins=found.failed)

    assert set(discover(listed(1), listed(2)).new) == {LOGIN, "2000000001", "2000000002"}
    assert discover(listed(1, status=CANCELED)).gone == ("2000000002",)
    parked = {each.name: each.error_class for each in timed_ledger.retry_queue.list_parkings("google_ads")}
    assert parked == {"2000000001": "account_canceled", "2000000002": "account_gone"}
    back = discover(listed(1), listed(2))
    assert (back.returned, back.released) == (("2000000002",), ("2000000001", "2000000002"))
    assert timed_ledger.retry_queue.list_parkings("google_ads") == []


def test_two_ways_to_an_account_keep_the_shallower(
    server: LoopbackServer, discovery: AccountDiscovery, timed_ledger: Ledger
) -> None:
    """An account below two logins is kept once, under the login that is nearer."""
    server.answer(
        Scenario(clients={LOGIN: below_manager(listed(1, level=2)), OTHER_LOGIN: below_manager(listed(1, level=1))})
    )
    timed_ledger.accounts.record("google_ads", discovery.discover([LOGIN, OTHER_LOGIN]).found)
    assert timed_ledger.accounts.by_id("google_ads")["2000000001"].login_customer_id == OTHER_LOGIN


@pytest.mark.parametrize(
    ("windows", "days"),
    [
        ({"ENABLED": 30}, 30),
        ({"ENABLED": 7}, 7),
        ({"ENABLED": 365}, 90),
        ({"ENABLED": 7, "REMOVED": 60}, 60),
        ({"ENABLED": 7, "HIDDEN": 45}, 45),
        ({"ENABLED": -(2**62)}, 1),
        ({}, None),
        ({"ENABLED": None}, None),
    ],
)
def test_lookback_is_the_longest_window(
    server: LoopbackServer, discovery: AccountDiscovery, windows: dict[str, int | None], days: int | None
) -> None:
    """The longest window of all conversion actions is the lookback, at most 90 days; it costs one operation.

    Removed and hidden actions count, because they still get conversions. None leaves the days to the settings.
    """
    server.answer(Scenario(conversion_windows={"2000000001": windows}))
    account = Account(source="google_ads", customer_id="2000000001", status="ENABLED", login_customer_id=LOGIN)
    assert discovery.read_lookbacks([account]) == ({"2000000001": days}, {})
    assert server.operations() == {"2000000001": 1}


def test_discovery_respects_the_budget(
    server: LoopbackServer, clients: Clients, timed_ledger: Ledger, clock: FakeClock
) -> None:
    """A login for which there is no operation left is not asked; it counts as failed, with the time to wait for."""
    server.answer(Scenario(clients={LOGIN: below_manager(), OTHER_LOGIN: below_manager()}))
    budget: Budget = fast_budget(timed_ledger, clock, limits=QuotaLimits(daily_operations=1))
    found = AccountDiscovery(clients, budget, source="google_ads").discover([LOGIN, OTHER_LOGIN])
    assert [fault.error_class for fault in found.failed.values()] == ["quota_exhausted"]
    assert server.operations() == {LOGIN: 1}


DIRECT = "2000000009"


def cancelled_direct_account() -> Scenario:
    disabled = Behaviour(failure=failing("authorization_error", "CUSTOMER_NOT_ENABLED", code="PERMISSION_DENIED"))
    return Scenario(
        accessible=(DIRECT, LOGIN), clients={LOGIN: below_manager(listed(1))}, customers={DIRECT: disabled}
    )


def test_refused_direct_account_is_no_failure(server: LoopbackServer, discovery: AccountDiscovery) -> None:
    """A direct account that Google refuses is told apart from failures, and not asked again once it is parked."""
    server.answer(cancelled_direct_account())
    found = discovery.discover([])
    assert (found.failed, found.skipped, found.unread_logins) == ({}, (), {DIRECT})
    assert found.refused[DIRECT].message.endswith(
        f"enable the account in Google Ads, then run ads-pipeline state release --customer {DIRECT} --reason TEXT"
    )
    again = discovery.discover([], refused={DIRECT})
    assert (again.refused, again.skipped, again.unread_logins) == ({}, (DIRECT,), {DIRECT})
    assert [each.customer_id for each in again.found] == [LOGIN, "2000000001"]
    assert server.operations()[DIRECT] == 1


def test_refused_configured_login_is_a_failure(server: LoopbackServer, discovery: AccountDiscovery) -> None:
    """A configured login that Google refuses fails each time, and its message names the command to repeat."""
    server.answer(cancelled_direct_account())
    found = discovery.discover([DIRECT])
    assert (found.refused, list(found.failed)) == ({}, [DIRECT])
    assert found.failed[DIRECT].message.endswith("; then ask again: ads-pipeline accounts discover")


@pytest.mark.invariant("L4")
def test_odd_row_costs_only_its_account(
    server: LoopbackServer, discovery: AccountDiscovery, timed_ledger: Ledger
) -> None:
    """Rows that are no account are left out and named; odd values of others are bounded, and all are stored."""
    odd = [
        ListedAccount(customer_id="-5"),
        ListedAccount(customer_id="0"),
        listed(1, level=2**62, name="\x00\u202e" + "n" * 70_000, status=99, time_zone="z" * 5_000),
        listed(2, level=-(2**63), currency_code="\x00" * 100),
        listed(3),
    ]
    server.answer(Scenario(clients={LOGIN: below_manager(*odd)}))
    found = discovery.discover([LOGIN])
    assert [each.customer_id for each in found.found] == [LOGIN, "2000000001", "2000000002", "2000000003"]
    assert "2 accounts are left out, because their rows are odd; the first: '-5'" in found.failed[LOGIN].message
    timed_ledger.accounts.record("google_ads", found.found, failed_logins=found.unread_logins)
    known = timed_ledger.accounts.by_id("google_ads")
    assert (known["2000000001"].level, known["2000000001"].status) == (100, "UNKNOWN")
    assert (known["2000000002"].level, len(known["2000000001"].name or "")) == (0, 300)


@pytest.mark.invariant("L4")
def test_odd_direct_account_is_left_out(server: LoopbackServer, discovery: AccountDiscovery) -> None:
    """Names in the list of direct accounts that are no account are not asked; the others are."""
    names = ("x", "-1", "../7", "9" * 300, LOGIN)
    server.answer(Scenario(accessible=names, clients={LOGIN: below_manager(listed(1))}))
    found = discovery.discover([])
    assert [each.customer_id for each in found.found] == [LOGIN, "2000000001"]
    assert server.operations() == {"list_accessible_customers": 1, LOGIN: 1}


@pytest.mark.invariant("L4")
@pytest.mark.parametrize(
    "failure",
    [
        RequestFailure(code="UNKNOWN", details_code=7),
        RequestFailure(code="RESOURCE_EXHAUSTED", errors=(google_error(*QUOTA, retry_seconds=2**62, rate_scope=2),)),
        RequestFailure(code="NOT_FOUND", undecodable=True, message="odd \x00"),
    ],
)
def test_odd_answer_does_not_stop_the_other_logins(
    server: LoopbackServer, discovery: AccountDiscovery, failure: RequestFailure
) -> None:
    """A login whose answer cannot be read fails alone."""
    clients = {LOGIN: below_manager(listed(1)), OTHER_LOGIN: below_manager(listed(2))}
    server.answer(Scenario(clients=clients, customers={LOGIN: Behaviour(failure=failure)}))
    found = discovery.discover([LOGIN, OTHER_LOGIN])
    assert list(found.failed) == [LOGIN]
    assert "2000000002" in {each.customer_id for each in found.found}


@pytest.mark.invariant("L5")
def test_silent_source_is_not_asked_for_every_account(
    server: LoopbackServer, discovery: AccountDiscovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question ends after five minutes, and after three in a row without an answer the others are not asked."""
    assert CALL_SECONDS == 300
    monkeypatch.setattr("ads_pipeline.google_ads.account_discovery.CALL_SECONDS", 4.0)
    logins = [f"100000000{number}" for number in range(6)]
    server.answer(Scenario(customers=dict.fromkeys(logins, Behaviour(stalls_lists=True))))
    found = discovery.discover(logins)
    assert {fault.error_class for fault in found.failed.values()} == {"timed_out"}
    assert list(found.failed) == logins
    assert server.operations() == dict.fromkeys(logins[:3], 1)
