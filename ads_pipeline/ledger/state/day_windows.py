"""Selects the days of one query for statements that read many partitions."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from typing import Any

import sqlalchemy as sa

from ads_pipeline.ledger.tables import Day


@dataclass(frozen=True, slots=True, kw_only=True)
class DayWindow:
    """Days of one query, both ends included. With `customers`, only theirs."""

    source: str
    query_name: str
    since: date
    until: date
    customers: Collection[str] | None = None

    def select(self, text: str, customer_column: str = "customer_id", **types: Any) -> sa.TextualSelect:
        """The statement with this text, whose parameters have the window's values.

        In the text, {customers} is the place of the condition on the customers. `types` are those of the columns.
        """
        condition = "TRUE" if self.customers is None else f"{customer_column} IN :customers"
        statement = sa.text(text.strip().replace("{customers}", condition)).bindparams(
            sa.bindparam("source", self.source),
            sa.bindparam("query_name", self.query_name),
            sa.bindparam("since", self.since, Day()),
            sa.bindparam("until", self.until, Day()),
        )
        if self.customers is not None:
            statement = statement.bindparams(sa.bindparam("customers", expanding=True))
            statement = statement.bindparams(customers=sorted(self.customers))
        return statement.columns(**types)
