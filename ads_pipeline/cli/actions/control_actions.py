"""Executes the control actions of the command line: enqueue, retry, mark and clear terminal, reprocess, withdraw.

`pipeline.operator_actions` previews and executes them. This module loads neither Spark nor DuckDB; the actions that
override a verdict are in `demote_and_restore`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from ads_pipeline.cli.actions import confirmation
from ads_pipeline.cli.actions.arguments import (
    ActionArguments,
    build_request,
    list_partitions_to_enqueue,
    select_partitions,
    suggest,
)
from ads_pipeline.cli.actions.confirmation import ActionPlan, ActionReport, PlannedChange
from ads_pipeline.cli.output import count_of, terminal_progress
from ads_pipeline.cli.parsing import open_control_actions, open_ledger
from ads_pipeline.domain.partition import validate_name
from ads_pipeline.domain.retry import ERROR_POLICIES
from ads_pipeline.domain.transitions import Action, PartitionState, Status
from ads_pipeline.errors import BadName
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.pipeline.operator_actions import ActionOutcome, ActionPreview, OperatorActions, execute_preview
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionCommand:
    """The command name of an action, the description of a partition after it, and the help text."""

    name: str
    becomes: str
    help: str


ACTION_COMMANDS: Final[Mapping[Action, ActionCommand]] = {
    Action.REQUEUE: ActionCommand(
        name="retry",
        becomes="pending",
        help="""Requeue failed partitions, so that they are fetched and judged again.

        Skips terminal partitions and partitions without a raw run; see --clear-terminal and --force. The attempt
        count stays.
        """,
    ),
    Action.ENQUEUE: ActionCommand(
        name="enqueue",
        becomes="pending, requested",
        help="""Request runs of partitions that are not recorded yet, as for a backfill.

        Selects each day from --since to --until, for the given queries and customers. The default is all queries of
        the query file and all customers in the ledger. Recorded partitions are skipped.
        """,
    ),
    Action.MARK_TERMINAL: ActionCommand(
        name="mark-terminal",
        becomes="{status}, terminal",
        help="""Mark failed partitions as terminal, so that they are not retried.

        New sealed runs are judged as usual. "state clear-terminal" removes the marks.
        """,
    ),
    Action.CLEAR_TERMINAL: ActionCommand(
        name="clear-terminal",
        becomes="{status}, not marked",
        help="""Remove terminal marks.

        The retry policy then decides by age and number of failures whether a failed partition is retried.
        """,
    ),
    Action.REPROCESS: ActionCommand(
        name="reprocess",
        becomes="{status}, requested",
        help="""Request new runs of successful partitions.

        They stay safe to read in the meantime, and also when the new run is rejected.
        """,
    ),
    Action.WITHDRAW: ActionCommand(
        name="withdraw",
        becomes="pending, hidden",
        help="""Hide successful partitions from readers at once, and set them to pending.

        The verdict on the run stays: "state restore" publishes it again, and "state demote" rejects it.
        """,
    ),
}


def run_action(settings: Settings, arguments: ActionArguments, *, action: Action) -> int:
    """Preview, confirm and execute an action on the selected partitions. Returns the exit code."""
    request = build_request(arguments)
    select = list_partitions_to_enqueue if action is Action.ENQUEUE else select_partitions
    with open_ledger(settings) as ledger:
        selection = select(arguments, settings, ledger)
        needs_runs = action is Action.REQUEUE and not arguments.force and settings.raw_root.is_dir()
        raw = RawRuns(settings.raw_root) if needs_runs else None
        actions = OperatorActions(
            ledger=ledger, policy=settings.retry_policy, today=datetime.now(UTC).date(), raw=raw
        )
        preview = actions.preview(action, selection, include_terminal=arguments.clear_terminal)
        if arguments.error_class is not None:
            preview = _filter_by_error_class(preview, ledger, arguments.error_class)
    plan = _build_plan(preview)
    if not confirmation.confirm(plan, arguments):
        return 0
    with open_control_actions(settings) as ledger_actions:
        outcome = execute_preview(ledger_actions, preview, request, report_progress=terminal_progress())
    return confirmation.report_outcome(plan, _build_report(preview, outcome, request.action_id), arguments)


def _filter_by_error_class(preview: ActionPreview, ledger: LedgerReader, error_class: str) -> ActionPreview:
    """Keep the partitions whose last failure has this class. Raises BadName for an unknown class."""
    validate_name("error_class", error_class)
    failures = ledger.retry_queue.find_failures([*(state.key for state in preview.states), *preview.skipped])
    kept = {key for key, failure in failures.items() if failure.error_class == error_class}
    if not kept and error_class not in ERROR_POLICIES:
        seen = {failure.error_class for failure in failures.values() if failure.error_class}
        known = sorted({*ERROR_POLICIES, *seen})
        raise BadName("error_class", error_class, f"no failure has this class; {suggest(error_class, known)}")
    return replace(
        preview,
        states=tuple(state for state in preview.states if state.key in kept),
        marks_to_clear=tuple(state for state in preview.marks_to_clear if state.key in kept),
        skipped={key: reason for key, reason in preview.skipped.items() if key in kept},
    )


def _build_plan(preview: ActionPreview) -> ActionPlan:
    command, to_clear = ACTION_COMMANDS[preview.action], set(preview.marks_to_clear)
    changes = [
        PlannedChange(
            key=state.key,
            status=state.status,
            now=_describe(state),
            becomes=command.becomes.format(status=state.status) + (", mark cleared" if state in to_clear else ""),
        )
        for state in preview.states
    ]
    return ActionPlan(verb=command.name, changes=changes, skipped=preview.skipped)


def _describe(state: PartitionState) -> str:
    """The status, with the number of rows of a success and else the number of attempts."""
    if state.status is Status.SUCCESS:
        return f"{state.status}, {count_of(state.record_count or 0, 'row')}"
    return f"{state.status}, {count_of(state.attempt_count, 'attempt')}"


def _build_report(preview: ActionPreview, outcome: ActionOutcome, action_id: str) -> ActionReport:
    changed = [state.key for state in outcome.changed]
    reached = {*changed, *outcome.unchanged}
    refusals = {error.partition: error.problem for error in outcome.refused}
    default = "not reached" if outcome.outage is None else str(outcome.outage)
    return ActionReport(
        action_id=action_id,
        changed=changed,
        unchanged=outcome.unchanged,
        remaining={
            state.key: refusals.get(str(state.key), default) for state in preview.states if state.key not in reached
        },
    )
