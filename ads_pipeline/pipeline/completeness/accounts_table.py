"""The table `accounts`: one row for each customer that is known, from discovery or by its runs."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple, replace
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa

from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.warehouse_names import ACCOUNTS
from ads_pipeline.lake.completeness.keyed_rows import RowChange, RowLayout, read_rows
from ads_pipeline.lake.warehouse.delta_commits import TableSnapshot
from ads_pipeline.pipeline.completeness.ledger_table import Changes, LedgerTable, Since, digest

LAYOUT: Final = RowLayout(
    schema=pa.schema(
        [
            *(
                (name, pa.string())
                for name in ("source", "customer_id", "name", "currency_code", "time_zone", "status")
            ),
            ("managers", pa.string()),
            ("first_day", pa.date32()),
            ("parked", pa.bool_()),
            ("parked_reason", pa.string()),
        ]
    ),
    key=("customer_id",),
)
_ACCOUNTS: Final = "accounts"  # the mark of what discovery and the parkings say
_SCOPES: Final = ("customer", "source")


class AccountsTable(LedgerTable):
    """The table `accounts` of one deployment. It is one file."""

    name, layout = ACCOUNTS, LAYOUT

    def _read_marks(self) -> Mapping[str, int]:
        # Each discovery sees every account again, and reads conversion windows.
        accounts = (replace(each, seen_at=None, lookback_read_at=None) for each in self._accounts.values())
        return {_ACCOUNTS: digest([astuple(each) for each in accounts], self._parked)}

    def _find_changes(
        self, snapshot: TableSnapshot, since: Since | None, _also: Collection[PartitionKey], _now: datetime
    ) -> Changes:
        if since is None or _ACCOUNTS in since.differing or self._has_new(snapshot, since):
            yield (), RowChange(rows=pa.Table.from_pylist(list(self._rows()), schema=LAYOUT.schema))

    def _has_new(self, snapshot: TableSnapshot, since: Since) -> bool:
        """True if a customer has an event and no row."""
        customers = {key.customer_id for key in since.changed}
        return not customers.issubset(read_rows(snapshot, LAYOUT, ())["customer_id"].to_pylist())

    @property
    def _accounts(self) -> dict[str, Account]:
        return self._ledger.accounts.by_id(self.source)

    @property
    def _parked(self) -> dict[str, str]:
        """Why each customer is parked. A parking of the whole source has no name of a customer."""
        parkings = self._ledger.retry_queue.list_parkings(self.source)
        return {each.name if each.scope == "customer" else "": each.why for each in parkings if each.scope in _SCOPES}

    def _rows(self) -> Iterator[dict[str, Any]]:
        accounts, parked, first_days = self._accounts, self._parked, self._find_first_days()
        customers = {customer for customer, each in accounts.items() if not each.is_manager} | first_days.keys()
        for customer in sorted(customers):
            account, why = accounts.get(customer), parked.get(customer, parked.get(""))
            yield {
                "source": self.source,
                "customer_id": customer,
                "name": account and account.name,
                "currency_code": account and account.currency_code,
                "time_zone": account and account.time_zone,
                "status": account and account.status,
                "managers": account and "/".join(_list_managers(account, accounts)),
                "first_day": first_days.get(customer),
                "parked": why is not None,
                "parked_reason": why,
            }

    def _find_first_days(self) -> dict[str, date]:
        """The first expected day of each customer, of any query."""
        found: dict[str, date] = {}
        for (customer, _query), day in self._ledger.days.first_days(self.source).days.items():
            found[customer] = min(day, found.get(customer, day))
        return found


def _list_managers(account: Account, accounts: Mapping[str, Account]) -> list[str]:
    """The ids of the managers of an account, the topmost first."""
    path: list[str] = []
    manager = account.manager_id
    while manager is not None and manager not in path:
        path.append(manager)
        above = accounts.get(manager)
        manager = above.manager_id if above is not None else None
    return [each for each in reversed(path) if each != account.customer_id]
