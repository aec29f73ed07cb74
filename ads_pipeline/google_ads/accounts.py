"""Discovery: the accounts below the managers that the credentials reach, and how long their days may change.

One request for each manager lists all accounts below it, direct and indirect. `ledger.accounts` stores the result.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ads_pipeline.domain.accounts import Account
from ads_pipeline.domain.quota import Operation, OperationKind
from ads_pipeline.google_ads.budget import Budget, CallResult
from ads_pipeline.google_ads.calls import spend
from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.descriptors import VersionFields
from ads_pipeline.google_ads.faults import Fault, clean_request_id
from ads_pipeline.google_ads.flattening import Flattener

MAX_LOOKBACK_DAYS: Final = 90
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
LOOKBACK_QUERY: Final = (
    f"SELECT {', '.join(_WINDOWS)} FROM conversion_action WHERE conversion_action.status = 'ENABLED'"  # noqa: S608 - the same
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """The accounts that were found, each as often as there are ways to it, and the logins that failed."""

    found: tuple[Account, ...]
    failed: Mapping[str, Fault]


class AccountDiscovery:
    """Asks Google for accounts. Each question is one operation; one that fails does not stop the others."""

    def __init__(self, clients: Clients, budget: Budget, *, source: str) -> None:
        self._clients, self._budget, self._source = clients, budget, source
        self._fields = VersionFields(clients.api_version)

    def discover(self, login_customer_ids: Sequence[str]) -> Discovery:
        """The accounts below these logins; without any, below each account that the credentials reach directly."""
        found: list[Account] = []
        failed: dict[str, Fault] = {}
        logins = list(login_customer_ids)
        if not logins:
            accessible = self._list_accessible()
            if isinstance(accessible, Fault):
                failed[self._clients.default_login or ""] = accessible
            else:
                logins = accessible
        for login in logins:
            rows = self._ask(OperationKind.ACCOUNTS, login, login, CLIENTS_QUERY, _SELECTED)
            if isinstance(rows, Fault):
                failed[login] = rows
            else:
                found += [self._make_account(row, login) for row in rows]
        return Discovery(found=tuple(found), failed=failed)

    def read_lookbacks(self, accounts: Iterable[Account]) -> tuple[dict[str, int], dict[str, Fault]]:
        """The longest conversion window of each account in days, at most 90, and the accounts that refused."""
        days: dict[str, int] = {}
        failed: dict[str, Fault] = {}
        for account in accounts:
            rows = self._ask(
                OperationKind.LOOKBACK, account.customer_id, account.login_customer_id, LOOKBACK_QUERY, _WINDOWS
            )
            if isinstance(rows, Fault):
                failed[account.customer_id] = rows
            else:
                windows = (value for row in rows for value in row.values() if value is not None)
                days[account.customer_id] = min(max(windows, default=0), MAX_LOOKBACK_DAYS)
        return days, failed

    def _list_accessible(self) -> list[str] | Fault:
        def call(result: CallResult) -> list[str]:
            listed = list(self._clients.list_accessible_customers())
            result.rows = len(listed)
            return listed

        operation = Operation(source=self._source, kind=OperationKind.ACCOUNTS)
        return spend(self._clients, self._budget, operation, None, call, repeat=DISCOVER)

    def _ask(
        self, kind: OperationKind, customer: str, login: str | None, query: str, selected: Sequence[str]
    ) -> list[dict[str, Any]] | Fault:
        flattener = Flattener(selected, self._fields)

        def call(result: CallResult) -> list[dict[str, Any]]:
            stream = self._clients.search_stream(customer_id=customer, login_customer_id=login, query=query)
            rows = list(_read_rows(stream, flattener, result))
            result.rows = len(rows)
            return rows

        operation = Operation(source=self._source, kind=kind, customer_id=customer)
        return spend(self._clients, self._budget, operation, login, call, repeat=DISCOVER)

    def _make_account(self, row: Mapping[str, Any], login: str) -> Account:
        values = {_FIELDS[name.removeprefix(f"{_CLIENT}_")]: value for name, value in row.items()}
        values["customer_id"] = str(values["customer_id"])
        for name in ("is_manager", "is_test", "is_hidden"):
            values[name] = bool(values[name])
        values["level"] = values["level"] or 0
        values["status"] = values["status"] or "UNKNOWN"
        return Account(source=self._source, login_customer_id=login, manager_id=login, **values)


def _read_rows(stream: Any, flattener: Flattener, result: CallResult) -> Iterator[dict[str, Any]]:
    for batch in stream:
        result.request_id = clean_request_id(batch.request_id) or result.request_id
        result.consumption = batch.query_resource_consumption or result.consumption
        columns = flattener.flatten(batch.results)
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))
