"""The section `google_ads` of the query file: limits of quota and of days, and how accounts are reached.

Credentials are never in this file: the client reads them from its own configuration.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ads_pipeline.domain.fetching.quota import QuotaLimits

MAX_LOOKBACK_DAYS: Final = 90  # the longest conversion window that Google offers
DEFAULT_LOOKBACK_DAYS: Final = 30  # Google's default window for clicks
MAX_REACH_DAYS: Final = 1_126  # 37 months
_CUSTOMER_ID: Final = re.compile(r"[0-9]{10}", re.ASCII)


def _parse_customer_id(value: object) -> str:
    """The id as text. YAML reads an id without quotes as a number."""
    text = str(value) if type(value) in {int, str} else ""
    if _CUSTOMER_ID.fullmatch(text) is None:
        raise ValueError("must be ten digits without hyphens, such as 1234567890")
    return text


def _parse_customer_ids(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list of customer ids, such as [1234567890]")  # noqa: TRY004 - pydantic's rule
    return tuple(_parse_customer_id(each) for each in value)


CustomerId = Annotated[str, BeforeValidator(_parse_customer_id)]
LookbackDays = Annotated[int, Field(ge=0, le=MAX_LOOKBACK_DAYS)]


class Section(BaseModel):
    """A part of the query file. Unknown keys and values of another type are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class CustomerSettings(Section):
    """The settings of one customer: `lookback_days` for all its queries, `queries` for single ones."""

    login_customer_id: CustomerId | None = None
    lookback_days: LookbackDays | None = None
    queries: Annotated[Mapping[str, LookbackDays], AfterValidator(MappingProxyType)] = Field(default_factory=dict)


class ExtractionSettings(Section):
    """The section. Without `daily_operations` the budget has no limit, because no default would fit every project."""

    daily_operations: Annotated[int, Field(ge=1)] | None = None
    reserved_for_fresh: Annotated[float, Field(ge=0, le=0.5)] = 0.25
    close_lag_hours: Annotated[int, Field(ge=0, le=48)] = 3
    reach_days: Annotated[int, Field(ge=1, le=MAX_REACH_DAYS)] = 1_110
    lookback_days: LookbackDays = DEFAULT_LOOKBACK_DAYS
    login_customer_ids: Annotated[tuple[str, ...], BeforeValidator(_parse_customer_ids)] = ()
    customers: Annotated[Mapping[CustomerId, CustomerSettings], AfterValidator(MappingProxyType)] = Field(
        default_factory=dict
    )

    @property
    def quota(self) -> QuotaLimits:
        return QuotaLimits(daily_operations=self.daily_operations, reserved_for_fresh=self.reserved_for_fresh)

    @property
    def close_lag(self) -> timedelta:
        return timedelta(hours=self.close_lag_hours)

    def find_lookback(
        self, customer_id: str, query_name: str, *, of_query: int | None, of_account: int | None
    ) -> int:
        """After how many days a report is final: the most specific setting, else the account's own, else the default.

        `of_query` is the setting of the query, and `of_account` the conversion window that discovery read.
        """
        customer = self.customers.get(customer_id, CustomerSettings())
        candidates = (customer.queries.get(query_name), customer.lookback_days, of_query, of_account)
        return next((days for days in candidates if days is not None), self.lookback_days)
