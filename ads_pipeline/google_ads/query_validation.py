"""Asks Google whether it would accept a query, without running it."""

from ads_pipeline.domain.fetching.quota import Operation, OperationKind
from ads_pipeline.google_ads.calls import spend
from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.faults.fault_reading import Fault
from ads_pipeline.google_ads.operation_budget import Budget, CallResult


class QueryValidator:
    """Sends queries that Google only validates. Each costs an operation."""

    def __init__(self, clients: Clients, budget: Budget, *, source: str) -> None:
        self._clients, self._budget, self._source = clients, budget, source

    def find_fault(self, customer_id: str, login_customer_id: str | None, name: str, query: str) -> Fault | None:
        """The fault with which Google refuses the query for this account; None when it accepts it."""

        def call(_result: CallResult) -> None:
            self._clients.validate(customer_id=customer_id, login_customer_id=login_customer_id, query=query)

        operation = Operation(source=self._source, kind=OperationKind.CHECK, customer_id=customer_id, query_name=name)
        repeat = f"ads-pipeline queries check --online {customer_id}"
        return spend(self._clients, self._budget, operation, login_customer_id, call, repeat=repeat)
