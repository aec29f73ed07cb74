"""Accounts that discovery found: which are parked, released and gone."""

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.ledger.extraction.account_table import DiscoveryResult
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.builders import FakeClock, action_request

SOURCE, MANAGER, OTHER_MANAGER = "google_ads", "9000000000", "9000000001"


def account(customer_id: str, status: str = "ENABLED", **more: Any) -> Account:
    given: dict[str, Any] = {"level": 1, "login_customer_id": MANAGER, "time_zone": "Europe/Berlin"} | more
    return Account(source=SOURCE, customer_id=customer_id, status=status, **given)


def parked(ledger: Ledger) -> dict[str, str]:
    return {parking.name: parking.error_class for parking in ledger.retry_queue.list_parkings(SOURCE)}


def test_discovery_stores_accounts_and_parks_the_disabled(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Cancelled and closed accounts are parked; suspended, test and manager accounts are not."""
    found = [
        account("1", name="Shoes\n& more", currency_code="EUR"),
        account("2", "CANCELED"),
        account("3", "CLOSED"),
        account("4", "CLOSED", is_test=True),
        account("5", "SUSPENDED"),
        account("6", "CANCELED", is_manager=True),
    ]
    result = timed_ledger.accounts.record(SOURCE, found)
    assert result == DiscoveryResult(new=("1", "2", "3", "4", "5", "6"), parked=("2", "3"))
    assert parked(timed_ledger) == {"2": "account_canceled", "3": "account_closed"}
    first = timed_ledger.accounts.by_id(SOURCE)["1"]
    assert (first.name, first.currency_code, first.seen_at, first.gone_at) == (
        r"Shoes\n& more",
        "EUR",
        clock.now,
        None,
    )


def test_repeated_discovery_changes_nothing(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Only the time at which each account was seen moves on."""
    found = [account("1"), account("2", "CANCELED")]
    timed_ledger.accounts.record(SOURCE, found)
    clock.tick(timedelta(days=1))
    assert timed_ledger.accounts.record(SOURCE, found) == DiscoveryResult()
    assert {each.seen_at for each in timed_ledger.accounts.list_all(SOURCE)} == {clock.now}


def test_enabled_again_releases_what_discovery_parked(timed_ledger: Ledger) -> None:
    """A parking of a refusal or of an operator stays."""
    timed_ledger.accounts.record(SOURCE, [account("1", "CANCELED"), account("2"), account("3", "CANCELED")])
    for customer, error_class in (("2", "permission_denied"), ("3", "parked_by_operator")):
        parking = Parking(source=SOURCE, scope="customer", name=customer, error_class=error_class, why="x")
        if error_class == "parked_by_operator":
            released = Parking(source=SOURCE, scope="customer", name=customer)
            timed_ledger.actions.release(released, action_request("release"))
        timed_ledger.actions.park(parking, action_request(f"park-{customer}"))
    result = timed_ledger.accounts.record(SOURCE, [account("1"), account("2"), account("3")])
    assert result == DiscoveryResult(released=("1",))
    assert parked(timed_ledger) == {"2": "permission_denied", "3": "parked_by_operator"}


def test_account_that_leaves_and_returns(timed_ledger: Ledger, clock: FakeClock) -> None:
    """It is kept and parked while it is gone, and released when it is back."""
    timed_ledger.accounts.record(SOURCE, [account("1"), account("2")])
    clock.tick(timedelta(days=1))
    assert timed_ledger.accounts.record(SOURCE, [account("1")]) == DiscoveryResult(gone=("2",), parked=("2",))
    assert timed_ledger.accounts.by_id(SOURCE)["2"].gone_at == clock.now
    assert parked(timed_ledger) == {"2": "account_gone"}
    assert timed_ledger.accounts.record(SOURCE, [account("1")]) == DiscoveryResult()
    back = timed_ledger.accounts.record(SOURCE, [account("1"), account("2")])
    assert back == DiscoveryResult(returned=("2",), released=("2",))
    assert parked(timed_ledger) == {}


def test_cancelled_account_that_closes_stays_parked(timed_ledger: Ledger) -> None:
    """The parking follows the status, and is not reported as new."""
    timed_ledger.accounts.record(SOURCE, [account("1", "CANCELED")])
    assert timed_ledger.accounts.record(SOURCE, [account("1", "CLOSED")]) == DiscoveryResult()
    assert parked(timed_ledger) == {"1": "account_closed"}


def test_failing_manager_loses_no_accounts(timed_ledger: Ledger) -> None:
    """Accounts below a manager that could not be asked are not gone; the others are."""
    timed_ledger.accounts.record(SOURCE, [account("1"), account("2", login_customer_id=OTHER_MANAGER)])
    result = timed_ledger.accounts.record(SOURCE, [account("3")], failed_logins={OTHER_MANAGER})
    assert (result.gone, parked(timed_ledger)) == (("1",), {"1": "account_gone"})


def test_discovery_without_any_answer_loses_no_accounts(timed_ledger: Ledger) -> None:
    """An account that answers lists itself, so an empty answer says nothing."""
    timed_ledger.accounts.record(SOURCE, [account("1")])
    assert timed_ledger.accounts.record(SOURCE, [], failed_logins={""}) == DiscoveryResult()


def test_shallowest_enabled_way_is_kept(timed_ledger: Ledger) -> None:
    """An account below two managers is asked through the one that reaches it best."""
    deep, shallow = account("1", level=3, login_customer_id="1"), account("1", level=2, login_customer_id="2")
    cancelled = account("1", "CANCELED", level=1, login_customer_id="3")
    for found in ([deep, shallow, cancelled], [cancelled, shallow, deep]):
        timed_ledger.accounts.record(SOURCE, found)
        assert timed_ledger.accounts.by_id(SOURCE)["1"].login_customer_id == "2"


def test_conversion_window_outlives_discovery(timed_ledger: Ledger, clock: FakeClock) -> None:
    """It is read once a week, and discovery every day."""
    timed_ledger.accounts.record(SOURCE, [account("1"), account("2")])
    read_at = clock.now
    timed_ledger.accounts.record_lookbacks(SOURCE, {"1": 30})
    clock.tick(timedelta(days=1))
    timed_ledger.accounts.record(SOURCE, [account("1"), account("2")])
    known = timed_ledger.accounts.by_id(SOURCE)
    assert (known["1"].lookback_days, known["1"].lookback_read_at) == (30, read_at)
    assert (known["2"].lookback_days, known["2"].lookback_read_at) == (None, None)


def test_account_without_conversion_actions_has_no_window(timed_ledger: Ledger, clock: FakeClock) -> None:
    """The settings decide about its days, whatever was read before, and it is not asked every day."""
    timed_ledger.accounts.record(SOURCE, [account("1")])
    for window in (1, None):
        timed_ledger.accounts.record_lookbacks(SOURCE, {"1": window})
    known = timed_ledger.accounts.by_id(SOURCE)["1"]
    assert (known.lookback_days, known.lookback_read_at) == (None, clock.now)


def test_discovery_emits_its_counts(timed_ledger: Ledger, clock: FakeClock) -> None:
    """One event for each discovery of a run, without names."""
    for found in ([account("1", name="Secret & Sons")], [account("1"), account("2", "CANCELED")]):
        timed_ledger.accounts.record(SOURCE, found)
        clock.tick()
    events = [each.event for each in timed_ledger.events.fetch(timed_ledger.origin.engine_run_id)]
    data = [dict(each.event_data) for each in events if each.event_type == "AccountsDiscovered"]
    assert [(each["found"], each["new"], each["parked"]) for each in data] == [(1, 1, 0), (2, 1, 1)]
    assert "Secret" not in str(data)


@pytest.mark.invariant("L9")
def test_failed_discoveries_are_known_since_when(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Until a discovery has read an account again, the first failure, the newest cause and the last success show."""
    accounts = timed_ledger.accounts
    assert accounts.find_failed_discoveries(SOURCE) is None
    accounts.record(SOURCE, [account("1")])
    read_at = clock.now
    for why in ("the proxy is away", "the credentials\x00 are refused"):
        clock.tick(timedelta(days=1))
        accounts.record_failure(SOURCE, why)
    failed = accounts.find_failed_discoveries(SOURCE)
    assert failed is not None
    assert (failed.since, failed.count, failed.last_read_at) == (read_at + timedelta(days=1), 2, read_at)
    assert failed.why == "the credentials\\x00 are refused"
    assert accounts.find_failed_discoveries("another_source") is None
    events = [each.event for each in timed_ledger.events.fetch(timed_ledger.origin.engine_run_id)]
    assert [each.event_data["is_first"] for each in events if each.event_type == "DiscoveryFailed"] == [True, False]
    clock.tick(timedelta(days=1))
    accounts.record(SOURCE, [account("1")])
    assert accounts.find_failed_discoveries(SOURCE) is None


def test_refused_account_is_parked_until_it_is_released(timed_ledger: Ledger, clock: FakeClock) -> None:
    """A direct account that Google refuses is stored and parked; discovery alone does not release it."""
    parking = Parking(source=SOURCE, scope="customer", name="7", error_class="customer_not_enabled", why="cancelled")
    result = timed_ledger.accounts.record(SOURCE, [account("1")], failed_logins={"7"}, refused=[parking])
    assert (result.parked, parked(timed_ledger)) == (("7",), {"7": "customer_not_enabled"})
    assert timed_ledger.accounts.by_id(SOURCE)["7"].status == "REFUSED"
    clock.tick(timedelta(days=1))
    assert timed_ledger.accounts.record(SOURCE, [account("1")], failed_logins={"7"}).gone == ()
    assert parked(timed_ledger) == {"7": "customer_not_enabled"}
    timed_ledger.actions.release(parking, action_request())
    clock.tick(timedelta(days=1))
    timed_ledger.accounts.record(SOURCE, [account("1"), account("7", level=0, login_customer_id="7")])
    assert timed_ledger.accounts.by_id(SOURCE)["7"].status == "ENABLED"
    assert parked(timed_ledger) == {}


@pytest.mark.parametrize("statement", ["DELETE FROM accounts", "UPDATE accounts SET status = ''"])
def test_database_keeps_accounts(timed_ledger: Ledger, backdoor: sa.Engine, statement: str) -> None:
    """An account is never deleted, and always has a status."""
    timed_ledger.accounts.record(SOURCE, [account("1")])
    with pytest.raises(sa.exc.DBAPIError), backdoor.begin() as connection:
        connection.exec_driver_sql(statement)
