"""Carries out operators' acts on partitions: enqueue, retry, mark and clear terminal, reprocess, withdraw.

What each act does is `control`'s; what overrules a verdict is `overrule`'s. It loads neither Spark nor DuckDB.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from ads_pipeline.cli.actions import confirmation
from ads_pipeline.cli.actions.arguments import ActionArguments, list_partitions_to_enqueue, suggest, select_partitions, build_request
from ads_pipeline.cli.actions.confirmation import ActionReport, PlannedChange, ActionPlan
from ads_pipeline.cli.output import count_of
from ads_pipeline.cli.parsing import open_control_actions, open_ledger
from ads_pipeline.domain.partition import PartitionKey, validate_name
from ads_pipeline.domain.retry import ERROR_POLICIES
from ads_pipeline.domain.transitions import Action, PartitionState, Status
from ads_pipeline.errors import BadName
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline.pipeline.operator_actions import ActionOutcome, ActionPreview, OperatorActions, execute_preview
from ads_pipeline.progress import no_progress, progress_on
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionCommand:
    """An act as it is typed, what a partition becomes by it, and its help."""

    name: str
    becomes: str
    help: str


ACTION_COMMANDS: Final[Mapping[Action, ActionCommand]] = {
    Action.ENQUEUE: ActionCommand(
        name="enqueue",
        becomes="pending, requested",
        help="""Ask for partitions that nobody has heard of, as for a backfill.

        Each day from --since to --until, for each query and each customer: those named, else all that the query file
        and the ledger know. What is recorded already is left out, whatever became of it.
        """,
    ),
    Action.REQUEUE: ActionCommand(
        name="retry",
        becomes="pending",
        help="""Put failed partitions back to pending, so that they are fetched and judged again.

        Terminal ones are left out, and those of which raw holds no run; see --clear-terminal and --force. Attempts
        stay counted.
        """,
    ),
    Action.MARK_TERMINAL: ActionCommand(
        name="mark-terminal",
        becomes="{status}, terminal",
        help="""Mark failed partitions as terminal, so that they are not tried again.

        A run that is sealed all the same is judged as always. "state clear-terminal" takes the marks away.
        """,
    ),
    Action.CLEAR_TERMINAL: ActionCommand(
        name="clear-terminal",
        becomes="{status}, not marked",
        help="""Take marks as terminal away.

        Whether a failed partition is tried again is then for its age and its number of failures to say.
        """,
    ),
    Action.REPROCESS: ActionCommand(
        name="reprocess",
        becomes="{status}, requested",
        help="""Ask for successes to be fetched and judged again.

        They stay safe to read meanwhile, and also where the new run is rejected.
        """,
    ),
    Action.WITHDRAW: ActionCommand(
        name="withdraw",
        becomes="pending, hidden",
        help="""Hide successes from readers at once, and put them back to pending.

        It is no verdict on the run: "state restore" gives it back, and "state demote" rejects it for good.
        """,
    ),
}


def run_action(
    settings: Settings, action: Action, arguments: ActionArguments, *, include_terminal: bool = False, force: bool = False
) -> int:
    """Carry an act out on the partitions that are meant, if whoever is asked agrees; the code to end with."""
    order = build_request(arguments)
    with open_ledger(settings) as ledger:
        wanted = list_partitions_to_enqueue(arguments, settings, ledger) if action is Action.ENQUEUE else select_partitions(arguments, settings, ledger)
        looks = action is Action.REQUEUE and not force and settings.raw_root.is_dir()
        raw = RawRuns(settings.raw_root) if looks else None
        control = OperatorActions(ledger=ledger, policy=settings.retry_policy, today=datetime.now(UTC).date(), raw=raw)
        preview = _narrowed(control, ledger, action, wanted, arguments.error_class, even_terminal=include_terminal)
    plan = _plan(preview)
    if not confirmation.confirm(plan, arguments):
        return 0
    tell = progress_on(sys.stderr) if sys.stderr.isatty() else no_progress
    with open_control_actions(settings) as desk:
        done = execute_preview(desk, preview, order, report_progress=tell)
    return confirmation.report_outcome(plan, _end(preview, done, order.action_id), arguments)


def _narrowed(
    control: OperatorActions,
    ledger: LedgerReader,
    act: Action,
    wanted: StateFilter | list[PartitionKey],
    error_class: str | None,
    *,
    even_terminal: bool,
) -> ActionPreview:
    """The preview, of partitions whose last failure was of a class if one was named."""
    preview = control.preview(act, wanted, include_terminal=even_terminal)
    if error_class is None:
        return preview
    validate_name("error_class", error_class)
    failures = ledger.retry_queue.find_failures([*(state.key for state in preview.states), *preview.skipped])
    kept = {key for key, failure in failures.items() if failure.error_class == error_class}
    if not kept and error_class not in ERROR_POLICIES:
        known = sorted({*ERROR_POLICIES, *(each.error_class for each in failures.values() if each.error_class)})
        raise BadName("error_class", error_class, f"no failure is of it; {suggest(error_class, known)}")
    return replace(
        preview,
        states=tuple(state for state in preview.states if state.key in kept),
        marks_to_clear=tuple(state for state in preview.marks_to_clear if state.key in kept),
        skipped={key: why for key, why in preview.skipped.items() if key in kept},
    )


def _plan(preview: ActionPreview) -> ActionPlan:
    verb, cleared = ACTION_COMMANDS[preview.action], set(preview.marks_to_clear)
    lines = [
        PlannedChange(
            key=state.key,
            status=state.status,
            now=_now(state),
            becomes=verb.becomes.format(status=state.status) + (", mark cleared" if state in cleared else ""),
        )
        for state in preview.states
    ]
    return ActionPlan(verb=verb.name, changes=lines, skipped=preview.skipped)


def _now(state: PartitionState) -> str:
    """A success goes by its rows, anything else by its number of attempts."""
    if state.status is Status.SUCCESS:
        return f"{state.status}, {count_of(state.record_count or 0, 'row')}"
    return f"{state.status}, {count_of(state.attempt_count, 'attempt')}"


def _end(preview: ActionPreview, done: ActionOutcome, action_id: str) -> ActionReport:
    changed = [state.key for state in done.changed]
    reached = {*changed, *done.unchanged}
    refusals = {str(getattr(error, "partition", "")): str(error) for error in done.refused}
    problem = None if done.outage is None else str(done.outage)
    return ActionReport(
        action_id=action_id,
        changed=changed,
        unchanged=done.unchanged,
        remaining={
            state.key: refusals.get(str(state.key), problem or "it was not reached")
            for state in preview.states
            if state.key not in reached
        },
    )
