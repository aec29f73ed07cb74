"""Requeues due retries for the retry sensor, and chooses the requests to run next."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from ads_pipeline.domain.fetching.retry_forecast import OpenRequest, ScheduledRetry
from ads_pipeline.domain.fetching.retry_policy import Lane, RetryPolicy, allocate_slots
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import ActionRequest, ActionResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryScheduler:
    """Schedules the retries of one source under one policy, as of one day.

    It only reads the ledger. `requeue_due` changes it through the given `ControlActions`.
    """

    ledger: LedgerReader
    policy: RetryPolicy
    source: str
    today: date

    def requeue_due(self, control_actions: ControlActions, request: ActionRequest, *, slots: int) -> ActionResult:
        """Schedule new failures, and requeue due ones until each lane has `slots` open requests.

        The lanes are filled separately, so a long queue in one does not block the other.
        """
        control_actions.schedule_failures(self.policy, today=self.today)
        due: dict[PartitionKey, ScheduledRetry] = {}
        for lane, waiting in self._find_due_requests(slots).items():
            if len(waiting) < slots:
                due |= {retry.key: retry for retry in self._find_due(lane, slots - len(waiting))}
        states = [
            state
            for key, state in self.ledger.states.get_many(due).items()
            if state.status is Status.FAILED and state.attempt_count == due[key].attempt_no
        ]
        if not states:
            return ActionResult()
        return control_actions.execute(Action.REQUEUE, [state.key for state in states], request, expected=states)

    def next_runs(self, *, slots: int) -> dict[PartitionKey, str]:
        """The partitions to run next, at most `slots`, each with its reason: fresh days first, a share for backfills.

        A due partition that is still failed is left out: `requeue_due` requests it first.
        """
        reasons: dict[Lane, dict[PartitionKey, str]] = {}
        for lane, requests in self._find_due_requests(slots).items():
            due = {retry.key: retry for retry in self._find_due(lane, slots)}
            pending = [
                state.key for state in self.ledger.states.get_many(due).values() if state.status is Status.PENDING
            ]
            reasons[lane] = {
                request.key: f"{request.kind} {request.action_id} after attempt {request.attempt_no}"
                for request in requests
            } | {key: f"failed fetch at {due[key].failed_at}" for key in pending}
        running = self.ledger.retry_queue.count_claimed(self.source, self.today)
        chosen = allocate_slots({lane: list(found) for lane, found in reasons.items()}, slots, running=running)
        every = {key: reason for found in reasons.values() for key, reason in found.items()}
        return {key: every[key] for key in chosen}

    def _find_due(self, lane: Lane, limit: int) -> list[ScheduledRetry]:
        find = self.ledger.retry_queue.find_due
        return find(self.policy, lane, source=self.source, today=self.today, limit=max(limit, 1))

    def _find_due_requests(self, slots: int) -> Mapping[Lane, list[OpenRequest]]:
        find, limit = self.ledger.retry_queue.find_due_requests, max(slots, 1)
        return {lane: find(self.policy, lane, source=self.source, today=self.today, limit=limit) for lane in Lane}
