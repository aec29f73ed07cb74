"""A manager with 20 accounts, some of which cannot be fetched, for tests through Dagster."""

from collections.abc import Sequence
from typing import Final

from ads_pipeline.google_ads.loopback.scenarios import Behaviour, ListedAccount, Scenario
from ads_pipeline_tests.google_ads.builders import LOGIN, failing

CANCELED, DISABLED, DENIED, NESTED = "2000000001", "2000000002", "2000000003", "1000000009"
GOOD: Final = tuple(f"{2_000_000_000 + number}" for number in range(4, 20))
REFUSED: Final = (CANCELED, DISABLED, DENIED)


def agency(good: Sequence[str] = GOOD, *, revision: int = 1) -> Scenario:
    """The accounts that can be fetched; one cancelled, one disabled, one denied, and one nested manager."""
    accounts = [
        ListedAccount(customer_id=LOGIN, level=0, manager=True),
        ListedAccount(customer_id=CANCELED, status=3),
        ListedAccount(customer_id=DISABLED),
        ListedAccount(customer_id=DENIED),
        ListedAccount(customer_id=NESTED, manager=True),
        *(ListedAccount(customer_id=customer, level=2) for customer in good),
    ]
    disabled = Behaviour(failure=failing("authorization_error", "CUSTOMER_NOT_ENABLED", code="PERMISSION_DENIED"))
    denied = Behaviour(failure=failing("authorization_error", "USER_PERMISSION_DENIED", code="PERMISSION_DENIED"))
    return Scenario(
        clients={LOGIN: tuple(accounts)},
        customers={DISABLED: disabled, DENIED: denied} | {each: Behaviour(revision=revision) for each in good},
    )
