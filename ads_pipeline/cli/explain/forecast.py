"""Forecasts for each partition when it is retried next, and what prevents a retry.

`domain.retry` holds the rules and `RetryQueue` the schedule. `advice` derives an operator's next steps.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ads_pipeline.cli.output import format_instant, iso_instant
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import Failure, Parked, RetryAt, RetryDecision, RetryPolicy, Terminal, decide_retry
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.control.retry_queue import OpenRequest, Parking, ScheduledRetry
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import LeaseHolder


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryForecast:
    """The retry decision for a partition, its open request, its parkings, its mark and its lease holder."""

    decision: RetryDecision | None = None
    request: OpenRequest | None = None
    parkings: tuple[Parking, ...] = ()
    marked: bool = False
    holder: LeaseHolder | None = None

    @property
    def terminal(self) -> Terminal | None:
        return self.decision if isinstance(self.decision, Terminal) else None

    @property
    def next_at(self) -> datetime | None:
        """When the partition is retried next; None when it is not retried without a control action."""
        if self.parkings or self.marked:
            return None
        if isinstance(self.decision, RetryAt):
            return self.decision.at
        return self.request.requested_at if self.request and self.decision is None else None

    def describe(self, now: datetime) -> dict[str, str]:
        """Labelled texts for people. Labels without content are absent."""
        texts = {} if self.holder is None else {"claim": str(self.holder)}
        if self.request:
            at = format_instant(self.request.requested_at)
            texts["requested"] = f"{self.request.kind} at {at}, action {self.request.action_id}"
        if self.parkings:
            texts["parked"] = "; ".join(map(describe_parking, self.parkings))
        next_retry = self._describe_next_retry(now)
        return texts if next_retry is None else texts | {"next retry": next_retry}

    def _describe_next_retry(self, now: datetime) -> str | None:
        if self.terminal:
            return f"none, terminal: {self.terminal.explanation}"
        if self.marked:
            return "none, marked as terminal"
        if isinstance(self.decision, Parked):
            return f"none: {self.decision.explanation}"
        if self.next_at is None:
            return None
        explanation = f" ({self.decision.explanation})" if self.decision else ""
        return f"{'due since ' if self.next_at <= now else ''}{format_instant(self.next_at)}{explanation}"

    def json_fields(self) -> dict[str, object]:
        request, terminal = self.request, self.terminal
        return {
            "next_retry_at": iso_instant(self.next_at),
            "next_retry_reason": None if self.decision is None else self.decision.explanation,
            "terminal": terminal and terminal.reason.value,
            "marked_terminal": self.marked,
            "requested": request and request.kind,
            "requested_at": iso_instant(request.requested_at if request else None),
            "requested_by_action": request and request.action_id,
            "held_by_run": self.holder and self.holder.run_id,
            "parked": [f"{parking.scope} {parking.name}" for parking in self.parkings],
        }


def forecast_retries(
    ledger: LedgerReader, states: Sequence[PartitionState], policy: RetryPolicy, *, now: datetime
) -> dict[PartitionKey, RetryForecast]:
    """Forecast each partition, in the order given."""
    keys, queue = [state.key for state in states], ledger.retry_queue
    failures, scheduled = queue.find_failures(keys), queue.find_scheduled(keys)
    requests, marked = queue.find_requests(keys), queue.find_marked(keys)
    holders = ledger.leases.holders(keys)
    parkings = [parking for source in {key.source for key in keys} for parking in queue.list_parkings(source)]
    forecasts = {}
    for state in states:
        key, request = state.key, requests.get(state.key)
        request = request if request and request.attempt_no == state.attempt_count else None
        failure = _relevant_failure(state, failures.get(key), request)
        decision = None if failure is None else decide_retry(failure, policy, marked=key in marked, today=now.date())
        forecasts[key] = RetryForecast(
            decision=_apply_schedule(decision, scheduled.get(key), state),
            request=request,
            parkings=tuple(parking for parking in parkings if _is_parked(parking, key)),
            marked=key in marked,
            holder=holders.get(key),
        )
    return forecasts


def describe_forecasts(
    forecasts: Mapping[PartitionKey, RetryForecast], now: datetime
) -> Iterable[tuple[PartitionKey, str]]:
    """One line per partition that has anything to describe."""
    for key, forecast in forecasts.items():
        line = "; ".join(f"{label}: {text}" for label, text in forecast.describe(now).items())
        if line:
            yield key, line


def describe_parking(parking: Parking) -> str:
    since = "" if parking.parked_at is None else f" since {format_instant(parking.parked_at)}"
    what = "account" if parking.scope == "customer" else parking.scope
    return f"{what} {parking.name}{since}: {parking.error_class}: {parking.why}"


def _relevant_failure(state: PartitionState, failure: Failure | None, request: OpenRequest | None) -> Failure | None:
    """The failure, if the partition is failed or the failure came after its open request."""
    if failure is None or state.status is Status.FAILED:
        return failure
    return failure if request and failure.failed_at > request.requested_at else None


def _apply_schedule(
    decision: RetryDecision | None, scheduled: ScheduledRetry | None, state: PartitionState
) -> RetryDecision | None:
    """Replace the computed time by the scheduled one, which stays valid when the policy changes."""
    if not isinstance(decision, RetryAt) or scheduled is None or scheduled.due_at is None:
        return decision
    if scheduled.attempt_no != state.attempt_count:
        return decision
    return RetryAt(at=scheduled.due_at, explanation=decision.explanation)


def _is_parked(parking: Parking, key: PartitionKey) -> bool:
    name = key.customer_id if parking.scope == "customer" else key.query_name
    return (parking.source, parking.name) == (key.source, name)
