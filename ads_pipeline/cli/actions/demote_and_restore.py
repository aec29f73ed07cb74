"""Executes `state demote` and `state restore`: preview, confirm, start Spark, override the verdicts.

Only their commands import this module, because it loads Spark's client. Spark itself starts after the confirmation.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ads_pipeline.cli.actions import confirmation
from ads_pipeline.cli.actions.arguments import ActionArguments, build_request, select_partitions, suggest
from ads_pipeline.cli.actions.confirmation import ActionPlan, ActionReport, PlannedChange
from ads_pipeline.cli.output import terminal_progress
from ads_pipeline.cli.parsing import open_ledger, open_ledger_for_writing
from ads_pipeline.domain.partition import PartitionKey, Run, validate_name
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.errors import AdsPipelineError, BadCommand, BadName
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.state.states import States
from ads_pipeline.ledger.values import ActionRequest, StateFilter
from ads_pipeline.pipeline import demote_and_restore
from ads_pipeline.pipeline.demote_and_restore import OverrideResult, find_earlier_accepted
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import Settings
from ads_pipeline.spark_session import spark_session
from ads_pipeline.warehouse.publication import Warehouse

NO_EARLIER_RUN = "no earlier run was accepted"
ALREADY_CURRENT = "that run is current already"
STATE_CHANGED = "it changed since the preview; preview the action again"
OverrideFunction = Callable[[Pipeline, States, Sequence[Run], ActionRequest], OverrideResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverride:
    """A state as previewed, and the run to demote or restore."""

    state: PartitionState
    run: Run


def demote(settings: Settings, arguments: ActionArguments) -> int:
    """Reject the current runs of the selected partitions. Returns the exit code."""
    request = build_request(arguments)
    with open_ledger(settings) as ledger:
        states = _read_states(ledger, select_partitions(arguments, settings, ledger), only=Status.SUCCESS)
    overrides = [
        RunOverride(state=state, run=Run(key=state.key, run_id=str(state.current_run_id)))
        for state in states
        if state.status is Status.SUCCESS
    ]
    skipped = {
        state.key: f"status is {state.status}: no run is current"
        for state in states
        if state.status is not Status.SUCCESS
    }
    changes = [_planned_change(override, "failed, nothing to read") for override in overrides]
    plan = ActionPlan(verb="demote", changes=changes, skipped=skipped)
    return _execute(settings, plan, overrides, arguments, request, _demote)


def restore(settings: Settings, arguments: ActionArguments) -> int:
    """Publish earlier runs of the selected partitions again. Returns the exit code."""
    run_id = arguments.run_id
    if run_id is not None and len(set(arguments.partitions or ())) != 1:
        raise BadCommand("--run needs exactly one partition: the one that the run belongs to")
    request = build_request(arguments)
    overrides, skipped = list[RunOverride](), dict[PartitionKey, str]()
    with open_ledger(settings) as ledger:
        for state in _read_states(ledger, select_partitions(arguments, settings, ledger)):
            run = find_earlier_accepted(ledger.runs, state) if run_id is None else _find_run(ledger, state, run_id)
            if run is None:
                skipped[state.key] = NO_EARLIER_RUN
            elif state.status is Status.SUCCESS and run.run_id == state.current_run_id:
                skipped[state.key] = ALREADY_CURRENT
            else:
                overrides.append(RunOverride(state=state, run=run))
    changes = [_planned_change(override, f"success from {override.run.run_id}") for override in overrides]
    plan = ActionPlan(verb="restore", changes=changes, skipped=skipped)
    return _execute(settings, plan, overrides, arguments, request, demote_and_restore.restore)


def _demote(pipeline: Pipeline, _states: States, runs: Sequence[Run], request: ActionRequest) -> OverrideResult:
    return demote_and_restore.demote(pipeline, runs, request)


def _read_states(
    ledger: LedgerReader, selection: StateFilter | Sequence[PartitionKey], *, only: Status | None = None
) -> list[PartitionState]:
    """The selected states. `only` restricts a filter to one status; named partitions are all returned."""
    if isinstance(selection, StateFilter):
        narrowed = selection if only is None else replace(selection, statuses=frozenset({only}))
        return list(ledger.states.iterate(narrowed))
    return list(ledger.states.get_many(selection).values())


def _find_run(ledger: LedgerReader, state: PartitionState, run_id: str) -> Run:
    known = [registered.run.run_id for registered in ledger.runs.registered(state.key)]
    if validate_name("run_id", run_id) not in known:
        raise BadName("run_id", run_id, f"{state.key} has no such run; {suggest(run_id, known)}")
    return Run(key=state.key, run_id=run_id)


def _planned_change(override: RunOverride, becomes: str) -> PlannedChange:
    state = override.state
    now = f"success from {state.current_run_id}" if state.status is Status.SUCCESS else str(state.status)
    return PlannedChange(key=state.key, status=state.status, now=now, becomes=becomes)


def _execute(
    settings: Settings,
    plan: ActionPlan,
    overrides: Sequence[RunOverride],
    arguments: ActionArguments,
    request: ActionRequest,
    function: OverrideFunction,
) -> int:
    if not confirmation.confirm(plan, arguments):
        return 0
    with spark_session(settings) as spark, open_ledger_for_writing(settings) as ledger:
        pipeline = Pipeline(
            spark=spark,
            raw=RawRuns(settings.raw_root),
            ledger=ledger,
            warehouse=Warehouse(settings.warehouse_root),
            report_progress=terminal_progress(),
        )
        # Starting Spark takes seconds, so the states are compared with the preview again.
        current = ledger.states.get_many(override.state.key for override in overrides)
        changed = {each.state.key: STATE_CHANGED for each in overrides if current[each.state.key] != each.state}
        runs = [each.run for each in overrides if each.state.key not in changed]
        try:
            result = function(pipeline, ledger.states, runs, request) if runs else OverrideResult(recorded=())
        except AdsPipelineError:
            message = f'action {request.action_id} was interrupted; "ads-pipeline reconcile" finishes what it started'
            print(message, file=sys.stderr)  # noqa: T201 - for people
            raise
    return confirmation.report_outcome(plan, _build_report(plan, result, changed, request.action_id), arguments)


def _build_report(
    plan: ActionPlan, result: OverrideResult, changed: Mapping[PartitionKey, str], action_id: str
) -> ActionReport:
    recorded = [verdict.state.key for verdict in result.recorded]
    refused = {run.key: f"run {run.run_id}: {error.problem}" for run, error in result.refusals.items()}
    reasons = {**refused, **result.problems, **changed}
    remaining = [change.key for change in plan.changes if change.key not in set(recorded)]
    return ActionReport(
        action_id=action_id,
        changed=recorded,
        remaining={key: reasons.get(key, "not reached") for key in remaining},
        unfinished=dict(_not_loaded(result)),
    )


def _not_loaded(result: OverrideResult) -> Iterator[tuple[PartitionKey, str]]:
    for run, error in result.loading.unreadable.items():
        yield run.key, f'{run} is accepted but not loaded; "ads-pipeline reconcile" tries again: {error}'
