"""Shows the plan of an action, asks for confirmation, and reports the results. Every action uses it."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.quoting import count_of, printable
from ads_pipeline.domain.transitions import Status
from ads_pipeline.operations.cli.command_line.output import (
    PARTITION_COLUMNS,
    STATUS_STYLES,
    Column,
    cell,
    table_of,
    write_results,
)
from ads_pipeline.pipeline.actions.operator_actions import LeftOut, Plan, PlanRow, Report, Result, ResultRow, Target

CHANGES_WITHOUT_CONFIRMATION: Final = 20  # also the number of changes that a preview lists
REASONS_SHOWN: Final = 10
PARTIAL_EXIT_CODE: Final = 2
NOTHING_EXIT_CODE: Final = 3
NOW_AND_BECOMES: Final = (Column("now", "now", wrap=True), Column("becomes", "becomes", wrap=True))
PARKING_COLUMNS: Final = (Column("what", "scope"), Column("name", "name", wrap=True))


def confirm(
    plan: Plan, selected: object, *, warnings: Sequence[str], dry_run: bool, yes: bool, as_json: bool
) -> bool:
    """Show the plan and return whether to execute it: not on a dry run, and not when there is nothing to change.

    Answering "no" aborts the command. Raises BadCommand when confirmation is needed and no terminal is attached.
    """
    changes = count_of(len(plan.changes), _noun(plan))
    needs_question = bool(plan.changes) and (len(plan.changes) > CHANGES_WITHOUT_CONFIRMATION or bool(warnings))
    must_ask = needs_question and not (yes or dry_run)
    if must_ask and not is_interactive():
        causes = [*warnings, f"{changes} would change, and there is no terminal to ask for confirmation"]
        raise BadCommand("; ".join([*causes, "--dry-run shows them, --yes changes them"]))
    will_execute = bool(plan.changes) and not dry_run
    notes = [*_notes(plan, selected), *warnings, *(["nothing was changed"] if dry_run else [])]
    write_results(() if will_execute else _json_lines(plan, None), _blocks(plan), notes, as_json=as_json)
    if must_ask:
        typer.confirm(f"{plan.action.name} {changes}?", abort=True, err=True)
    return will_execute


def write_report(plan: Plan, report: Report, *, as_json: bool) -> int:
    """Print the results, ending with the remaining partitions as arguments. Returns the exit code."""
    open_rows = [row for row in report.rows if row.result in {Result.REMAINING, Result.UNFINISHED}]
    for row in open_rows:
        print(f"{row.result}: {printable(f'{_name(row.target)}: {row.why}')}", file=sys.stderr)  # noqa: T201 - for people
    changed = report.targets(Result.DONE, Result.UNFINISHED)
    unchanged, remaining = report.targets(Result.UNCHANGED), report.targets(Result.REMAINING)
    counts = [f"{plan.action.name}: {count_of(len(changed), _noun(plan))} changed"]
    counts += [f"{len(unchanged):,} already as requested"] if unchanged else []
    counts += [f"{len(remaining):,} remaining"] if remaining else []
    told = [f"{_name(row.target)}: {row.why}" for row in report.rows if row.result is Result.DONE and row.why]
    more = [f"and {len(told) - REASONS_SHOWN:,} more"] if len(told) > REASONS_SHOWN else []
    notes = [", ".join(counts), *told[:REASONS_SHOWN], *more, f"action {report.action_id}"]
    if remaining:
        notes += ["remaining, to preview again:", *_as_arguments(remaining)]
    write_results(_json_lines(plan, report), (), notes, as_json=as_json)
    return PARTIAL_EXIT_CODE if open_rows else 0


def is_interactive() -> bool:
    return sys.stdin.isatty()


def _noun(plan: Plan) -> str:
    for row in (*plan.changes, *plan.skipped):
        if isinstance(row.target, Parking):
            return "account" if row.target.scope == "customer" else row.target.scope
    return "partition"


def _notes(plan: Plan, selected: object) -> Iterator[str]:
    """The number of changes, and each reason for leaving targets out, with its number and the first example."""
    if plan.changes:
        yield f"{count_of(len(plan.changes), _noun(plan))} to {plan.action.name}{_status_counts(plan.changes)}"
    else:
        yield f"nothing to {plan.action.name}"
        if not plan.left_out:
            yield f"no recorded partition matches {selected}" if str(selected) else "the ledger records no partition"
    for each in plan.left_out[:REASONS_SHOWN]:
        yield f"skipped: {_example(each)}: {each.reason}"
    if len(plan.left_out) > REASONS_SHOWN:
        yield f"skipped: more, for {len(plan.left_out) - REASONS_SHOWN:,} other reasons"


def _status_counts(changes: Sequence[PlanRow]) -> str:
    counts = Counter(row.state.status for row in changes if row.state)
    parts = ", ".join(f"{counts[status]:,} {status}" for status in Status if counts[status])
    return parts and f": {parts}"


def _example(left_out: LeftOut) -> str:
    if left_out.count == 1:
        return _name(left_out.example)
    number = f"more than {left_out.count:,}" if left_out.is_least else f"{left_out.count:,}"
    return f"{number} partitions, such as {_name(left_out.example)}"


def _name(target: Target) -> str:
    return str(target) if isinstance(target, PartitionKey) else target.target


def _blocks(plan: Plan) -> Iterator[RenderableType]:
    shown = plan.changes[:CHANGES_WITHOUT_CONFIRMATION]
    columns = PARTITION_COLUMNS if plan.action.statuses else PARKING_COLUMNS
    rows = [_target_fields(row.target) | {"now": _now_cell(row), "becomes": row.becomes} for row in shown]
    table = table_of(rows, (*columns, *NOW_AND_BECOMES))
    yield from table[:1]
    if len(plan.changes) > len(shown):
        yield cell(f"and {len(plan.changes) - len(shown):,} more")
    yield from table[1:]


def _now_cell(row: PlanRow) -> Text:
    return cell(row.now, style=STATUS_STYLES.get(row.state.status, "") if row.state else "")


def _json_lines(plan: Plan, report: Report | None) -> Iterator[Mapping[str, object]]:
    """One object per selected target, with its result."""
    results: dict[Target, ResultRow] = {row.target: row for row in report.rows} if report else {}
    action = {"action": plan.action.name, "action_id": report and report.action_id}
    for row in plan.changes:
        found = results.get(row.target)
        result = {"result": found.result if found else "planned", "why": found and found.why}
        yield _target_fields(row.target) | action | {"now": row.now, "becomes": row.becomes} | result
    for row in plan.skipped:
        result = {"result": "skipped", "why": row.why_skipped}
        yield _target_fields(row.target) | action | {"now": None, "becomes": None} | result


def _target_fields(target: Target) -> dict[str, Any]:
    if isinstance(target, PartitionKey):
        return asdict(target)
    return {"source": target.source, "scope": target.scope, "name": target.name}


def _as_arguments(targets: Sequence[Target]) -> Iterator[str]:
    """One partition per line, joined by backslashes so that a shell reads them as one command."""
    *others, last = map(_name, targets)
    yield from (f"  {target} \\" for target in others)
    yield f"  {last}"
