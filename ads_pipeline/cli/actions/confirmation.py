"""Shows what an action will change, asks for confirmation, and reports the outcome.

Every action on partitions uses it. `arguments` selects the partitions.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.cli.actions.arguments import ActionArguments
from ads_pipeline.cli.output import cell, count_of, key_cells, partition_table, write_results
from ads_pipeline.cli.states import COLOURS
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.errors import BadCommand
from ads_pipeline.quoting import printable

CHANGES_WITHOUT_CONFIRMATION: Final = 20  # also the number of changes that a preview lists
SKIP_REASONS_SHOWN: Final = 10
PARTIAL_EXIT_CODE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange:
    """The current and the future description of a partition that an action will change."""

    key: PartitionKey
    status: Status
    now: str
    becomes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPlan:
    """The changes an action will make, and why it skips other selected partitions."""

    verb: str
    changes: Sequence[PlannedChange]
    skipped: Mapping[PartitionKey, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionReport:
    """The outcome of a plan.

    `remaining` partitions were planned and not changed, `unfinished` ones are changed in part; each has its reason.
    """

    action_id: str
    changed: Sequence[PartitionKey]
    unchanged: Sequence[PartitionKey] = ()
    remaining: Mapping[PartitionKey, str] = field(default_factory=dict)
    unfinished: Mapping[PartitionKey, str] = field(default_factory=dict)


def confirm(plan: ActionPlan, arguments: ActionArguments) -> bool:
    """Show the plan and return whether to execute it: not on a dry run, and not when there is nothing to change.

    Answering "no" aborts the command. Raises BadCommand when confirmation is needed and no terminal is attached.
    """
    must_ask = not (arguments.yes or arguments.dry_run) and len(plan.changes) > CHANGES_WITHOUT_CONFIRMATION
    if must_ask and not is_interactive():
        raise BadCommand(
            f"{count_of(len(plan.changes), 'partition')} would change, and there is no terminal to ask for "
            "confirmation; --dry-run shows them, --yes changes them"
        )
    will_execute = bool(plan.changes) and not arguments.dry_run
    lines = () if will_execute else _json_lines(plan, None)
    write_results(lines, _preview_blocks(plan), _notes(plan, arguments), as_json=arguments.as_json, wrap_notes=True)
    if must_ask:
        typer.confirm(f"{plan.verb} {count_of(len(plan.changes), 'partition')}?", abort=True, err=True)
    return will_execute


def report_outcome(plan: ActionPlan, report: ActionReport, arguments: ActionArguments) -> int:
    """Print the outcome, ending with the remaining partitions as arguments. Returns the exit code."""
    for label, reasons in (("remaining", report.remaining), ("unfinished", report.unfinished)):
        for key, reason in reasons.items():
            print(printable(f"{label}: {key}: {reason}"), file=sys.stderr)  # noqa: T201 - for people
    counts = [f"{plan.verb}: {count_of(len(report.changed), 'partition')} changed"]
    counts += [f"{len(report.unchanged):,} already as requested"] if report.unchanged else []
    counts += [f"{len(report.remaining):,} remaining"] if report.remaining else []
    lines = [", ".join(counts), f"action {report.action_id}"]
    if report.remaining:
        lines += ["remaining, to preview again:", *_as_arguments(report.remaining)]
    write_results(_json_lines(plan, report), (), lines, as_json=arguments.as_json)
    return PARTIAL_EXIT_CODE if report.remaining or report.unfinished else 0


def is_interactive() -> bool:
    return sys.stdin.isatty()


def _notes(plan: ActionPlan, arguments: ActionArguments) -> Iterator[str]:
    if plan.changes:
        counts = Counter(change.status for change in plan.changes)
        parts = ", ".join(f"{counts[status]:,} {status}" for status in COLOURS if counts[status])
        yield f"{count_of(len(plan.changes), 'partition')} to {plan.verb}: {parts}"
    else:
        yield f"nothing to {plan.verb}"
    keys_by_reason: dict[str, list[PartitionKey]] = {}
    for key, reason in plan.skipped.items():
        keys_by_reason.setdefault(reason, []).append(key)
    most_common = sorted(keys_by_reason.items(), key=lambda item: -len(item[1]))
    for reason, keys in most_common[:SKIP_REASONS_SHOWN]:
        example = str(keys[0]) if len(keys) == 1 else f"{len(keys):,} partitions, such as {keys[0]}"
        yield f"skipped: {example}: {reason}"
    if len(most_common) > SKIP_REASONS_SHOWN:
        yield f"skipped: more, for {len(most_common) - SKIP_REASONS_SHOWN:,} other reasons"
    if arguments.dry_run:
        yield "nothing was changed"


def _preview_blocks(plan: ActionPlan) -> Iterator[RenderableType]:
    table = partition_table(now="fold", becomes="fold")
    for change in plan.changes[:CHANGES_WITHOUT_CONFIRMATION]:
        table.add_row(*key_cells(change.key), cell(change.now, style=COLOURS[change.status]), cell(change.becomes))
    if plan.changes:
        yield table
        if len(plan.changes) > CHANGES_WITHOUT_CONFIRMATION:
            yield cell(f"and {len(plan.changes) - CHANGES_WITHOUT_CONFIRMATION:,} more")
        yield Text("")


def _json_lines(plan: ActionPlan, report: ActionReport | None) -> Iterator[dict[str, object]]:
    """One object per selected partition, with its result."""
    results: dict[PartitionKey, str] = {}
    if report is not None:
        results = dict.fromkeys(report.changed, "done") | dict.fromkeys(report.unchanged, "unchanged")
        results |= dict.fromkeys(report.remaining, "remaining")
    action_id, reasons = (None, {}) if report is None else (report.action_id, report.remaining)
    action = {"action": plan.verb, "action_id": action_id}
    for change in plan.changes:
        result = {"now": change.now, "becomes": change.becomes, "result": results.get(change.key, "planned")}
        yield asdict(change.key) | action | result | {"why": reasons.get(change.key)}
    for key, reason in plan.skipped.items():
        yield asdict(key) | action | {"now": None, "becomes": None, "result": "skipped", "why": reason}


def _as_arguments(keys: Iterable[PartitionKey]) -> Iterator[str]:
    """One partition per line, joined by backslashes so that a shell reads them as one command."""
    *others, last = map(str, keys)
    yield from (f"  {key} \\" for key in others)
    yield f"  {last}"
