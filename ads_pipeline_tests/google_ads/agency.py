"""A manager with 20 accounts, some of which cannot be fetched, for tests through Dagster."""

from collections.abc import Collection, Sequence
from typing import Final

from ads_pipeline.google_ads.loopback.scenarios import Behaviour, ListedAccount, Scenario
from ads_pipeline_tests.google_ads.builders import LOGIN, failing

CANCELED, DISABLED, DENIED, NESTED = "2000000001", "2000000002", "2000000003", "1000000009"
TEST, LEAVING, TWO_WAYS = "2000000004", "2000000005", "2000000006"
OTHER_LOGIN: Final = "1000000002"  # a second manager; only through it the account below both can be fetched
GOOD: Final = tuple(f"{2_000_000_000 + number}" for number in range(4, 20))
REFUSED: Final = (CANCELED, DISABLED, DENIED)
_CANCELED_STATUS, _CLOSED_STATUS = 3, 5


def agency(good: Sequence[str] = GOOD, *, revision: int = 1, gone: Collection[str] = ()) -> Scenario:
    """The accounts that can be fetched; two disabled, of which one is cancelled, one denied, and one nested manager.

    Of those that can be fetched, one is a test account, which Google closes, and one is below two managers. The
    accounts in `gone` have left.
    """
    accounts = [
        ListedAccount(customer_id=LOGIN, level=0, manager=True),
        ListedAccount(customer_id=CANCELED, status=_CANCELED_STATUS),
        ListedAccount(customer_id=DISABLED),
        ListedAccount(customer_id=DENIED),
        ListedAccount(customer_id=NESTED, manager=True),
        *(_below_nested(customer) for customer in good if customer not in gone),
    ]
    other = (
        ListedAccount(customer_id=OTHER_LOGIN, level=0, manager=True),
        ListedAccount(customer_id=TWO_WAYS, level=1),
    )
    disabled = Behaviour(failure=failing("authorization_error", "CUSTOMER_NOT_ENABLED", code="PERMISSION_DENIED"))
    denied = Behaviour(failure=failing("authorization_error", "USER_PERMISSION_DENIED", code="PERMISSION_DENIED"))
    fetched = {
        each: Behaviour(revision=revision, needs_login=OTHER_LOGIN if each == TWO_WAYS else None) for each in good
    }
    has_other = TWO_WAYS in good
    return Scenario(
        accessible=(LOGIN, OTHER_LOGIN) if has_other else (LOGIN,),
        clients={LOGIN: tuple(accounts)} | ({OTHER_LOGIN: other} if has_other else {}),
        customers={DISABLED: disabled, DENIED: denied} | fetched,
    )


def _below_nested(customer: str) -> ListedAccount:
    is_test = customer == TEST
    return ListedAccount(customer_id=customer, level=2, status=_CLOSED_STATUS if is_test else 2, test_account=is_test)
