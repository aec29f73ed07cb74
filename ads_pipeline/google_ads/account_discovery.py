"""Discovery: the accounts below the managers that the credentials reach, and how long their days may change.

One request for each manager lists all accounts below it, direct and indirect. `ledger.accounts` stores the result.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.outages import TIMED_OUT
from ads_pipeline.domain.fetching.quota import Operation, OperationKind
from ads_pipeline.domain.fetching.retry_policy import ERROR_POLICIES, ErrorPolicy
from ads_pipeline.domain.quoting import quoted
from ads_pipeline.google_ads.calls import spend
from ads_pipeline.google_ads.client import CALL_SECONDS, Clients
from ads_pipeline.google_ads.faults.fault_reading import Fault, clean_request_id, make_fault
from ads_pipeline.google_ads.faults.fault_table import GOOGLE_ADS_ERROR
from ads_pipeline.google_ads.operation_budget import Budget, CallResult
from ads_pipeline.google_ads.requests.descriptors import VersionFields
from ads_pipeline.google_ads.requests.flattening import Flattener

MAX_LOOKBACK_DAYS: Final = 90
_ACCOUNT_ID: Final = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
MAX_TIMEOUTS_IN_A_ROW: Final = 3  # each takes five minutes
_DEEPEST: Final = 100  # level that is stored; Google allows six
DISCOVER: Final = "ads-pipeline accounts discover"
_CLIENT: Final = "customer_client"
# customer_client's field -> the field of Account
_FIELDS: Final[Mapping[str, str]] = {
    "id": "customer_id",
    "descriptive_name": "name",
    "level": "level",
    "status": "status",
    "manager": "is_manager",
    "test_account": "is_test",
    "hidden": "is_hidden",
    "time_zone": "time_zone",
    "currency_code": "currency_code",
}
_SELECTED: Final = tuple(f"{_CLIENT}.{name}" for name in _FIELDS)
# Without a filter on the status, so that an account that was closed is seen as closed, not as gone.
CLIENTS_QUERY: Final = f"SELECT {', '.join(_SELECTED)} FROM {_CLIENT}"  # noqa: S608 - constants
_WINDOWS: Final = (
    "conversion_action.click_through_lookback_window_days",
    "conversion_action.view_through_lookback_window_days",
)
# Without a filter on the status: clicks of before still bring conversions to an action that was removed or hidden.
LOOKBACK_QUERY: Final = f"SELECT {', '.join(_WINDOWS)} FROM conversion_action"  # noqa: S608 - constants


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """The accounts that were found, each as often as there are ways to it, and the logins that failed.

    `refused` are direct accounts of the credentials that Google refuses, for example because they are cancelled. The
    credentials list them for ever, so they are parked. `skipped` are those that were parked for it before.
    """

    found: tuple[Account, ...]
    failed: Mapping[str, Fault]
    refused: Mapping[str, Fault] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()

    @property
    def unread_logins(self) -> set[str]:
        """The logins whose accounts are unknown, which is no reason to take them for gone."""
        return {*self.failed, *self.refused, *self.skipped}


class AccountDiscovery:
    """Asks Google for accounts. Each question is one operation; one that fails does not stop the others.

    After three questions in a row without an answer in time, the others fail without being asked.
    """

    def __init__(self, clients: Clients, budget: Budget, *, source: str) -> None:
        self._clients, self._budget, self._source = clients, budget, source
        self._fields = VersionFields(clients.api_version)
        self._timeouts: list[Fault] = []  # in a row

    def discover(self, login_customer_ids: Sequence[str], *, refused: Collection[str] = frozenset()) -> Discovery:
        """The accounts below these logins; without any, below each account that the credentials reach directly.

        Of the direct ones, those in `refused` are not asked again.
        """
        if login_customer_ids:
            return self._discover_below(login_customer_ids, parks=False)
        accessible = self._list_accessible()
        if isinstance(accessible, Fault):
            return Discovery(found=(), failed={self._clients.default_login or "": accessible})
        found = self._discover_below([each for each in accessible if each not in refused], parks=True)
        return replace(found, skipped=tuple(each for each in accessible if each in refused))

    def _discover_below(self, logins: Iterable[str], *, parks: bool) -> Discovery:
        found: list[Account] = []
        failed: dict[str, Fault] = {}
        refused: dict[str, Fault] = {}
        for login in logins:
            names = {"customer": login} if parks else None
            rows = self._ask(OperationKind.ACCOUNTS, login, login, CLIENTS_QUERY, _SELECTED, parked_names=names)
            if isinstance(rows, Fault):
                (refused if parks and _is_of_account(rows) else failed)[login] = rows
                continue
            accounts = [_make_account(row, self._source, login) for row in rows]
            found += [each for each in accounts if isinstance(each, Account)]
            if odd := [each for each in accounts if not isinstance(each, Account)]:
                failed[login] = self._describe_odd(odd, login)
        return Discovery(found=tuple(found), failed=failed, refused=refused)

    def _describe_odd(self, problems: Sequence[str], login: str) -> Fault:
        text = f"{len(problems)} accounts are left out, because their rows are odd; the first: {problems[0]}"
        return make_fault(GOOGLE_ADS_ERROR, text, self._clients.request_context(login, repeat=DISCOVER), None)

    def read_lookbacks(self, accounts: Iterable[Account]) -> tuple[dict[str, int | None], dict[str, Fault]]:
        """The longest conversion window of each account in days, at most 90, and the accounts that refused.

        None for an account without a conversion action of its own, such as one whose manager tracks its conversions.
        """
        days: dict[str, int | None] = {}
        failed: dict[str, Fault] = {}
        for account in accounts:
            rows = self._ask(
                OperationKind.LOOKBACK, account.customer_id, account.login_customer_id, LOOKBACK_QUERY, _WINDOWS
            )
            if isinstance(rows, Fault):
                failed[account.customer_id] = rows
            else:
                windows = [value for row in rows for value in row.values() if value is not None and value > 0]
                days[account.customer_id] = min(max(windows), MAX_LOOKBACK_DAYS) if windows else None
        return days, failed

    def _list_accessible(self) -> list[str] | Fault:
        """The ids of the direct accounts. A name that is none is left out."""

        def call(result: CallResult) -> list[str]:
            listed = list(self._clients.list_accessible_customers())
            result.rows = len(listed)
            return [each for each in listed if _ACCOUNT_ID.fullmatch(each)]

        operation = Operation(source=self._source, kind=OperationKind.ACCOUNTS)
        return spend(self._clients, self._budget, operation, None, call, repeat=DISCOVER)

    def _ask(
        self,
        kind: OperationKind,
        customer: str,
        login: str | None,
        query: str,
        selected: Sequence[str],
        *,
        parked_names: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]] | Fault:
        if len(self._timeouts) >= MAX_TIMEOUTS_IN_A_ROW:
            return self._timeouts[-1]
        flattener = Flattener(selected, self._fields)

        def call(result: CallResult) -> list[dict[str, Any]]:
            stream = self._clients.search_stream(
                customer_id=customer, login_customer_id=login, query=query, timeout=CALL_SECONDS
            )
            rows = list(_read_rows(stream, flattener, result))
            result.rows = len(rows)
            return rows

        operation = Operation(source=self._source, kind=kind, customer_id=customer)
        answer = spend(
            self._clients, self._budget, operation, login, call, repeat=DISCOVER, parked_names=parked_names
        )
        if isinstance(answer, Fault) and answer.error_class == TIMED_OUT:
            self._timeouts.append(answer)
        else:
            self._timeouts.clear()
        return answer


def _is_of_account(fault: Fault) -> bool:
    return ERROR_POLICIES.get(fault.error_class) is ErrorPolicy.PARK_CUSTOMER


def _make_account(row: Mapping[str, Any], source: str, login: str) -> Account | str:
    """The account of a row, or what is odd about it."""
    values = {_FIELDS[name.removeprefix(f"{_CLIENT}_")]: value for name, value in row.items()}
    values["customer_id"] = str(values["customer_id"])
    for name in ("is_manager", "is_test", "is_hidden"):
        values[name] = bool(values[name])
    values["level"] = min(max(values["level"] or 0, 0), _DEEPEST)
    values["status"] = values["status"] or "UNKNOWN"
    if _ACCOUNT_ID.fullmatch(values["customer_id"]) is None:
        return f"{quoted(values['customer_id'])} is no account"
    return Account(source=source, login_customer_id=login, manager_id=login, **values)


def _read_rows(stream: Any, flattener: Flattener, result: CallResult) -> Iterator[dict[str, Any]]:
    for batch in stream:
        result.request_id = clean_request_id(batch.request_id) or result.request_id
        result.consumption = batch.query_resource_consumption or result.consumption
        columns = flattener.flatten(batch.results)
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))
