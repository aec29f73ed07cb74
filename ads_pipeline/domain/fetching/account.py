"""An account below a manager, as discovery finds it, and what its status means for fetching.

Pure values and rules. `account_table` stores accounts.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ads_pipeline.domain.partition import validate_name

ENABLED, SUSPENDED, CANCELED, CLOSED = "ENABLED", "SUSPENDED", "CANCELED", "CLOSED"
REFUSED: Final = "REFUSED"  # our own: the credentials list the account, and Google refuses every question about it
# Parkings with these classes come from discovery, so discovery may release them.
ACCOUNT_CANCELED, ACCOUNT_CLOSED, ACCOUNT_GONE = "account_canceled", "account_closed", "account_gone"
PARKED_BY_DISCOVERY: Final = frozenset({ACCOUNT_CANCELED, ACCOUNT_CLOSED, ACCOUNT_GONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One account. `level` is its distance from the account under which it was found, whose id is the login id.

    `manager_id` is the account that owns the list in which it was found. The ledger sets the last four fields.
    `gone_at` is set while discovery no longer finds the account. `lookback_days` is the longest conversion window.
    """

    source: str
    customer_id: str
    status: str
    level: int = 0
    name: str | None = None
    is_manager: bool = False
    manager_id: str | None = None
    login_customer_id: str | None = None
    time_zone: str | None = None
    currency_code: str | None = None
    is_test: bool = False
    is_hidden: bool = False
    seen_at: datetime | None = None
    gone_at: datetime | None = None
    lookback_days: int | None = None
    lookback_read_at: datetime | None = None

    def __post_init__(self) -> None:
        validate_name("source", self.source)
        validate_name("customer_id", self.customer_id)

    @property
    def parking_class(self) -> str | None:
        """The error class that stops its fetches, or None. A test account is always CLOSED and can be fetched.

        The history of a suspended account may be readable, so it is tried.
        """
        if self.gone_at is not None:
            return ACCOUNT_GONE
        if self.status == CANCELED:
            return ACCOUNT_CANCELED
        return ACCOUNT_CLOSED if self.status == CLOSED and not self.is_test else None

    @property
    def parking_reason(self) -> str:
        """The text of the parking, with the next step."""
        if self.gone_at is not None:
            return (
                "discovery no longer finds the account below any manager; its data stays. When it is back, "
                "ads-pipeline accounts discover resumes its fetches"
            )
        return (
            f"the account has the status {self.status}. When it is enabled again, ads-pipeline accounts discover "
            "resumes its fetches"
        )


def choose_way(one: Account, other: Account) -> Account:
    """The better of two ways to one account: the enabled one, then the shallower, then the smaller login id."""
    return min(one, other, key=lambda each: (each.status != ENABLED, each.level, each.login_customer_id or ""))
