"""Gathers what becomes of partitions: when they are tried next, what was asked for, what is held back, and why.

The rules are `retry`'s, the plans the ledger's. What an operator does about it is for `advice` to say.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ads_pipeline.cli.output import iso_instant, format_instant
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import Failure, Parked, RetryAt, RetryDecision, RetryPolicy, Terminal, decide_retry
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.control.retry_queue import OpenRequest, Parking, ScheduledRetry
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import LeaseHolder


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryForecast:
    """What becomes of one partition: of its last failure, of what was asked for, and what holds it back."""

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
        """The moment from which it is tried again; None where nothing brings a try until somebody acts."""
        if self.parkings or self.marked:
            return None
        if isinstance(self.decision, RetryAt):
            return self.decision.at
        return self.request.requested_at if self.request and self.decision is None else None

    def describe(self, now: datetime) -> dict[str, str]:
        """In words, for people."""
        said = {} if self.holder is None else {"at work": str(self.holder)}
        if self.request:
            said["asked for"] = (
                f"{self.request.kind} at {format_instant(self.request.requested_at)}, act {self.request.action_id}"
            )
        if self.parkings:
            said["parked"] = "; ".join(map(describe_parking, self.parkings))
        if self.terminal:
            said["next try"] = f"none, it is terminal: {self.terminal.explanation}"
        elif self.marked:
            said["next try"] = "none, it is marked as terminal"
        elif isinstance(self.decision, Parked):
            said["next try"] = f"none: {self.decision.explanation}"
        elif self.next_at:
            why = f" ({self.decision.explanation})" if self.decision else ""
            said["next try"] = (
                f"due since {format_instant(self.next_at)}" if self.next_at <= now else format_instant(self.next_at)
            ) + why
        return said

    def json_fields(self) -> dict[str, object]:
        """The same for programs."""
        request, terminal = self.request, self.terminal
        return {
            "next_try_at": iso_instant(self.next_at),
            "next_try_why": None if self.decision is None else self.decision.explanation,
            "terminal": terminal and terminal.reason.value,
            "marked_terminal": self.marked,
            "requested": request and request.kind,
            "requested_at": iso_instant(request.requested_at if request else None),
            "requested_by_act": request and request.action_id,
            "held_by_run": self.holder and self.holder.run_id,
            "parked": [f"{each.scope} {each.name}" for each in self.parkings],
        }


def forecast_retries(
    ledger: LedgerReader, states: Sequence[PartitionState], policy: RetryPolicy, *, now: datetime
) -> dict[PartitionKey, RetryForecast]:
    """What becomes of each of these partitions, in the order given."""
    keys, schedule = [state.key for state in states], ledger.retry_queue
    failures, planned = schedule.find_failures(keys), schedule.find_scheduled(keys)
    requested, marked = schedule.find_requests(keys), schedule.find_marked(keys)
    holders = ledger.lease_holders(keys)
    parkings = [each for source in {key.source for key in keys} for each in schedule.list_parkings(source)]
    found = {}
    for state in states:
        key, request = state.key, requested.get(state.key)
        request = request if request and request.attempt_no == state.attempt_count else None
        failure = _that_counts(state, failures.get(key), request)
        answer = None if failure is None else decide_retry(failure, policy, marked=key in marked, today=now.date())
        found[key] = RetryForecast(
            decision=_as_planned(answer, planned.get(key), state),
            request=request,
            parkings=tuple(each for each in parkings if _holds(each, key)),
            marked=key in marked,
            holder=holders.get(key),
        )
    return found


def describe_forecasts(told: Mapping[PartitionKey, RetryForecast], now: datetime) -> Iterable[tuple[PartitionKey, str]]:
    """Each partition of which there is something to say, on one line."""
    for key, prospect in told.items():
        said = "; ".join(f"{name}: {words}" for name, words in prospect.describe(now).items())
        if said:
            yield key, said


def describe_parking(parking: Parking) -> str:
    since = "" if parking.parked_at is None else f" since {format_instant(parking.parked_at)}"
    what = "account" if parking.scope == "customer" else parking.scope
    return f"{what} {parking.name}{since}: {parking.error_class}: {parking.why}"


def _that_counts(state: PartitionState, failure: Failure | None, request: OpenRequest | None) -> Failure | None:
    """A failure decides about a failed partition, and about a request if it came after it."""
    if failure is None or state.status is Status.FAILED:
        return failure
    return failure if request and failure.failed_at > request.requested_at else None


def _as_planned(
    answer: RetryDecision | None, planned: ScheduledRetry | None, state: PartitionState
) -> RetryDecision | None:
    """The moment that was planned holds, also where the policy has changed since."""
    if isinstance(answer, RetryAt) and planned and planned.due_at and planned.attempt_no == state.attempt_count:
        return RetryAt(at=planned.due_at, explanation=answer.explanation)
    return answer


def _holds(parking: Parking, key: PartitionKey) -> bool:
    name = key.customer_id if parking.scope == "customer" else key.query_name
    return (parking.source, parking.name) == (key.source, name)
