"""Plans an action of operators: which of the selected targets it would change, and why it leaves others out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.fetching.quota import Hold
from ads_pipeline.domain.fetching.retry_forecast import Parking, RetryForecast
from ads_pipeline.domain.fetching.retry_policy import ERROR_POLICIES, RetryPolicy
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.quoting import suggest
from ads_pipeline.domain.transitions import Action, PartitionState, Status, advice_for
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import StateFilter
from ads_pipeline.pipeline.actions import operator_actions as actions
from ads_pipeline.pipeline.actions.operator_actions import LeftOut, OperatorAction, Plan, PlanRow
from ads_pipeline.pipeline.days.restorable_runs import RestorableRun, find_restorable, restore_command

LARGEST_COUNT: Final = 10_000  # per status; counting a million partitions that are left out would take seconds
ALREADY_RECORDED: Final = "already recorded"
NOT_MARKED: Final = "not marked as terminal"
ALREADY_MARKED: Final = "already marked as terminal"
ALREADY_REQUESTED: Final = "already requested; the next verdict closes the request"
NO_SEALED_RUN: Final = "no sealed run on disk; check the extractor, or retry with --force"
NO_RUN_TO_JUDGE: Final = "it has no run that a verdict could change"
DEMOTED_BY_OPERATOR: Final = "an operator demoted its run; to judge and publish it again:"
ALREADY_CURRENT: Final = "that run is current already"
TERMINAL: Final = "terminal: {}; or use --clear-terminal"
NO_FAILED_FETCH: Final = "no fetch of it has failed since it was requested"
NEEDS_NOBODY: Final = "it needs nobody"
PARKED: Final = "its fetches are parked; release it first"
# The actions that request a pending day again whose fetches failed. They permit it beside their own statuses.
REQUESTING: Final = (actions.RETRY, actions.ENQUEUE, actions.REPROCESS, actions.CLEAR)
# The actions that change a partition without a row.
UNRECORDED: Final = (actions.ENQUEUE, actions.ACKNOWLEDGE)
Selection = StateFilter | Sequence[PartitionKey] | Parking


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Plans one action. It only reads the ledger.

    A retry skips terminal partitions unless `clear_terminal`; given `raw`, it also skips partitions without a sealed
    run. `error_class` keeps the partitions whose last failure has it. A restore takes `run_id`, or finds a run.
    `days` are described for an acknowledgement, which leaves out days that need nobody.
    """

    ledger: LedgerReader
    policy: RetryPolicy
    action: OperatorAction
    clear_terminal: bool = False
    error_class: str | None = None
    raw: RawRuns | None = None
    run_id: str | None = None
    days: Mapping[PartitionKey, DayCondition] = field(default_factory=dict)

    def plan(self, selection: Selection) -> Plan:
        """List what the action would change among the selected targets. Nothing is written."""
        if isinstance(selection, Parking):
            return self._plan_parking(selection)
        states, skipped, others = self._select(selection)
        skipped |= {key: _describe_quiet(day) for key, day in self.days.items() if not day.entry.needs_operator}
        failed = self._find_failed_fetches(states)
        skipped |= {
            state.key: self._describe_status(state.recorded_status)
            for state in states
            if state.key not in failed and not self._permits(state)
        }
        skipped |= self._find_skipped([state for state in states if state.key not in {*failed, *skipped}])
        skipped |= {key: why for key, why in failed.items() if why}
        changes = []
        for state in (state for state in states if state.key not in skipped):
            row = self._plan_change(state) if state.key not in failed else self._plan_request(state)
            if isinstance(row, PlanRow):
                changes.append(row)
            else:
                skipped[state.key] = row
        if self.action is actions.RETRY:
            marked = self.ledger.retry_queue.find_marked(state.key for state in states)
            changes = [
                replace(row, becomes=f"{row.becomes}, mark cleared", clears_mark=True)
                if row.target in marked
                else row
                for row in changes
            ]
        return Plan(
            action=self.action,
            changes=tuple(changes),
            skipped=tuple(PlanRow(target=key, now="", why_skipped=why) for key, why in skipped.items()),
            other_statuses=others,
        )

    def _select(
        self, selection: StateFilter | Sequence[PartitionKey]
    ) -> tuple[list[PartitionState], dict[PartitionKey, str], tuple[LeftOut, ...]]:
        """The selected states whose status permits the action, and what the status leaves out."""
        if not isinstance(selection, StateFilter):
            found = self._keep_error_class(self.ledger.states.get_many(selection).values())
            left_out = [state for state in found if not self._permits(state) and not self._requests(state)]
            skipped = {state.key: self._describe_status(state.recorded_status) for state in left_out}
            return [state for state in found if state.key not in skipped], skipped, ()
        selected = selection.statuses or frozenset(Status)
        permitted = selected & self.action.statuses
        requestable = selected & {Status.PENDING} if self.action in REQUESTING else frozenset()
        found = self._keep_error_class(
            self.ledger.states.iterate(replace(selection, statuses=permitted | requestable))
        )
        failed = self._find_failed_fetches([state for state in found if state.status not in permitted])
        others = [state for state in found if state.status not in permitted and state.key not in failed]
        kept = [state for state in found if state.status in permitted or state.key in failed]
        if self.error_class:  # a class selects failures, so that other statuses are not left out: they are not meant
            return kept, {}, ()
        counted = list(self._count(replace(selection, statuses=selected - permitted - requestable)))
        if others:
            reason = self._describe_status(Status.PENDING)
            counted.append(LeftOut(reason=reason, count=len(others), example=others[0].key))
        return kept, {}, tuple(counted)

    def _requests(self, state: PartitionState) -> bool:
        """Return whether the action may request the partition again because its fetches failed."""
        return self.action in REQUESTING and state.recorded_status is Status.PENDING

    def _find_failed_fetches(self, states: Sequence[PartitionState]) -> dict[PartitionKey, str]:
        """The pending partitions whose fetches failed, each with the reason why it is not requested now, or empty."""
        queue, pending = self.ledger.retry_queue, [state for state in states if self._requests(state)]
        scheduled = queue.find_scheduled(state.key for state in pending)  # a backfill may leave a million pending
        forecasts = queue.forecast([state for state in pending if state.key in scheduled], self.policy)
        found = {}
        for key, forecast in forecasts.items():
            if self.action is actions.CLEAR and (forecast.marked or forecast.given_up is None):
                continue  # it removes the mark, or there is nothing to clear
            if forecast.decision is not None:
                found[key] = self._refuse_request(forecast)
        return found

    def _refuse_request(self, forecast: RetryForecast) -> str:
        if forecast.parkings:
            return PARKED
        if forecast.terminal is None or self.clear_terminal:
            return ""
        return TERMINAL.format(forecast.terminal.explanation)

    def _plan_request(self, state: PartitionState) -> PlanRow:
        """Request a pending partition again whose fetches failed."""
        now = f"{state.status}, its fetches failed"
        return PlanRow(target=state.key, now=now, becomes="pending, requested", state=state, control=Action.REQUEUE)

    def _permits(self, state: PartitionState) -> bool:
        if state.recorded_status is None:
            return self.action in UNRECORDED
        return state.status in self.action.statuses

    def _keep_error_class(self, states: Iterable[PartitionState]) -> list[PartitionState]:
        found = list(states)
        if self.error_class is None:
            return found
        failures = self.ledger.retry_queue.find_failures(state.key for state in found)
        kept = {key for key, failure in failures.items() if failure.error_class == self.error_class}
        if not kept and self.error_class not in ERROR_POLICIES:
            seen = {failure.error_class for failure in failures.values() if failure.error_class}
            known = suggest(self.error_class, sorted({*ERROR_POLICIES, *seen}))
            raise BadName("error_class", self.error_class, f"no failure has this class; {known}")
        return [state for state in found if state.key in kept]

    def _count(self, selection: StateFilter) -> Iterator[LeftOut]:
        """The partitions of other statuses, counted."""
        for status, count in self.ledger.states.count_by_status(selection, max_count=LARGEST_COUNT).items():
            if count:
                (example,) = self.ledger.states.page(replace(selection, statuses=frozenset({status})), limit=1)
                yield LeftOut(
                    reason=self._describe_status(status),
                    count=min(count, LARGEST_COUNT),
                    example=example.key,
                    is_least=count > LARGEST_COUNT,
                )

    def _describe_status(self, status: Status | None) -> str:
        """Why this status does not permit the action."""
        if self.action is actions.DEMOTE:
            return f"status is {status or 'absent'}: no run is current"
        advice = advice_for(status, self.action.control) if self.action.control else ""
        if status is Status.PENDING and self.action in REQUESTING:
            advice = NO_FAILED_FETCH
        return f"status is {status or 'absent'}" + (f": {advice}" if advice else "")

    def _find_skipped(self, states: Sequence[PartitionState]) -> Mapping[PartitionKey, str]:
        """Why the action skips partitions whose status permits it."""
        keys, queue = [state.key for state in states], self.ledger.retry_queue
        match self.action:
            case actions.ENQUEUE:
                return {state.key: ALREADY_RECORDED for state in states if state.recorded_status is not None}
            case actions.RETRY:
                forecasts = {} if self.clear_terminal else queue.forecast(states, self.policy)
                terminal = {
                    key: TERMINAL.format(forecast.terminal.explanation)
                    for key, forecast in forecasts.items()
                    if forecast.terminal
                }
                return dict.fromkeys(self._find_without_runs(keys), NO_SEALED_RUN) | terminal
            case actions.REPROCESS:
                requests = queue.find_requests(keys)
                attempts = {state.key: state.attempt_count for state in states}
                is_open = {key for key, request in requests.items() if request.attempt_no == attempts[key]}
                forecasts = queue.forecast([state for state in states if state.key in is_open], self.policy)
                return {key: ALREADY_REQUESTED for key, each in forecasts.items() if each.decision is None}
            case actions.MARK:
                return dict.fromkeys(queue.find_marked(keys), ALREADY_MARKED)
            case actions.CLEAR:
                marked = queue.find_marked(keys)
                return {key: NOT_MARKED for key in keys if key not in marked}
        return {}

    def _find_without_runs(self, keys: Iterable[PartitionKey]) -> Iterator[PartitionKey]:
        if self.raw is not None:
            for key in keys:
                if next(iter(self.raw.list_runs(key)), None) is None:
                    yield key

    def _plan_change(self, state: PartitionState) -> PlanRow | str:
        """Describe the change of a partition, or why there is no run to restore or to judge."""
        run = None
        if self.action is actions.DEMOTE:
            run = Run(key=state.key, run_id=str(state.current_run_id))
        elif self.action is actions.RESTORE:
            run_id, restorable = self.run_id, self._find_restorable(state)
            if run_id is None and (restorable.run_id is None or restorable.is_demoted):
                return restorable.why_skipped(state.key)
            run = Run(key=state.key, run_id=run_id or str(restorable.run_id))
            if state.status is Status.SUCCESS and run.run_id == state.current_run_id:
                return ALREADY_CURRENT
        elif self.action is actions.REJUDGE:
            found = self._find_run_to_judge(state)
            if not isinstance(found, Run):
                return found
            run = found
        if self.action is actions.ACKNOWLEDGE:
            day = self.days[state.key]
            return PlanRow(target=state.key, now=day.entry.label.lower(), becomes=self.action.becomes, state=state)
        becomes = self.action.becomes.format(status=state.status, run_id=run and run.run_id)
        return PlanRow(target=state.key, now=_describe_state(state, run), becomes=becomes, state=state, run=run)

    def _find_run_to_judge(self, state: PartitionState) -> Run | str:
        """The newest run without a verdict, or else the current run, or the newest rejected run of a failure."""
        registered = [each.run for each in self.ledger.runs.registered(state.key)]
        if state.status is Status.SUCCESS:
            registered = registered[registered.index(Run(key=state.key, run_id=str(state.current_run_id))) :]
        verdicts = {each.verdict.run: each.verdict for each in self.ledger.runs.attempts(state.key)}
        unjudged = [run for run in registered if run not in verdicts]
        if unjudged:
            return unjudged[-1]
        if state.status is Status.SUCCESS:
            return registered[0]
        if state.status is not Status.FAILED:
            return NO_RUN_TO_JUDGE
        reason = verdicts[registered[-1]].reason
        if reason is not None and reason.operator:
            return f"{DEMOTED_BY_OPERATOR} {restore_command(state.key.short_name, registered[-1].run_id)}"
        return registered[-1]

    def _find_restorable(self, state: PartitionState) -> RestorableRun:
        return find_restorable(self.ledger.runs, [state])[state.key]

    def _plan_parking(self, parking: Parking) -> Plan:
        parkings = self.ledger.retry_queue.list_parkings(parking.source)
        existing = next((each for each in parkings if each.target == parking.target), None)
        hold = self._find_hold(parking)
        now = "parked" if existing else "fetched" if hold is None else "on hold"
        row = PlanRow(target=parking, now=now, becomes=self.action.becomes)
        if (self.action is actions.PARK) is (existing is None) or (self.action is actions.RELEASE and hold):
            return Plan(action=self.action, changes=(row,))
        why = f"already parked{existing.details}" if existing else "neither parked nor on hold"
        return Plan(action=self.action, changes=(), skipped=(replace(row, becomes="", why_skipped=why),))

    def _find_hold(self, target: Parking) -> Hold | None:
        """The hold of this account or source."""
        holds = self.ledger.quota.list_holds(target.source)
        return next((each for each in holds if (each.scope, each.name) == (target.scope, target.name)), None)


def _describe_quiet(day: DayCondition) -> str:
    """Why nobody has to acknowledge the day."""
    return str(day.acknowledged) if day.acknowledged else f"{NEEDS_NOBODY}: {day.entry.label.lower()}"


def _describe_state(state: PartitionState, run: Run | None) -> str:
    """The status, with the current run if it changes, and else with the rows of a success or the attempts."""
    if run is not None:
        return f"success from {state.current_run_id}" if state.status is Status.SUCCESS else str(state.status)
    rows, attempts = state.record_count or 0, state.attempt_count
    if state.status is Status.SUCCESS:
        return f"{state.status}, {rows:,} row{'' if rows == 1 else 's'}"
    return f"{state.status}, {attempts:,} attempt{'' if attempts == 1 else 's'}"
