"""Shows what an act would do, asks where it is much, and tells what came of it and what remains.

Every act on partitions runs on these rails, whatever it does. Which partitions are meant is `asked`'s to say.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import typer
from rich.text import Text

from ads_pipeline.cli.actions.arguments import ActionArguments
from ads_pipeline.cli.output import OutputConsole, cell, count_of, new_table, write_json
from ads_pipeline.cli.states import COLOURS
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.errors import BadCommand
from ads_pipeline.quoting import printable

CHANGES_WITHOUT_CONFIRMATION: Final = 20  # partitions that an act changes without asking, and that a preview lists
SKIP_REASONS_SHOWN: Final = 10  # why partitions are left out, at most so many
PARTIAL_EXIT_CODE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange:
    """A partition that an act would change: what it is now, and what it becomes."""

    key: PartitionKey
    status: Status
    now: str
    becomes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPlan:
    """What an act would change, and why it leaves out others that were meant."""

    verb: str
    changes: Sequence[PlannedChange]
    skipped: Mapping[PartitionKey, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionReport:
    """What came of it. What remains was planned and not done, what is unfinished is done in part; each with why."""

    action_id: str
    changed: Sequence[PartitionKey]
    unchanged: Sequence[PartitionKey] = ()
    remaining: Mapping[PartitionKey, str] = field(default_factory=dict)
    unfinished: Mapping[PartitionKey, str] = field(default_factory=dict)


def confirm(plan: ActionPlan, asked: ActionArguments) -> bool:
    """Show the plan, and say whether to go ahead: not on a dry run, and not where there is nothing to do.

    Somebody who answers no ends the command; BadCommand where nobody can be asked.
    """
    asks = not (asked.yes or asked.dry_run) and len(plan.changes) > CHANGES_WITHOUT_CONFIRMATION
    if asks and not is_interactive():
        raise BadCommand(
            f"{count_of(len(plan.changes), 'partition')} would change and nobody can be asked here; "
            "--dry-run shows them, --yes changes them"
        )
    goes_ahead = bool(plan.changes) and not asked.dry_run
    notes = list(_notes(plan, asked))
    if not asked.as_json:
        _write(plan, notes)
    else:
        if not goes_ahead:
            write_json(_lines(plan, None))
        print(*map(printable, notes), sep="\n", file=sys.stderr)  # noqa: T201 - standard output is the program's
    if asks:
        typer.confirm(f"{plan.verb} {count_of(len(plan.changes), 'partition')}?", abort=True, err=True)
    return goes_ahead


def report_outcome(plan: ActionPlan, ended: ActionReport, asked: ActionArguments) -> int:
    """Tell what came of a plan, and last what remains as arguments to paste; the code to end with."""
    for kind, listed in (("left", ended.remaining), ("unfinished", ended.unfinished)):
        for key, why in listed.items():
            print(f"{kind}: {printable(_named(key, why))}", file=sys.stderr)  # noqa: T201 - a person reads it
    told = [f"{plan.verb}: {count_of(len(ended.changed), 'partition')} changed"]
    told[0] += f", {len(ended.unchanged):,} found as wanted" if ended.unchanged else ""
    told[0] += f", {len(ended.remaining):,} left" if ended.remaining else ""
    told += [f"act {ended.action_id}"]
    if ended.remaining:
        told += ["what is left, to look at again:", *_pasted(ended.remaining)]
    if asked.as_json:
        write_json(_lines(plan, ended))
        print(*told, sep="\n", file=sys.stderr)  # noqa: T201 - standard output is the program's
    else:
        paper = OutputConsole()
        for line in told:
            paper.print(cell(line), soft_wrap=True)
    return PARTIAL_EXIT_CODE if ended.remaining or ended.unfinished else 0


def is_interactive() -> bool:
    """Whether a question would reach anybody."""
    return sys.stdin.isatty()


def _notes(plan: ActionPlan, asked: ActionArguments) -> Iterator[str]:
    if plan.changes:
        counts = Counter(line.status for line in plan.changes)
        parts = ", ".join(f"{counts[status]:,} {status}" for status in COLOURS if counts[status])
        yield f"{count_of(len(plan.changes), 'partition')} to {plan.verb}: {parts}"
    else:
        yield f"nothing to {plan.verb}"
    reasons: dict[str, list[PartitionKey]] = {}
    for key, why in plan.skipped.items():
        reasons.setdefault(why, []).append(key)
    for why, keys in sorted(reasons.items(), key=lambda each: -len(each[1]))[:SKIP_REASONS_SHOWN]:
        such = str(keys[0]) if len(keys) == 1 else f"{len(keys):,}, such as {keys[0]}"
        yield f"left out: {such}: {why}"
    if len(reasons) > SKIP_REASONS_SHOWN:
        yield f"left out: more, for {len(reasons) - SKIP_REASONS_SHOWN:,} other reasons"
    if asked.dry_run:
        yield "nothing was changed"


def _write(plan: ActionPlan, notes: Iterable[str]) -> None:
    paper = OutputConsole()
    table = new_table(customer="left", query="fold", day="left", now="fold", becomes="fold")
    for line in plan.changes[:CHANGES_WITHOUT_CONFIRMATION]:
        place = line.key.customer_id, line.key.query_name, line.key.logical_date
        table.add_row(*map(cell, place), cell(line.now, style=COLOURS[line.status]), cell(line.becomes))
    if plan.changes:
        paper.print(table)
        if len(plan.changes) > CHANGES_WITHOUT_CONFIRMATION:
            paper.print(cell(f"and {len(plan.changes) - CHANGES_WITHOUT_CONFIRMATION:,} more"))
        paper.print(Text(""))
    for note in notes:
        paper.print(cell(note))


def _lines(plan: ActionPlan, ended: ActionReport | None) -> Iterator[dict[str, object]]:
    """One object for each partition that was meant, with what became of it."""
    known: dict[PartitionKey, str] = {}
    if ended is not None:
        known = dict.fromkeys(ended.changed, "done") | dict.fromkeys(ended.unchanged, "unchanged")
        known |= dict.fromkeys(ended.remaining, "left")
    action_id, why = (None, {}) if ended is None else (ended.action_id, ended.remaining)
    for line in plan.changes:
        told = {"now": line.now, "becomes": line.becomes, "result": known.get(line.key, "planned")}
        yield asdict(line.key) | {"action": plan.verb, "action_id": action_id} | told | {"why": why.get(line.key)}
    for key, reason in plan.skipped.items():
        left_out = {"now": None, "becomes": None, "result": "left out", "why": reason}
        yield asdict(key) | {"action": plan.verb, "action_id": action_id} | left_out


def _named(key: PartitionKey, why: str) -> str:
    return why if why.startswith(str(key)) else f"{key}: {why}"


def _pasted(keys: Iterable[PartitionKey]) -> Iterator[str]:
    """One a line, so that they can be read, and still one command for a shell."""
    *others, last = map(str, keys)
    yield from (f"  {each} \\" for each in others)
    yield f"  {last}"
