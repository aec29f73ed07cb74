"""One call about accounts or queries: an operation for it, and its fault as a value."""

from collections.abc import Callable
from typing import TypeVar

from ads_pipeline.domain.quota import Operation, Refused
from ads_pipeline.google_ads.budget import Budget, CallResult
from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.fault_table import QUOTA_EXHAUSTED
from ads_pipeline.google_ads.faults import CALL_ERRORS, Fault, read_fault

_T = TypeVar("_T")


def spend(
    clients: Clients,
    budget: Budget,
    operation: Operation,
    login_customer_id: str | None,
    call: Callable[[CallResult], _T],
) -> _T | Fault:
    """What the call returns, or the fault that it ended with, or that there was no operation for it."""
    granted = budget.reserve(operation)
    if isinstance(granted, Refused):
        message = f"{granted.why}; possible again at {granted.until:%Y-%m-%d %H:%M:%S} UTC"
        return Fault(error_class=QUOTA_EXHAUSTED, message=message)
    with budget.spend(granted) as result:
        try:
            return call(result)
        except CALL_ERRORS as error:
            fault = read_fault(error, clients.request_context(login_customer_id), result.request_id)
            result.fault = fault
    return fault
