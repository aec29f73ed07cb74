"""The answers of the loopback server: accounts, rows, and faults per customer. Plain data that travels as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

MANAGER_ID = "1000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAccount:
    """One row of `customer_client` below a manager. `status` is Google's number: 2 ENABLED, 3 CANCELED, 5 CLOSED."""

    customer_id: str
    name: str = "Account"
    level: int = 1
    status: int = 2
    manager: bool = False
    test_account: bool = False
    hidden: bool = False
    time_zone: str = "Pacific/Auckland"
    currency_code: str = "NZD"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleError:
    """One error of a failure, by category and number, such as quota_error 2."""

    category: str
    number: int
    message: str = "The request failed."
    retry_seconds: int | None = None
    retry_nanos: int = 0
    rate_scope: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailure:
    """The failure of a request: the gRPC status, and Google's failure in the trailing metadata.

    `after_batches`: rows that arrive before it. `times`: how many requests fail; None is all. `undecodable`: the
    failure is not a message. Without errors there is no failure at all. `failure_hex` are the bytes of the failure in
    place of the errors. `details_code` is the code in the status details, which should repeat the status. `message`
    is the text of the status.
    """

    code: str
    errors: tuple[GoogleError, ...] = ()
    after_batches: int = 0
    times: int | None = None
    undecodable: bool = False
    failure_hex: str | None = None
    details_code: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The answers to one customer's reports.

    `rows`: rows a day. `revision` raises costs and conversions, as a restatement does; `day_revisions` has that of
    single days. `odd_row`: foreign_day, day_with_line_break, foreign_customer, missing_day or nan, in the last row
    but one of the answer. `request_id` replaces that of the batches, `batch_hex` the bytes of the first one.
    `stall_after`: batches before the stream hangs.
    `slow_days`: a range of more days hangs; `slow_day`: a range with this day hangs. With `stalls_empty` a stream
    that hangs sends batches without rows for ever. `stalls_lists`: a list of accounts hangs. `max_days`: a wider
    range is refused, with the error `too_wide` (query_error 36 without it). `first_day`: an older day is refused as
    too old. `needs_login`: the login-customer-id that reaches the account.
    """

    rows: int = 3
    revision: int = 1
    day_revisions: tuple[tuple[str, int], ...] = ()
    quiet_days: tuple[str, ...] = ()
    batches_per_day: int = 1
    failure: RequestFailure | None = None
    odd_row: str | None = None
    request_id: str | None = None
    batch_hex: str | None = None
    enum_number: int = 2
    delay_seconds: float = 0.0
    stall_after: int | None = None
    stalls_empty: bool = False
    stalls_lists: bool = False
    max_days: int | None = None
    too_wide: GoogleError | None = None
    first_day: str | None = None
    slow_days: int | None = None
    slow_day: str | None = None
    needs_login: str | None = None
    is_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The answers of the server from now on. A customer without a behaviour gets the default one.

    `token_page`: the token server answers with this HTTP status and a page, as a proxy before it does. `away` is the
    gRPC status with which each call fails, without a failure of Google Ads.
    """

    accessible: tuple[str, ...] = (MANAGER_ID,)
    clients: Mapping[str, tuple[ListedAccount, ...]] = field(default_factory=dict)
    customers: Mapping[str, Behaviour] = field(default_factory=dict)
    conversion_windows: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    refuse_token: bool = False
    token_page: int | None = None
    away: str | None = None


def encode_scenario(scenario: Scenario) -> bytes:
    return json.dumps(asdict(scenario)).encode()


def decode_scenario(content: bytes) -> Scenario:
    document = json.loads(content)
    return Scenario(
        accessible=tuple(document["accessible"]),
        clients={
            manager: tuple(ListedAccount(**each) for each in listed)
            for manager, listed in document["clients"].items()
        },
        customers={customer: _decode_behaviour(each) for customer, each in document["customers"].items()},
        conversion_windows=document["conversion_windows"],
        refuse_token=document["refuse_token"],
        token_page=document["token_page"],
        away=document["away"],
    )


def _decode_behaviour(document: dict[str, Any]) -> Behaviour:
    failure = document.pop("failure")
    if failure is not None:
        errors = tuple(GoogleError(**each) for each in failure.pop("errors"))
        failure = RequestFailure(**failure, errors=errors)
    if document["too_wide"] is not None:
        document["too_wide"] = GoogleError(**document["too_wide"])
    document["day_revisions"] = tuple((day, revision) for day, revision in document["day_revisions"])
    document["quiet_days"] = tuple(document["quiet_days"])
    return Behaviour(**document, failure=failure)
