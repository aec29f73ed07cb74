"""Makes one call about accounts or queries: an operation for it, and its fault as a value."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from ads_pipeline.domain.fetching.quota import Operation, Refused
from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.faults.fault_reading import Fault, read_fault
from ads_pipeline.google_ads.operation_budget import Budget, CallResult

_T = TypeVar("_T")


def spend(
    clients: Clients,
    budget: Budget,
    operation: Operation,
    login_customer_id: str | None,
    call: Callable[[CallResult], _T],
    *,
    repeat: str,
    parked_names: Mapping[str, str] | None = None,
) -> _T | Fault:
    """Return the result of the call, or the fault that it ended with, or that there was no operation for it.

    `repeat` is the command that makes the call again, `parked_names` what the caller parks for a refusal. An answer
    that the client cannot read is a fault as well.
    """
    granted = budget.reserve(operation)
    if isinstance(granted, Refused):
        message = f"{granted.why}; possible again at {granted.until:%Y-%m-%d %H:%M:%S} UTC"
        return Fault(error_class=granted.error_class, message=message)
    with budget.spend(granted) as result:
        try:
            return call(result)
        except Exception as error:  # noqa: BLE001 - an odd answer must not stop the calls behind it
            context = clients.request_context(login_customer_id, parked_names=parked_names, repeat=repeat)
            fault = read_fault(error, context, result.request_id)
            result.fault = fault
    return fault


def find_query_fault(
    clients: Clients, budget: Budget, operation: Operation, login_customer_id: str | None, query: str
) -> Fault | None:
    """The fault with which Google refuses a query, which is not run; None when it would accept it."""

    def validate(_result: CallResult) -> None:
        clients.validate(customer_id=str(operation.customer_id), login_customer_id=login_customer_id, query=query)

    repeat = f"ads-pipeline queries check --online {operation.customer_id}"
    return spend(clients, budget, operation, login_customer_id, validate, repeat=repeat)
