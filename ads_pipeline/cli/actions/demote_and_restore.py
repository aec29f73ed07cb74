"""Takes runs back from readers, or gives them earlier ones again, after showing from which run to which.

What either does is `overruling`'s. It loads Spark's client, so nothing that starts at once imports it; Spark itself
is started only when there is something to do and nobody said no.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ads_pipeline.cli.actions import confirmation
from ads_pipeline.cli.actions.arguments import ActionArguments, suggest, select_partitions, build_request
from ads_pipeline.cli.actions.confirmation import ActionReport, PlannedChange, ActionPlan
from ads_pipeline.cli.parsing import open_ledger, open_ledger_for_writing
from ads_pipeline.domain.partition import PartitionKey, Run, validate_name
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.errors import AdsPipelineError, BadCommand, BadName
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import ActionRequest, StateFilter
from ads_pipeline.pipeline import demote_and_restore
from ads_pipeline.pipeline.demote_and_restore import OverrideResult, find_earlier_accepted
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline.progress import no_progress, progress_on
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import Settings
from ads_pipeline.spark_session import spark_session
from ads_pipeline.warehouse.publication import Warehouse

NO_EARLIER_RUN = "no run of it was accepted before"
ALREADY_CURRENT = "readers have that run"
STATE_CHANGED = "it changed since it was looked at; look again"
Work = Callable[[Pipeline, LedgerReader, Sequence[Run], ActionRequest], OverrideResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverride:
    """A partition as it was seen, and the run that the act is about."""

    state: PartitionState
    run: Run


def demote(settings: Settings, arguments: ActionArguments) -> int:
    """Reject what readers have of the partitions that are meant; the code to end with."""
    order = build_request(arguments)
    with open_ledger(settings) as ledger:
        states = _states(ledger, select_partitions(arguments, settings, ledger), only=Status.SUCCESS)
    steps = [
        RunOverride(state=state, run=Run(key=state.key, run_id=str(state.current_run_id)))
        for state in states
        if state.status is Status.SUCCESS
    ]
    skipped = {
        state.key: f"it is {state.status}: readers have nothing of it"
        for state in states
        if state.status is not Status.SUCCESS
    }
    lines = [_line(step, "failed, nothing to read") for step in steps]
    plan = ActionPlan(verb="demote", changes=lines, skipped=skipped)
    return _carry_out(settings, plan, steps, arguments, order, _demote)


def restore(settings: Settings, arguments: ActionArguments, *, run_id: str | None) -> int:
    """Give readers earlier runs of the partitions that are meant; the code to end with."""
    if run_id is not None and len(set(arguments.partitions)) != 1:
        raise BadCommand("--run is a run of one partition: name that partition, and no other")
    order = build_request(arguments)
    steps, skipped = list[RunOverride](), dict[PartitionKey, str]()
    with open_ledger(settings) as ledger:
        for state in _states(ledger, select_partitions(arguments, settings, ledger)):
            run = find_earlier_accepted(ledger, state) if run_id is None else _named(ledger, state, run_id)
            if run is None:
                skipped[state.key] = NO_EARLIER_RUN
            elif state.status is Status.SUCCESS and run.run_id == state.current_run_id:
                skipped[state.key] = ALREADY_CURRENT
            else:
                steps.append(RunOverride(state=state, run=run))
    lines = [_line(step, f"success from {step.run.run_id}") for step in steps]
    plan = ActionPlan(verb="restore", changes=lines, skipped=skipped)
    return _carry_out(settings, plan, steps, arguments, order, demote_and_restore.restore)


def _demote(pipeline: Pipeline, _ledger: LedgerReader, runs: Sequence[Run], order: ActionRequest) -> OverrideResult:
    return demote_and_restore.demote(pipeline, runs, order)


def _states(
    ledger: LedgerReader, wanted: StateFilter | Sequence[PartitionKey], *, only: Status | None = None
) -> list[PartitionState]:
    """The states that are meant: of a filter those of the status, of names all of them."""
    if isinstance(wanted, StateFilter):
        return list(ledger.iter_states(wanted if only is None else replace(wanted, statuses=frozenset({only}))))
    return list(ledger.states(wanted).values())


def _named(ledger: LedgerReader, state: PartitionState, run_id: str) -> Run:
    known = [each.run.run_id for each in ledger.runs(state.key)]
    if validate_name("run_id", run_id) not in known:
        raise BadName("run_id", run_id, f"{state.key} has no such run; {suggest(run_id, known)}")
    return Run(key=state.key, run_id=run_id)


def _line(step: RunOverride, becomes: str) -> PlannedChange:
    state = step.state
    now = f"success from {state.current_run_id}" if state.status is Status.SUCCESS else str(state.status)
    return PlannedChange(key=state.key, status=state.status, now=now, becomes=becomes)


def _carry_out(
    settings: Settings, plan: ActionPlan, steps: Sequence[RunOverride], asked: ActionArguments, order: ActionRequest, work: Work
) -> int:
    if not confirmation.confirm(plan, asked):
        return 0
    tell = progress_on(sys.stderr) if sys.stderr.isatty() else no_progress
    with spark_session(settings) as spark, open_ledger_for_writing(settings) as ledger:
        pipeline = Pipeline(
            spark=spark,
            raw=RawRuns(settings.raw_root),
            ledger=ledger,
            warehouse=Warehouse(settings.warehouse_root),
            report_progress=tell,
        )
        seen = ledger.states(step.state.key for step in steps)  # Spark took its time to start
        runs = [step.run for step in steps if seen[step.state.key] == step.state]
        changed = {step.state.key: STATE_CHANGED for step in steps if seen[step.state.key] != step.state}
        try:
            done = work(pipeline, ledger, runs, order) if runs else OverrideResult(recorded=())
        except AdsPipelineError:
            told = f'act {order.action_id} has stopped half-way; "ads-pipeline reconcile" finishes what it began'
            print(told, file=sys.stderr)  # noqa: T201 - a person reads it
            raise
    return confirmation.report_outcome(plan, _end(plan, done, changed, order.action_id), asked)


def _end(plan: ActionPlan, done: OverrideResult, changed: Mapping[PartitionKey, str], action_id: str) -> ActionReport:
    recorded = [each.state.key for each in done.recorded]
    refused = {line.key: str(error) for error in done.refusals for line in plan.changes if str(line.key) in str(error)}
    why = {**refused, **done.problems, **changed}
    return ActionReport(
        action_id=action_id,
        changed=recorded,
        remaining={
            line.key: why.get(line.key, "it was not reached") for line in plan.changes if line.key not in set(recorded)
        },
        unfinished=dict(_unloaded(done)),
    )


def _unloaded(done: OverrideResult) -> Iterator[tuple[PartitionKey, str]]:
    """What is accepted again and not with its readers yet."""
    for run, error in done.loading.unreadable.items():
        yield run.key, f'{run} is accepted and not loaded, "ads-pipeline reconcile" tries again: {error}'
