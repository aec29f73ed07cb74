"""Reserves an operation before each call, and stops the calls of all runs when Google requires a wait."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol, TypeVar

from ads_pipeline.domain.fetching.outages import INTERRUPTED, LONGEST_HOLD
from ads_pipeline.domain.fetching.quota import (
    OK,
    QUOTA_EXHAUSTED,
    Granted,
    Hold,
    Operation,
    OperationOutcome,
    OtherCall,
    QuotaLimits,
    Refused,
    SharedSince,
)
from ads_pipeline.google_ads.faults.fault_reading import DEFAULT_WAIT, Fault

LONGEST_SLEEP: Final = timedelta(seconds=60)  # a longer wait ends the call; its partitions are fetched later
_SLEEPS: Final = 3  # of one call
_Answer = TypeVar("_Answer", Granted | Refused, Granted | Refused | OtherCall)


class OperationLedger(Protocol):
    """Counts the operations of all runs. `ledger.quota` is one."""

    def reserve(self, operation: Operation, limits: QuotaLimits) -> Granted | Refused: ...

    def reserve_shared(
        self, operation: Operation, limits: QuotaLimits, shared: SharedSince
    ) -> Granted | Refused | OtherCall: ...

    def finish(self, granted: Granted, outcome: OperationOutcome, requested: Hold | None = None) -> Hold | None: ...


@dataclass(slots=True)
class CallResult:
    """The facts that a caller learned of its call. Without a fault the call ended well.

    `outage` is set when the call has ended, if it was not answered because the source is away.
    """

    fault: Fault | None = None
    outage: Hold | None = None
    request_id: str | None = None
    rows: int | None = None
    seconds: float | None = None
    consumption: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The operations that this step may use."""

    ledger: OperationLedger
    limits: QuotaLimits
    clock: Callable[[], datetime]
    sleep: Callable[[float], None] = time.sleep
    longest_sleep: timedelta = LONGEST_SLEEP

    def reserve(self, operation: Operation) -> Granted | Refused:
        """One operation, after a short wait if that is all it takes. Each granted one is counted, used or not."""
        return self._reserve_patiently(lambda: self.ledger.reserve(operation, self.limits))

    def reserve_shared(self, operation: Operation, shared: SharedSince) -> Granted | Refused | OtherCall:
        """The same, unless another run calls for these days or has had a final answer."""
        return self._reserve_patiently(lambda: self.ledger.reserve_shared(operation, self.limits, shared))

    def _reserve_patiently(self, reserve: Callable[[], _Answer]) -> _Answer:
        for _ in range(_SLEEPS):
            answer = reserve()
            if not isinstance(answer, Refused) or answer.until - self.clock() > self.longest_sleep:
                return answer
            self.sleep(max((answer.until - self.clock()).total_seconds(), 0.0))
        return reserve()

    @contextmanager
    def spend(self, granted: Granted) -> Iterator[CallResult]:
        """Record how the call in the block ended. A quota that Google says is exhausted stops the other runs too."""
        result, without_fault = CallResult(), INTERRUPTED
        began = time.monotonic()
        try:
            yield result
            without_fault = OK
        finally:
            fault = result.fault
            outcome = OperationOutcome(
                outcome=without_fault if fault is None else fault.error_class,
                error_message=None if fault is None else fault.message,
                request_id=result.request_id or (fault.request_id if fault else None),
                rows=result.rows,
                seconds=result.seconds if result.seconds is not None else time.monotonic() - began,
                consumption=result.consumption,
            )
            is_quota = fault is not None and fault.error_class == QUOTA_EXHAUSTED
            requested = self._make_hold(granted.operation, fault) if fault is not None and is_quota else None
            result.outage = self.ledger.finish(granted, outcome, requested)

    def _make_hold(self, operation: Operation, fault: Fault) -> Hold:
        return Hold(
            source=operation.source,
            until=self.clock() + min(fault.wait or DEFAULT_WAIT, LONGEST_HOLD),
            why=fault.message,
            customer_id=operation.customer_id if fault.holds_customer else None,
            request_id=fault.request_id,
        )
