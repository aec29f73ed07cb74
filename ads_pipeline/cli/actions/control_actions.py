"""Carries out operators' acts on partitions: enqueue, retry, mark and clear terminal, reprocess, withdraw.

What each act does is `control`'s; what overrules a verdict is `overrule`'s. It loads neither Spark nor DuckDB.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from ads_pipeline.cli.actions import confirmation
from ads_pipeline.cli.actions.arguments import ActionArguments, expected, hint, meant, order_of
from ads_pipeline.cli.actions.confirmation import End, Line, Plan
from ads_pipeline.cli.output import counted
from ads_pipeline.cli.parsing import desk_of, ledger_of
from ads_pipeline.domain.partition import PartitionKey, checked_name
from ads_pipeline.domain.retry import TREATMENTS
from ads_pipeline.domain.transitions import Action, PartitionState, Status
from ads_pipeline.errors import BadName
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline.pipeline.operator_actions import ActionOutcome, ActionPreview, OperatorActions, carry_out
from ads_pipeline.progress import silence, telling
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionCommand:
    """An act as it is typed, what a partition becomes by it, and its help."""

    name: str
    becomes: str
    help: str


VERBS: Final[Mapping[Action, ActionCommand]] = {
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


def perform(
    settings: Settings, act: Action, asked: ActionArguments, *, even_terminal: bool = False, force: bool = False
) -> int:
    """Carry an act out on the partitions that are meant, if whoever is asked agrees; the code to end with."""
    order = order_of(asked)
    with ledger_of(settings) as ledger:
        wanted = expected(asked, settings, ledger) if act is Action.ENQUEUE else meant(asked, settings, ledger)
        looks = act is Action.REQUEUE and not force and settings.raw_root.is_dir()
        raw = RawRuns(settings.raw_root) if looks else None
        control = OperatorActions(ledger=ledger, policy=settings.retries, today=datetime.now(UTC).date(), raw=raw)
        preview = _narrowed(control, ledger, act, wanted, asked.error_class, even_terminal=even_terminal)
    plan = _plan(preview)
    if not confirmation.agreed(plan, asked):
        return 0
    tell = telling(sys.stderr) if sys.stderr.isatty() else silence
    with desk_of(settings) as desk:
        done = carry_out(desk, preview, order, tell=tell)
    return confirmation.end(plan, _end(preview, done, order.act_id), asked)


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
    preview = control.preview(act, wanted, even_terminal=even_terminal)
    if error_class is None:
        return preview
    checked_name("error_class", error_class)
    failures = ledger.schedule.failures([*(state.key for state in preview.states), *preview.skipped])
    kept = {key for key, failure in failures.items() if failure.error_class == error_class}
    if not kept and error_class not in TREATMENTS:
        known = sorted({*TREATMENTS, *(each.error_class for each in failures.values() if each.error_class)})
        raise BadName("error_class", error_class, f"no failure is of it; {hint(error_class, known)}")
    return replace(
        preview,
        states=tuple(state for state in preview.states if state.key in kept),
        cleared=tuple(state for state in preview.cleared if state.key in kept),
        skipped={key: why for key, why in preview.skipped.items() if key in kept},
    )


def _plan(preview: ActionPreview) -> Plan:
    verb, cleared = VERBS[preview.act], set(preview.cleared)
    lines = [
        Line(
            key=state.key,
            status=state.status,
            now=_now(state),
            becomes=verb.becomes.format(status=state.status) + (", mark cleared" if state in cleared else ""),
        )
        for state in preview.states
    ]
    return Plan(verb=verb.name, lines=lines, skipped=preview.skipped)


def _now(state: PartitionState) -> str:
    """A success goes by its rows, anything else by its number of attempts."""
    if state.status is Status.SUCCESS:
        return f"{state.status}, {counted(state.record_count or 0, 'row')}"
    return f"{state.status}, {counted(state.attempt_count, 'attempt')}"


def _end(preview: ActionPreview, done: ActionOutcome, act_id: str) -> End:
    changed = [state.key for state in done.changed]
    reached = {*changed, *done.unchanged}
    refusals = {str(getattr(error, "partition", "")): str(error) for error in done.refused}
    problem = None if done.problem is None else str(done.problem)
    return End(
        act_id=act_id,
        done=changed,
        unchanged=done.unchanged,
        remaining={
            state.key: refusals.get(str(state.key), problem or "it was not reached")
            for state in preview.states
            if state.key not in reached
        },
    )
